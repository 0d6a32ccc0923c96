package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// maxSize is the limit for the size of the binary, in bytes, and maxTime for the processor time of its fastest start: about the time
	// that Go's runtime and the packages for Kubernetes need for their initialization.
	maxSize = 60 << 20
	maxTime = 100 * time.Millisecond
)

// compileCLI builds the command line tool as a release does.
func compileCLI(t *testing.T, binary string) {
	t.Helper()
	NewWithT(t).Expect(tools.Compile(t.Context(), "flux-pulumi", tools.RepositoryRoot(), "./cmd/flux-pulumi", binary,
		[]string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version=v1.2.3"}, nil)).To(Succeed())
}

func TestBinaryIsSmallStartsAtOnceAndIsAPluginOfKubectl(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	binary := filepath.Join(dir, "flux-pulumi")
	compileCLI(t, binary)
	info, err := os.Stat(binary)
	g.Expect(err).NotTo(HaveOccurred())
	best := time.Hour
	for range 10 {
		cmd := exec.CommandContext(t.Context(), binary, "version")
		output, err := cmd.Output()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(output)).To(Equal("flux-pulumi v1.2.3\n"))
		best = min(best, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}
	t.Logf("%.1f MB, starts with %s of processor time", float64(info.Size())/1e6, best.Round(time.Millisecond))
	g.Expect(info.Size()).To(BeNumerically("<=", maxSize))
	g.Expect(best).To(BeNumerically("<=", maxTime))

	g.Expect(os.Symlink("flux-pulumi", filepath.Join(dir, "kubectl-pulumi"))).To(Succeed())
	kubectl, err := tools.Path(t.Context(), "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	run := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), kubectl, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+filepath.Dir(kubectl), "KUBECONFIG="+system.ControlPlane.KubeconfigPath)
		output, _ := cmd.CombinedOutput() // the test checks the exit code instead
		return string(output), cmd.ProcessState.ExitCode()
	}
	output, code := run("pulumi", "get", "stacks", "nobody", "-n", recorded)
	g.Expect(output).To(Equal("✗ stack \"nobody\" does not exist in namespace \"apps\"\n"))
	g.Expect(code).To(Equal(1))

	script := "#!/bin/sh\nexec kubectl pulumi __complete \"$@\"\n"
	g.Expect(os.WriteFile(filepath.Join(dir, "kubectl_complete-pulumi"), []byte(script), 0o755)).To(Succeed())
	output, _ = run("__complete", "pulumi", "explain", "stack", "-n", recorded, "net")
	g.Expect(output).To(MatchRegexp("(?m)^network$"))
}

func TestBinaryIsAPluginOfFlux(t *testing.T) {
	suite.Long(t, "needs the flux CLI, which no other test of the short suite does; that it is a plugin of kubectl is tested there")
	g := NewWithT(t)
	dir := t.TempDir()
	plugins := filepath.Join(dir, ".fluxcd", "plugins")
	g.Expect(os.MkdirAll(plugins, 0o700)).To(Succeed())
	compileCLI(t, filepath.Join(plugins, "flux-pulumi"))
	flux, err := tools.Path(t.Context(), "flux", nil)
	g.Expect(err).NotTo(HaveOccurred())
	cmd := exec.CommandContext(t.Context(), flux, "pulumi", "get", "stacks", "network", "-n", recorded, "-o", "name")
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+system.ControlPlane.KubeconfigPath)
	listed, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", listed)
	g.Expect(string(listed)).To(Equal("stack.pulumi.com/network\n"))
}

func TestCheckFindsTheControllerAndTheRightsThatAreMissing(t *testing.T) {
	g := NewWithT(t)
	golden(t, "check", 0, "check", "-n", recorded)
	answer := cli(t.Context(), today, "check", "-n", recorded, "--as", "nobody")
	g.Expect(answer.code).To(Equal(0), "a right that is missing is no failure")
	g.Expect(answer.err).To(And(
		ContainSubstring("⚠ the controller cannot be checked"),
		ContainSubstring("⚠ you may not patch stacks.pulumi.com, which these need: reconcile, suspend, resume and cancel"),
		ContainSubstring("⚠ you may not get pods/log, which these need: logs")))
	answer = cli(t.Context(), today, "get", "stacks", "-n", recorded, "--as", "nobody")
	g.Expect(answer.code).To(Equal(1))
	g.Expect(answer.err).To(ContainSubstring("list Stack: you are not allowed to: "))
}

// pair returns a program with two resources: one with the content, and one with the given name.
func pair(project, content, name string) gitserver.Files {
	return systemtest.Program(project, "resources:",
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
	before := p.Await(systemtest.Showing(`"a"`)).Status.LastUpdate.Name
	p.says(0, "suspend stack diff")
	sha := p.commit(pair(p.Name, "b", "new"))
	p.Succeed(system.Fetch(p.Context(), p.app))
	p.Eventually(func() string { return ask(p.Fixture, "tree", "stack", p.Name).out }).Should(ContainSubstring("Ready main@sha1:" + sha[:8]))

	answer := ask(p.Fixture, "diff", "stack", p.Name, "--exit-code")
	p.Expect(answer.code).To(Equal(5), answer.err)
	p.Expect(answer.out).To(And(
		MatchRegexp(`(?m)^ +TYPE +NAME +CHANGE$`), MatchRegexp(`(?m)^\+ +test:index:Sleep +new +create$`),
		MatchRegexp(`(?m)^~ +test:index:Sleep +first +update: content$`), MatchRegexp(`(?m)^- +test:index:Sleep +old +delete$`)))
	p.Expect(answer.err).To(ContainSubstring("✔ would change: +1 ~1 -1, 1 unchanged"))
	p.Eventually(func() string { return ask(p.Fixture, "get", "updates").out }).ShouldNot(ContainSubstring("preview"))
	stack := &pulumiv1.Stack{}
	p.Get(p.Name, stack)
	p.Expect(stack.Status.LastUpdate.Name).To(Equal(before))
	p.says(1, "diff stack diff --source GitRepository/nobody", `"nobody" not found`)
	p.says(2, "diff stack diff --source nobody", "--source is KIND/NAME")
}

func TestStacksAreExplainedWithTheTableOfTheConditions(t *testing.T) {
	for _, name := range []string{"network", "billing", "portal", "website"} {
		t.Run(name, func(t *testing.T) {
			golden(t, "explain-"+name, 0, "explain", "stack", name, "-n", recorded)
		})
	}
}

func TestTreeShowsWhatBelongsTogether(t *testing.T) {
	golden(t, "tree", 0, "tree", "stack", "network", "-n", recorded)
	golden(t, "tree-dependencies", 0, "tree", "stack", "portal", "-n", recorded)
}

func TestWhatHappenedToAStackIsReportedUntilItIsFixed(t *testing.T) {
	suite.Long(t, "further states of a Stack; see TestWhyASourceIsNotReadyIsSaidAtOnce")
	p := begin(t, "explained")
	p.commit(systemtest.Program(p.Name, "outputs:", "  x: ${nothing}"))
	p.says(3, "reconcile stack explained --with-source")

	answer := ask(p.Fixture, "explain", "stack", p.Name)
	p.Expect(answer.out).To(And(ContainSubstring("Meaning"), ContainSubstring("What to do"), ContainSubstring("GitRepository explained/explained: Ready"),
		MatchRegexp(`Update explained/explained-[0-9a-f]{10} \(up\)  Failed`), ContainSubstring("nothing")))
	answer = ask(p.Fixture, "tree", "stack", p.Name, "--updates", "1")
	p.Expect(answer.out).To(And(HavePrefix("GitRepository explained/explained  Ready main@sha1:"), ContainSubstring("└── Stack explained/explained (dev)"),
		MatchRegexp(`├── Update explained-[0-9a-f]{10} \(up\) main@sha1:[0-9a-f]{8}  Failed`), MatchRegexp(`└── \d older Updates`)))
	p.Eventually(func() string { return ask(p.Fixture, "events", "--for", "stack/"+p.Name).out }).Should(And(
		MatchRegexp(`Normal +StackCreated +stack/explained +up succeeded`), MatchRegexp(`Warning +StackUpdateFailure +stack/explained`)))
	p.Expect(strings.Count(ask(p.Fixture, "events").out, "\n")).To(BeNumerically(">", 2))
	p.Expect(ask(p.Fixture, "events", "--for", "workspace/nobody").err).To(ContainSubstring("No events found"))
	p.says(2, "events --for network", "--for is KIND/NAME")
}

// buffer can be read while it is written to.
type buffer struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (b *buffer) Write(content []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(content)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}

// follow runs a command that continues until the context ends, and returns its exit code.
func follow(ctx context.Context, out io.Writer, args ...string) int {
	return on(ctx, out, out, time.Now(), nil, args...)
}

func TestTablesShowWhatTheObjectsSay(t *testing.T) {
	for file, args := range map[string]string{
		"get-stacks": "get stacks -n apps", "get-stacks-wide": "get stacks -n apps -o wide",
		"get-stacks-name": "get stacks -n apps -o name", "get-stack": "get stack network -n apps",
		"get-workspaces": "get workspaces -n apps", "get-workspaces-wide": "get workspaces -n apps -o wide",
		"get-updates": "get updates -n apps", "get-updates-wide": "get updates -n apps --stack network -o wide",
		"get-nothing":  "get stacks -n default",
		"get-rollouts": "get rollouts -n apps", "rollout-show": "rollout show infrastructure -n apps",
		"rollout-plans": "rollout plans infrastructure -n apps",
		"version":       "version", "help": "--help",
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

func TestMistakesOfTheCommandLineAreReportedWithTheirCode(t *testing.T) {
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
	g.Expect(list.Items).To(HaveLen(4))
	g.Expect(list.Items[0].Name).To(Equal("billing"))
	g.Expect(list.Items[0].GetManagedFields()).To(BeEmpty())

	update := &autov1alpha1.Update{}
	answer = cli(t.Context(), today, "get", "update", "network-8eee806b27", "-n", recorded, "-o", "yaml")
	g.Expect(yaml.UnmarshalStrict([]byte(answer.out), update)).To(Succeed())
	g.Expect(update.Kind).To(Equal("Update"))
	g.Expect(update.Status.ResourceChanges).To(HaveKeyWithValue("create", int64(2)))
}

func TestWhatAnotherWroteDoesNothingToTheTerminal(t *testing.T) {
	s := systemtest.New(t, system, "escapes", systemtest.Patience)
	s.Enter(nil, &pulumiv1.Stack{
		Namespace: s.Name, Name: "rude", Labels: map[string]string{"recorded": "true"},
		Spec: pulumiv1.StackSpec{Stack: "\x1b]0;title\x07\x1b[2Jdev\r\nmore"},
	})
	answer := ask(s, "get", "stacks", "-o", "wide")
	s.Expect(answer.out).To(And(ContainSubstring("dev more"), Not(ContainSubstring("\x1b")), Not(ContainSubstring("\a"))))
}

func TestWatchShowsEachChangeUntilItIsInterrupted(t *testing.T) {
	s := systemtest.New(t, system, "watch", systemtest.Patience)
	s.Enter(nil)
	ctx, interrupt := context.WithCancel(s.Context())
	defer interrupt()
	out := &buffer{}
	code := make(chan int)
	go func() { code <- follow(ctx, out, "get", "stacks", "-w", "-n", s.Name) }()
	s.Create(&pulumiv1.Stack{Namespace: s.Name, Name: "one", Labels: map[string]string{"recorded": "true"}})
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
		return lines[:len(lines)-1] // the last line is for the shell
	}
	g.Expect(names("-n", recorded, "get", "stacks", "")).To(ConsistOf("billing", "network", "portal", "website"))
	g.Expect(names("-n", recorded, "get", "stack", "n")).To(ConsistOf("network"))
	g.Expect(names("-n", recorded, "get", "updates", "--stack", "bi")).To(ConsistOf("billing"))
	g.Expect(names("get", "stacks", "-n", "app")).To(ConsistOf(recorded))
	g.Expect(names("get", "stacks", "-o", "")).To(ConsistOf("wide", "json", "yaml", "name"))
}

func TestLogsShowWhatPulumiPrintedInTheLastUpdate(t *testing.T) {
	p := begin(t, "logs")
	answer := ask(p.Fixture, "logs", "stack", p.Name)
	p.Expect(answer.code).To(Equal(0), answer.err)
	p.Expect(answer.out).To(And(ContainSubstring("\nUpdating (dev):\n"), ContainSubstring("Outputs:\n"), Not(ContainSubstring(`"msg"`)), Not(ContainSubstring("operation ended"))))
	p.Expect(ask(p.Fixture, "logs", "stack", p.Name, "--agent", "--timestamps").out).To(MatchRegexp(`(?m)^20\d\d-\S+Z? operation ended`))

	p.says(1, "logs stack nobody", `"nobody" not found`)
	p.says(1, "logs stack logs --update nothing", `"nothing" not found`)
}

// deployment returns a Deployment without pods.
func deployment(s *systemtest.Fixture, name, image string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		Namespace: s.Name, Name: name, Labels: map[string]string{
			"kustomize.toolkit.fluxcd.io/name": "operators", "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
		},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: image}}},
		}},
	}
}

// taken returns a Stack that the operator deployed and that must be changed for this controller.
func taken(s *systemtest.Fixture) *pulumiv1.Stack {
	return &pulumiv1.Stack{
		Namespace: s.Name, Name: "taken", Labels: map[string]string{"recorded": "true"},
		Spec: pulumiv1.StackSpec{
			Stack: "dev", DestroyOnFinalize: true, GitSource: pulumiv1.GitSource{ProjectRepo: "git@git.example.com:acme/infrastructure", Branch: "main"},
			EnvRefs: map[string]pulumiv1.ResourceRef{
				"HOME_DIR": {Type: pulumiv1.ResourceRefEnv, Env: &pulumiv1.EnvSelector{Name: "HOME"}},
				"TOKEN":    {Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Namespace: "elsewhere", Name: "token", Key: "token"}},
				"REGION":   {Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "eu"}},
			},
		},
	}
}

func TestMoveFromTheOperatorIsPlannedAndItsStepsCanBeUndone(t *testing.T) {
	s := systemtest.New(t, system, "moving", systemtest.Patience)
	operator := deployment(s, "operator", "registry.example.com/pulumi/pulumi-kubernetes-operator:v2.9.0")
	ending := &corev1.Pod{Namespace: s.Name, Name: "operator-0", Labels: operator.Spec.Template.Labels, Finalizers: []string{"example.com/ending"}, Spec: operator.Spec.Template.Spec}
	s.Enter(nil, taken(s), operator, ending, deployment(s, "web", "nginx"))

	answer := ask(s, "migrate", "plan")
	s.Expect(answer.code).To(Equal(0), answer.err)
	s.Expect(strings.Join(strings.Fields(answer.out), " ")).To(And(
		ContainSubstring("Pulumi Kubernetes Operator: Deployment moving/operator, 1 replicas,"),
		ContainSubstring("suspend Kustomization flux-system/operators first, which would restore it"), Not(ContainSubstring("moving/web")),
		ContainSubstring("Stop the operator: flux pulumi migrate stop operator -n moving"),
		ContainSubstring("Remove Kustomization flux-system/operators: kubectl delete kustomizations.kustomize.toolkit.fluxcd.io --namespace flux-system operators."),
		ContainSubstring("Do not resume it")))
	s.Expect(answer.out).To(MatchRegexp(`(?m)^moving +taken +Unknown +git +True +4$`))
	for _, note := range []string{"the host key of its git server has to be known", "envRefs[HOME_DIR] of type Env is rejected",
		"envRefs[TOKEN] names a Secret in namespace elsewhere", "it is not Ready"} {
		s.Expect(answer.err).To(ContainSubstring("⚠ Stack moving/taken: " + note))
	}

	s.Expect(ask(s, "migrate", "stop", "web").err).To(ContainSubstring("neither the operator's nor stack-controller's"))
	ended := make(chan string)
	go func() { ended <- ask(s, "migrate", "stop", "operator").err }()
	stopped := &appsv1.Deployment{}
	s.Eventually(func() int32 { s.Get("operator", stopped); return *stopped.Spec.Replicas }).Should(BeZero())
	stopped.Status.ObservedGeneration = stopped.Generation // as its controller does when the pods are ending
	s.Expect(system.Client.Status().Update(s.Context(), stopped)).To(Succeed())
	s.Expect(system.Client.Delete(s.Context(), ending)).To(Succeed())
	s.Consistently(ended, time.Second).ShouldNot(Receive(), "the pod runs for as long as it needs")
	s.Get(ending.Name, ending)
	ending.Finalizers = nil
	s.Expect(system.Client.Update(s.Context(), ending)).To(Succeed())
	s.Eventually(ended).Should(Receive(ContainSubstring("✔ Deployment moving/operator has stopped")))

	stack := &pulumiv1.Stack{}
	s.Get("taken", stack)
	before := stack.DeepCopy()
	stack.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: pulumiv1.ProcessingCompletedReason, LastTransitionTime: metav1.Now()}}
	s.Expect(system.Client.Status().Patch(s.Context(), stack, client.MergeFrom(before), client.FieldOwner("stack-controller"))).To(Succeed())
	s.Expect(ask(s, "migrate", "back", "--controller-namespace=", "--dry-run").out).To(ContainSubstring("Stack moving/taken: would be handed back"))
	answer = ask(s, "migrate", "back", "--controller-namespace=")
	s.Expect(answer.code).To(Equal(0), answer.err)
	s.Expect(answer.out).To(And(ContainSubstring("Stack moving/taken: handed back"), Not(ContainSubstring("apps/"))))
}
