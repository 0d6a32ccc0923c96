package cli_test

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// pair is a program with a resource of the content, and one of the name.
func pair(project, content, name string) gitserver.Files {
	return scene.Program(project, "resources:",
		"  first:", "    type: test:index:Sleep", "    properties: {content: "+content+"}", "    options: {version: 0.1.0}",
		"  "+name+":", "    type: test:index:Sleep", "    properties: {seconds: 0}", "    options: {version: 0.1.0}",
		"outputs:", "  x: ${first.content}")
}

func TestDiffShowsTheResourcesThatWouldChangeAndChangesNothing(t *testing.T) {
	p := begin(t, "diff")
	p.says(0, "diff stack diff", "✔ nothing would change: 1 unchanged")

	p.InstallProvider(p.Name)
	p.commit(pair(p.Name, "a", "old"))
	p.says(0, "reconcile stack diff --with-source")
	before := p.Await(scene.Showing(`"a"`)).Status.LastUpdate.Name
	p.says(0, "suspend stack diff")
	sha := p.commit(pair(p.Name, "b", "new"))
	p.Succeed(system.Fetch(p.Context(), p.app))
	p.Eventually(func() string { return ask(p.Scene, "tree", "stack", p.Name).out }).Should(ContainSubstring("Ready main@sha1:" + sha[:8]))

	answer := ask(p.Scene, "diff", "stack", p.Name, "--exit-code")
	p.Expect(answer.code).To(Equal(5), answer.err)
	p.Expect(answer.out).To(And(
		MatchRegexp(`(?m)^ +TYPE +NAME +CHANGE$`), MatchRegexp(`(?m)^\+ +test:index:Sleep +new +create$`),
		MatchRegexp(`(?m)^~ +test:index:Sleep +first +update: content$`), MatchRegexp(`(?m)^- +test:index:Sleep +old +delete$`)))
	p.Expect(answer.err).To(ContainSubstring("✔ would change: +1 ~1 -1, 1 unchanged"))
	p.Eventually(func() string { return ask(p.Scene, "get", "updates").out }).ShouldNot(ContainSubstring("preview"))
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(before))
	p.says(1, "diff stack diff --source GitRepository/nobody", `"nobody" not found`)
	p.says(2, "diff stack diff --source nobody", "--source is KIND/NAME")
}
