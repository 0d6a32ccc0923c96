package cli_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

func TestTablesShowWhatTheObjectsSay(t *testing.T) {
	for file, args := range map[string]string{
		"get-stacks": "get stacks -n apps", "get-stacks-wide": "get stacks -n apps -o wide",
		"get-stacks-name": "get stacks -n apps -o name", "get-stack": "get stack network -n apps",
		"get-workspaces": "get workspaces -n apps", "get-workspaces-wide": "get workspaces -n apps -o wide",
		"get-updates": "get updates -n apps", "get-updates-wide": "get updates -n apps --stack network -o wide",
		"get-nothing": "get stacks -n default",
		"version":     "version", "help": "--help",
	} {
		t.Run(file, func(t *testing.T) { golden(t, file, 0, strings.Fields(args)...) })
	}
}

func TestListsThatAreReadPageByPageAreWhole(t *testing.T) {
	g := NewWithT(t)
	whole := cli(t.Context(), today, "get", "stacks", "-n", recorded, "-o", "yaml")
	pages := cli(t.Context(), today, "get", "stacks", "-n", recorded, "-o", "yaml", "--chunk-size", "1")
	g.Expect(pages.err).To(BeEmpty())
	g.Expect(pages.out).To(And(Equal(whole.out), ContainSubstring("name: portal")))
}

func TestMistakesOfTheCommandLineAreToldWithTheirCode(t *testing.T) {
	for name, row := range map[string]struct {
		code       int
		args, says string
	}{
		"no-such-object":  {1, "get stack nobody -n apps", `stack "nobody" does not exist in namespace "apps"`},
		"no-such-context": {1, "get stacks --context nowhere", `context "nowhere" does not exist`},
		"no-server":       {1, "get stacks --server https://127.0.0.1:1", "connection refused"},
		"format":          {2, "get stacks -o xml", "use one of wide, json, yaml, name"},
		"flag":            {2, "get stacks --no-such-flag", "unknown flag"},
		"command":         {2, "gte stacks", `did you mean "get"?`},
		"kind":            {2, "get pods", `unknown command "pods" for "flux pulumi get"`},
		"name-and-all":    {2, "get stacks network -A", "a name goes with neither"},
		"selector":        {2, "get stacks -l ,,", "read the selector"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			answer := cli(t.Context(), today, strings.Fields(row.args)...)
			g.Expect(answer.err).To(And(HavePrefix("✗ "), ContainSubstring(row.says)))
			g.Expect(answer.code).To(Equal(row.code))
			g.Expect(answer.out).To(BeEmpty())
		})
	}
}

func TestObjectsAreGivenToProgramsAsTheAPIServerHasThem(t *testing.T) {
	g := NewWithT(t)
	var list struct {
		metav1.TypeMeta
		Items []pulumiv1.Stack
	}
	answer := cli(t.Context(), today, "get", "stacks", "-n", recorded, "-o", "json")
	g.Expect(json.Unmarshal([]byte(answer.out), &list)).To(Succeed())
	g.Expect(list.Kind).To(Equal("List"))
	g.Expect(list.Items).To(HaveLen(3))
	g.Expect(list.Items[0].Name).To(Equal("billing"))
	g.Expect(list.Items[0].GetManagedFields()).To(BeEmpty())

	update := &autov1alpha1.Update{}
	answer = cli(t.Context(), today, "get", "update", "network-8eee806b27", "-n", recorded, "-o", "yaml")
	g.Expect(yaml.UnmarshalStrict([]byte(answer.out), update)).To(Succeed())
	g.Expect(update.Kind).To(Equal("Update"))
	g.Expect(update.Status.ResourceChanges).To(HaveKeyWithValue("create", int64(2)))
}

func TestWhatAnotherWroteDoesNothingToTheTerminal(t *testing.T) {
	s := scene.New(t, system, "escapes", scene.Patience)
	s.Enter(nil, &pulumiv1.Stack{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name, Name: "rude", Labels: map[string]string{"recorded": "true"}},
		Spec:       pulumiv1.StackSpec{Stack: "\x1b]0;title\x07\x1b[2Jdev\r\nmore"},
	})
	answer := ask(s, "get", "stacks", "-o", "wide")
	s.Expect(answer.out).To(And(ContainSubstring("dev more"), Not(ContainSubstring("\x1b")), Not(ContainSubstring("\a"))))
}

func TestWatchShowsEachChangeUntilItIsInterrupted(t *testing.T) {
	s := scene.New(t, system, "watch", scene.Patience)
	s.Enter(nil)
	ctx, interrupt := context.WithCancel(s.Context())
	defer interrupt()
	out := &buffer{}
	code := make(chan int)
	go func() { code <- follow(ctx, out, "get", "stacks", "-w", "-n", s.Name) }()
	s.Create(&pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.Name, Name: "one", Labels: map[string]string{"recorded": "true"}}})
	s.Eventually(out.String).Should(MatchRegexp(`(?m)^one +False +Unknown`))
	s.ChangeStack("one", func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	s.Eventually(out.String).Should(MatchRegexp(`(?m)^one +True +Unknown`))
	s.Expect(strings.Count(out.String(), "NAME")).To(Equal(1))
	interrupt()
	s.Eventually(code, 10*time.Second).Should(Receive(Equal(130)))
}

func TestNamesAreCompleted(t *testing.T) {
	g := NewWithT(t)
	names := func(args ...string) []string {
		answer := cli(t.Context(), today, append([]string{"__complete"}, args...)...)
		lines := strings.Split(strings.TrimSpace(answer.out), "\n")
		return lines[:len(lines)-1] // the last one is for the shell
	}
	g.Expect(names("-n", recorded, "get", "stacks", "")).To(ConsistOf("billing", "network", "portal"))
	g.Expect(names("-n", recorded, "get", "stack", "n")).To(ConsistOf("network"))
	g.Expect(names("-n", recorded, "get", "updates", "--stack", "bi")).To(ConsistOf("billing"))
	g.Expect(names("get", "stacks", "-n", "app")).To(ConsistOf(recorded))
	g.Expect(names("get", "stacks", "-o", "")).To(ConsistOf("wide", "json", "yaml", "name"))
}
