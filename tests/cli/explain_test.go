package cli_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

func TestStacksAreExplainedWithTheTableOfTheConditions(t *testing.T) {
	for _, name := range []string{"network", "billing", "portal"} {
		t.Run(name, func(t *testing.T) {
			golden(t, "explain-"+name, 0, "explain", "stack", name, "-n", recorded)
		})
	}
}

func TestTreeShowsWhatBelongsTogether(t *testing.T) {
	golden(t, "tree", 0, "tree", "stack", "network", "-n", recorded)
	golden(t, "tree-dependencies", 0, "tree", "stack", "portal", "-n", recorded)
}

func TestWhatHappenedToAStackIsToldUntilItIsFixed(t *testing.T) {
	p := begin(t, "explained")
	p.commit(scene.Program(p.Name, "outputs:", "  x: ${nothing}"))
	p.says(3, "reconcile stack explained --with-source")

	answer := ask(p.Scene, "explain", "stack", p.Name)
	p.Expect(answer.out).To(And(ContainSubstring("Meaning"), ContainSubstring("What to do"), ContainSubstring("GitRepository explained/explained: Ready"),
		MatchRegexp(`Update explained/explained-[0-9a-f]{10} \(up\)  Failed`), ContainSubstring("nothing")))
	answer = ask(p.Scene, "tree", "stack", p.Name, "--updates", "1")
	p.Expect(answer.out).To(And(HavePrefix("GitRepository explained/explained  Ready main@sha1:"), ContainSubstring("└── Stack explained/explained (dev)"),
		MatchRegexp(`├── Update explained-[0-9a-f]{10} \(up\) main@sha1:[0-9a-f]{8}  Failed`), MatchRegexp(`└── \d older Updates`)))
	p.Eventually(func() string { return ask(p.Scene, "events", "--for", "stack/"+p.Name).out }).Should(And(
		MatchRegexp(`Normal +StackCreated +stack/explained +up succeeded`), MatchRegexp(`Warning +StackUpdateFailure +stack/explained`)))
	p.Expect(strings.Count(ask(p.Scene, "events").out, "\n")).To(BeNumerically(">", 2))
	p.Expect(ask(p.Scene, "events", "--for", "workspace/nobody").err).To(ContainSubstring("No events found"))
	p.says(2, "events --for network", "--for is KIND/NAME")
}
