package migration_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// walk is one migration to this controller and back.
type walk struct {
	*WithT
	t        *testing.T
	ctx      context.Context
	shell    *shell
	operator operator.Operator
	// definitions is the directory of the operator's definitions.
	definitions string
	// sourceRevision is Flux's revision for the commit of the sources.
	sourceRevision string
	// recorded has the name of the last update for each Stack that was up to date.
	recorded map[string]string
	// running are the names of the Updates that were running when the operator was stopped.
	running []string
	// commits has, for each kind of source, the value that the operator records as the commit of a Stack.
	commits map[string]string
}

func TestMigrationGuideWorksInBothDirections(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(pollInterval)
	dir := t.TempDir()
	w := &walk{WithT: g, t: t, ctx: t.Context(), operator: operator.Operator{Client: system.Client}, recorded: map[string]string{}}
	w.definitions = filepath.Join(dir, "definitions")
	w.shell = newShell(w.ctx, g, dir, w.definitions)

	w.leaveObjectsOfTheOperator()
	w.walkOver()
	w.walkBack()
}

func (w *walk) walkOver() {
	commands := commandsOf(w.WithT, "From 2.x")
	w.Expect(commands).To(HaveLen(4))
	w.Expect(w.shell.run(w.ctx, w.WithT, commands[0])).To(ContainSubstring("pulumi-kubernetes-operator"))
	stopped := w.shell.run(w.ctx, w.WithT, commands[1])
	w.Expect(stopped).To(And(ContainSubstring("scaled"), ContainSubstring("No resources found")))
	for _, running := range w.running {
		w.Expect(stopped).To(ContainSubstring(running))
	}
	w.Expect(w.shell.run(w.ctx, w.WithT, commands[2])).To(ContainSubstring("deleted"))
	_, err := system.ControlPlane.Kubectl(w.ctx, "apply", "--server-side", "--force-conflicts", "-f", controlplane.ProductCRDs())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(system.StartController(w.ctx)).To(Succeed())
	w.Expect(w.shell.run(w.ctx, w.WithT, commands[3])).To(ContainSubstring("ready-git"))

	for name := range w.recorded {
		w.await(name, func(g Gomega, stack *pulumiv1.Stack) {
			g.Expect(conditions.IsReady(stack)).To(BeTrue())
			g.Expect(stack.Status.History).To(HaveLen(1), "it is taken over")
		})
	}
	for name := range w.inPhases(initialising, updating, retrying) {
		w.await(name, func(g Gomega, stack *pulumiv1.Stack) {
			g.Expect(conditions.IsReady(stack)).To(BeTrue(), "%s: %v", name, stack.Status.Conditions)
			g.Expect(stack.Status.LastUpdate.Message).NotTo(ContainSubstring("\x1b"))
		})
	}
	for name := range w.inPhases(failed) {
		w.await(name, func(g Gomega, stack *pulumiv1.Stack) {
			for _, condition := range []string{meta.ReadyCondition, meta.StalledCondition} {
				g.Expect(conditions.GetMessage(stack, condition)).To(And(ContainSubstring("error: the bucket is somebody else's"), Not(ContainSubstring("\x1b"))))
			}
			g.Expect(conditions.Has(stack, meta.ReconcilingCondition)).To(BeFalse())
		})
	}
	for name := range w.inPhases(deleting) {
		w.Eventually(func() bool {
			return apierrors.IsNotFound(system.Client.Get(w.ctx, keyOf(name), &pulumiv1.Stack{}))
		}).Should(BeTrue(), name)
	}
	for name, recorded := range w.recorded {
		stack := w.stack(name)
		w.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded), "nothing runs because the controller changed")
		w.Expect(stack.Finalizers).To(ConsistOf(pulumiv1.Finalizer))
		update := &autov1alpha1.Update{}
		w.Expect(system.Client.Get(w.ctx, keyOf(recorded), update)).To(Succeed(), "finished Updates stay")
	}
	for _, name := range w.running {
		stopped := &autov1alpha1.Update{}
		w.Expect(system.Client.Get(w.ctx, keyOf(name), stopped)).To(Succeed())
		w.Expect(stopped.WasInterrupted()).To(BeTrue(), name)
	}
	program := &pulumiv1.Program{}
	w.Expect(system.Client.Get(w.ctx, keyOf("app"), program)).To(Succeed())
	w.Expect(program.Status.Artifact.URL).To(HavePrefix("program://"))
	w.Expect(conditions.IsReady(program)).To(BeTrue())
	checklist := commandsOf(w.WithT, "Checklist")
	w.Expect(checklist).To(HaveLen(2))
	w.expectChecklist(w.shell.run(w.ctx, w.WithT, checklist[0]))
	w.Expect(w.shell.run(w.ctx, w.WithT, checklist[1])).To(ContainSubstring("succeeded " + w.sourceRevision))
}

// expectChecklist checks what the comments of the checklist promise.
func (w *walk) expectChecklist(output string) {
	w.t.Helper()
	w.Expect(output).To(MatchRegexp(`(?m)^` + operatorNamespace + ` +pulumi-kubernetes-operator +0/0 `))
	w.Expect(regexp.MustCompile(`(?m)^(\S+\.pulumi\.com) `).FindAllString(output, -1)).To(HaveLen(6), output)
	w.Expect(output).To(ContainSubstring("approvals.auto.pulumi.com"))
	for name, recorded := range w.recorded {
		w.Expect(output).To(MatchRegexp(`(?m)^` + namespace + ` +` + name + ` .* True\b`))
		w.Expect(output).To(MatchRegexp(`(?m)^` + namespace + ` +` + recorded + ` +\S+ +False +False +True\b`))
	}
	w.Expect(output).To(MatchRegexp(`(?m)^NAMESPACE .* PROGRESSING +FAILED +COMPLETE\b`))
	w.Expect(output).To(ContainSubstring("No resources found"), "this system has no pods")
}

func (w *walk) walkBack() {
	w.leaveObjectsOfThisController()
	commands := commandsOf(w.WithT, "Rolling back")
	w.Expect(commands).To(HaveLen(5))
	w.stopWhenNothingRuns(commands[0])
	handedBack := w.shell.run(w.ctx, w.WithT, commands[1])
	w.Expect(handedBack).To(And(
		ContainSubstring("Stack apps/ready-git: would be handed back, Ready=True ProcessingCompleted"),
		ContainSubstring("Stack apps/ready-git: handed back, Ready=True ProcessingCompleted"),
		ContainSubstring("Stack apps/failed-flux: handed back, Stalled=True UpdateFailed"),
		ContainSubstring("Stack apps/waiting-git: handed back, Reconciling=True StackProcessing"),
		MatchRegexp(`(?m)^Stack apps/ready-suspended: stop: the operator does not know spec.suspend, .* --accept=Stack/apps/ready-suspended$`),
		ContainSubstring("1 objects forbid what the operator will do with them"),
		ContainSubstring("Stack apps/ready-suspended: note: the operator does not know spec.suspend"),
		ContainSubstring("Program apps/app: handed back"),
		Not(ContainSubstring("somebody else's")),
	))
	_, handedBack, _ = strings.Cut(handedBack, "exit code 1") // of the dry run
	w.Expect(handedBack).NotTo(ContainSubstring("exit code"))
	w.Expect(strings.Count(w.shell.run(w.ctx, w.WithT, commands[2]), "No resources found")).To(Equal(2))
	generations := w.generations()
	w.shell.run(w.ctx, w.WithT, commands[3])
	w.Expect(w.shell.run(w.ctx, w.WithT, commands[4])).To(ContainSubstring("ready-git"))

	program := &pulumiv1.Program{}
	w.Expect(system.Client.Get(w.ctx, keyOf("app"), program)).To(Succeed())
	w.Expect(w.operator.SaveProgram(w.ctx, program)).To(Succeed())
	w.Expect(program.Status.Conditions).To(BeEmpty())
	for name, commit := range w.inPhases(ready, initialising, updating, retrying, failed) {
		w.Expect(operator.IsSynced(w.stack(name), commit)).To(BeTrue(), "the operator runs nothing for %s", name)
	}
	for name := range generations {
		w.operatorGoesOn(name)
	}
	w.Expect(w.generations()).To(Equal(generations), "the definitions of the operator are no edit")
	w.updatesCanGo()
	w.runListed(handedBack)
}

// runListed runs the commands that migrate back lists for what stays.
func (w *walk) runListed(output string) {
	w.t.Helper()
	var commands []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "kubectl ") {
			commands = append(commands, line)
		}
	}
	w.shell.run(w.ctx, w.WithT, strings.Join(commands, ""))
	for _, command := range []string{"get stacks --all-namespaces -o jsonpath={.items[*].metadata.annotations}", "get secrets,leases,clusterroles,crds --all-namespaces"} {
		left, err := system.ControlPlane.Kubectl(w.ctx, strings.Fields(command)...)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(left).NotTo(Or(ContainSubstring("pulumi.com/deployed-stack"), ContainSubstring("-rpc "), ContainSubstring("stack-controller"),
			ContainSubstring("approvals.auto")), command)
	}
}

// stopWhenNothingRuns runs the commands that stop the controller. It repeats them if a failing Stack started an update at the last moment.
func (w *walk) stopWhenNothingRuns(commands string) {
	w.t.Helper()
	running, _, _ := strings.Cut(commands, "\n")
	for range 5 {
		w.Eventually(func() string { return w.shell.run(w.ctx, w.WithT, running) }).Should(BeEmpty())
		w.shell.run(w.ctx, w.WithT, commands)
		w.Expect(system.StopController()).To(Succeed())
		if w.shell.run(w.ctx, w.WithT, running) == "" {
			return
		}
		w.Expect(system.StartController(w.ctx)).To(Succeed())
	}
	w.t.Fatal("there is always something that runs")
}

// operatorGoesOn writes what the operator writes when it finds the Stack, runs an update and ends it.
func (w *walk) operatorGoesOn(name string) {
	w.t.Helper()
	stack := w.stack(name)
	w.Expect(stack.Spec.Suspend).To(BeFalse())
	operator.MarkReconciling(stack, "StackProcessing", "stack is being processed")
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: stack.Generation, Name: name + "-1"}
	w.Expect(w.operator.SaveStatus(w.ctx, stack)).To(Succeed(), name)
	w.Expect(w.conditionsOf(name)).To(ConsistOf("Ready=NotReadyInProgress", "Reconciling=StackProcessing"))
	_, err := w.operator.ApplyWorkspace(w.ctx, stack)
	if !apierrors.IsForbidden(err) {
		w.Expect(err).NotTo(HaveOccurred())
	}
	stack.Status.CurrentUpdate = nil
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Generation: stack.Generation, Name: name + "-1", State: pulumiv1.StackUpdateSucceeded}
	operator.MarkReady(stack)
	w.Expect(w.operator.SaveStatus(w.ctx, stack)).To(Succeed(), name)
	w.Expect(w.conditionsOf(name)).To(ConsistOf("Ready=ProcessingCompleted"))
	w.Expect(w.stack(name).Status.CurrentUpdate).To(BeNil())
	w.Expect(w.stack(name).Status.LastUpdate.Message).To(BeEmpty())
	// The operator adds its finalizer with an update of the whole object.
	stack.Annotations = map[string]string{"test/update": "whole"}
	w.Expect(system.Client.Update(w.ctx, stack, client.FieldOwner(operator.Owner))).To(Succeed())
}

// updatesCanGo deletes all Updates. No finalizer may be left that only stack-controller would remove.
func (w *walk) updatesCanGo() {
	w.t.Helper()
	w.Expect(system.Client.DeleteAllOf(w.ctx, &autov1alpha1.Update{}, client.InNamespace(namespace))).To(Succeed())
	w.Eventually(func(g Gomega) {
		updates := &autov1alpha1.UpdateList{}
		g.Expect(system.Client.List(w.ctx, updates, client.InNamespace(namespace))).To(Succeed())
		g.Expect(updates.Items).To(BeEmpty())
	}).Should(Succeed())
}

func (w *walk) generations() map[string]int64 {
	w.t.Helper()
	stacks := &pulumiv1.StackList{}
	w.Expect(system.Client.List(w.ctx, stacks, client.InNamespace(namespace))).To(Succeed())
	generations := map[string]int64{}
	for _, stack := range stacks.Items {
		generations[stack.Name] = stack.Generation
	}
	return generations
}

func (w *walk) conditionsOf(name string) (shown []string) {
	w.t.Helper()
	for _, condition := range w.stack(name).Status.Conditions {
		shown = append(shown, condition.Type+"="+condition.Reason)
	}
	return shown
}

func keyOf(name string) client.ObjectKey { return client.ObjectKey{Namespace: namespace, Name: name} }

func (w *walk) stack(name string) *pulumiv1.Stack {
	w.t.Helper()
	stack := &pulumiv1.Stack{}
	w.Expect(system.Client.Get(w.ctx, keyOf(name), stack)).To(Succeed(), name)
	return stack
}

func (w *walk) await(name string, is func(Gomega, *pulumiv1.Stack)) {
	w.t.Helper()
	w.Eventually(func(g Gomega) {
		stack := &pulumiv1.Stack{}
		g.Expect(system.Client.Get(w.ctx, keyOf(name), stack)).To(Succeed())
		is(g, stack)
	}).Should(Succeed(), name)
}

// guide is the page whose commands are run, relative to the root of the repository.
const guide = "docs/guides/migration.md"

var shellBlock = regexp.MustCompile("(?ms)^ *```sh\n(.*?)^ *```$")

// commandsOf returns the blocks of shell commands in a section of the guide, in order.
func commandsOf(g *WithT, section string) (blocks []string) {
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(guide)))
	g.Expect(err).NotTo(HaveOccurred())
	_, text, found := strings.Cut(string(content), "\n## "+section+"\n")
	g.Expect(found).To(BeTrue(), "no section %q", section)
	text, _, _ = strings.Cut(text, "\n## ")
	for _, match := range shellBlock.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

// shell runs commands of the guide as its reader would, with the placeholders replaced: a watch ends at once, and the commands go on when
// flux-pulumi fails, as in a terminal.
type shell struct {
	dir          string
	placeholders *strings.Replacer
}

// newShell returns a shell with a kubectl for the guide.
func newShell(ctx context.Context, g *WithT, dir, definitions string) *shell {
	kubectl, err := tools.Path(ctx, "kubectl", nil)
	g.Expect(err).NotTo(HaveOccurred())
	script := fmt.Sprintf(`#!/bin/bash
set -eu
args=()
for arg in "$@"; do
	[[ $arg == --watch ]] || args+=("$arg")
done
exec %q "${args[@]}"
`, kubectl)
	commandLine, err := programs.Path(ctx, programs.CommandLine, nil)
	g.Expect(err).NotTo(HaveOccurred())
	bin := filepath.Join(dir, "bin")
	g.Expect(os.MkdirAll(bin, 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(bin, "kubectl"), []byte(script), 0o755)).To(Succeed())
	script = fmt.Sprintf("#!/bin/bash\n%q \"$@\" || echo \"exit code $?\"\n", commandLine)
	g.Expect(os.WriteFile(filepath.Join(bin, "flux-pulumi"), []byte(script), 0o755)).To(Succeed())
	return &shell{dir: dir, placeholders: strings.NewReplacer(
		"stack/NAME", "stack/ready-flux --namespace "+namespace, "stack NAME", "stack ready-flux --namespace "+namespace,
		"deployment NAME --namespace NAMESPACE", "deployment pulumi-kubernetes-operator --namespace "+operatorNamespace,
		"pods --namespace NAMESPACE", "pods --namespace "+operatorNamespace,
		"--all --namespace NAMESPACE", "--all --namespace "+namespace,
		"NAMESPACE/NAME", namespace+"/ready-suspended",
		"CRDS", definitions,
	)}
}

// run runs a block of commands and returns its output. A block that does not end fails.
func (s *shell) run(ctx context.Context, g *WithT, block string) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	block = s.placeholders.Replace(block)
	g.Expect(block).NotTo(MatchRegexp(`(?m)[ /=](NAME|NAMESPACE|CRDS)( |$)`))
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-c", block)
	cmd.WaitDelay = time.Second
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.ControlPlane.KubeconfigPath, "PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"),
		"KUBECACHEDIR="+filepath.Join(s.dir, "cache"))
	output, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s\n%s", block, output)
	return string(output)
}
