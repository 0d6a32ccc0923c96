package tenancy_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
)

// The namespaces of the attacker.
const (
	attackerName = "attacker"
	// crowdName is the namespace with more objects than any tenant needs, and with Stacks whose servers hang. They delay their own
	// namespace.
	crowdName = "attacker-crowd"
	// agentsName is the namespace with the attacker's own agents.
	agentsName = "attacker-agents"
	// hangingName is the namespace with agents and downloads that hang. They delay all others of their namespace.
	hangingName = "attacker-hanging"
)

// quietTime is how long a refusal has to remain unchanged.
const quietTime = 3 * time.Second

// attack is something that a tenant tries. The page docs/security.md is generated from these, so all fields but run are plain strings.
type attack struct {
	name string
	// promise is the promise of tests/contract/security that the attack tries to break.
	promise string
	// does describes what the attacker does, and sees describes the result. sees names every reason, code and field that the attack may
	// show. The attack records what it found with saw: it has to find everything that sees names, or at least one of them if sees contains
	// "or".
	does, sees string
	// in is the namespace of the attack, if it is not attackerName. An attack that keeps the controller busy delays its own namespace.
	in string
	// heavy is true for an attack that keeps the API server busy. Too many of them at once would test the machine.
	heavy bool
	run   func(a *attacker)
}

// heavyAtOnce is how many heavy attacks run at the same time.
const heavyAtOnce = 2

// attacker carries out one attack.
type attacker struct {
	*WithT
	t   *testing.T
	ctx context.Context
	*tenant
	victim *victim
	// means has what the attacker can do.
	means *pressure.Tenant
	// name is the name of the attack, which is also the name of the objects that it creates.
	name string
	// created is the number of numbered objects.
	created int
	// seen has the results that the attack has shown, in the words of the page.
	seen map[string]bool
}

// attacks returns all attacks, in the order of the page.
func attacks() []attack {
	return slices.Concat(sourceAttacks, forgeryAttacks, referenceAttacks, networkAttacks, agentAttacks, identityAttacks, nameAttacks, podAttacks,
		expressionAttacks, rolloutAttacks, sizeAttacks, countAttacks, archiveAttacks, crowdAttacks)
}

func TestTenants(t *testing.T) {
	ctx := t.Context()
	g := NewWithT(t)
	image, err := images.Program(ctx, "tests/e2e/tenancy/fakeagent", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(system.Cluster.LoadImage(ctx, image.Tar)).To(Succeed())
	giveFluxRoles(ctx, g)
	victim := newVictim(t)
	tenant := newTenant(ctx, g, attackerName, crowdName, agentsName, hangingName)
	tenant.expectRights(ctx, g, victimName)
	limits := watchController(ctx, t, g)
	means := &pressure.Tenant{Client: tenant.client, Namespace: attackerName, Image: image.Reference}
	serveFromTenant(ctx, g, means)
	means.Registry, err = ociregistry.Start(ctx, system.Cluster.ControlPlane)
	g.Expect(err).NotTo(HaveOccurred())

	heavy := make(chan struct{}, heavyAtOnce)
	t.Run("attacks", func(t *testing.T) {
		t.Run("victim", func(t *testing.T) {
			t.Parallel()
			for i := 1; i <= 3; i++ {
				victim.commit(t.Context(), NewWithT(t), i)
			}
		})
		for _, attack := range attacks() {
			t.Run(attack.name, func(t *testing.T) {
				t.Parallel()
				if attack.heavy {
					heavy <- struct{}{}
					defer func() { <-heavy }()
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience())
				defer cancel()
				a := &attacker{WithT: NewWithT(t), t: t, ctx: ctx, tenant: tenant, victim: victim, means: means, name: attack.name,
					seen: map[string]bool{}}
				if attack.in != "" {
					a.means = a.in(attack.in)
				}
				attack.run(a)
				a.expectAsWritten(attack.sees)
			})
		}
	})
	victim.expectUnharmed(ctx, g)
	victim.commit(ctx, g, 100)
	victim.expectUnharmed(ctx, g)
	expectNoCanaries(ctx, g, tenant)
	limits.expectKept(ctx, g)
}

func TestEveryAttackHasANameOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	names := map[string]bool{}
	for _, attack := range attacks() {
		g.Expect(names).NotTo(HaveKey(attack.name))
		names[attack.name] = true
		g.Expect(len(attack.name)).To(BeNumerically("<=", 40), attack.name)
		g.Expect(attack.promise).NotTo(BeEmpty(), attack.name)
	}
	g.Expect(len(names)).To(BeNumerically(">=", 40))
}

// stalled is the word of the page for a condition Stalled.
const stalled = "Stalled"

// saw records a result that a tenant can see: a reason of a condition, a code, a field, or stalled.
func (a *attacker) saw(terms ...string) {
	for _, term := range terms {
		a.seen[term] = true
	}
}

// term matches the words of the page that name a result.
var term = regexp.MustCompile("`([A-Za-z0-9]+)`|" + stalled)

// expectAsWritten checks that the results that the attack has shown are those that the page describes.
func (a *attacker) expectAsWritten(sees string) {
	a.t.Helper()
	a.Expect(a.seen).NotTo(BeEmpty(), "the attack does not show what comes of it")
	written := map[string]bool{}
	for _, found := range term.FindAllStringSubmatch(sees, -1) {
		written[cmp.Or(found[1], found[0])] = true
	}
	for what := range a.seen {
		a.Expect(written).To(HaveKey(what), "the page does not say what was seen")
	}
	if !strings.Contains(sees, " or ") {
		a.Expect(a.seen).To(HaveLen(len(written)), "the page says what was not seen: %q", sees)
	}
}

// meta returns the metadata of an object with the name of the attack, in its namespace.
func (a *attacker) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: a.means.Namespace, Name: a.name}
}

// create creates an object as the attacker, who has the right to do so.
func (a *attacker) create(object client.Object) {
	a.t.Helper()
	a.Expect(a.client.Create(a.ctx, object)).To(Succeed(), "%T %s", object, object.GetName())
}

// newStack returns a Stack of the attacker without a source. It would run in a pod, like the Stacks of other tenants.
func (a *attacker) newStack(changes ...func(*pulumiv1.StackSpec)) *pulumiv1.Stack {
	stack := a.means.Stack(a.name)
	stack.Spec.WorkspaceTemplate.Spec.Image = system.Images.Pulumi.Reference
	for _, change := range changes {
		change(&stack.Spec)
	}
	return stack
}

// createStack creates the Stack that newStack returns.
func (a *attacker) createStack(changes ...func(*pulumiv1.StackSpec)) *pulumiv1.Stack {
	a.t.Helper()
	stack := a.newStack(changes...)
	a.create(stack)
	return stack
}

// numbered creates the Stack with the next number added to its name.
func (a *attacker) numbered(stack *pulumiv1.Stack) *pulumiv1.Stack {
	a.t.Helper()
	stack.Name += fmt.Sprint("-", a.created)
	a.created++
	a.create(stack)
	return stack
}

// refused returns an attack with a Stack that must not run.
func refused(want refusal, changes ...func(*pulumiv1.StackSpec)) func(*attacker) {
	return func(a *attacker) { a.expectRefused(a.createStack(changes...), want) }
}

// refusedProgram returns an attack with a Stack that must not run, although its Program exists.
func refusedProgram(want refusal, change func(*pulumiv1.StackSpec)) func(*attacker) {
	return func(a *attacker) {
		a.newProgram()
		a.expectRefused(a.createStack(fromProgram(a.name), change), want)
	}
}

func literal(value string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
}

// fromFlux makes the source of a Stack an object of Flux.
func fromFlux(kind, namespace, name string) func(*pulumiv1.StackSpec) {
	return func(spec *pulumiv1.StackSpec) {
		spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
			APIVersion: sourcev1.GroupVersion.String(), Kind: kind, Namespace: namespace, Name: name,
		}}
	}
}

// fromProgram makes the source of a Stack a Program of the name.
func fromProgram(name string) func(*pulumiv1.StackSpec) {
	return func(spec *pulumiv1.StackSpec) { spec.ProgramRef = &pulumiv1.ProgramReference{Name: name} }
}

// fromGit makes the source of a Stack a git repository.
func fromGit(url string) func(*pulumiv1.StackSpec) {
	return func(spec *pulumiv1.StackSpec) { spec.ProjectRepo, spec.Branch = url, "main" }
}

// newProgram creates a trivial Program, unless it exists.
func (a *attacker) newProgram() *pulumiv1.Program {
	program := &pulumiv1.Program{ObjectMeta: a.meta()}
	program.Program.Outputs = jsonValues(map[string]any{"x": 1})
	a.Expect(client.IgnoreAlreadyExists(a.client.Create(a.ctx, program))).To(Succeed())
	return program
}

// eventually retries the assertions until they hold.
func (a *attacker) eventually(assertions func(g Gomega)) {
	a.t.Helper()
	a.Eventually(assertions).WithContext(a.ctx).WithTimeout(patience()).WithPolling(pollInterval).Should(Succeed())
}

// await waits until the assertions hold for the object, as the attacker reads it.
func await[T client.Object](a *attacker, object T, assertions func(g Gomega, object T)) {
	a.t.Helper()
	a.eventually(func(g Gomega) {
		g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		assertions(g, object)
	})
}

// refusal is how a Stack reports that it is not run.
type refusal struct {
	// reasons are the expected reasons of the condition Ready, one of which has to occur. An empty list is not allowed.
	reasons []string
	// says is a part of the message.
	says string
	// stalled means that the condition Stalled is expected.
	stalled bool
}

// expectRefused waits until the Stack reports why it is not run, and checks that this does not change and that the Stack was never run. It
// returns the message.
func (a *attacker) expectRefused(stack *pulumiv1.Stack, want refusal) string {
	a.t.Helper()
	a.Expect(want.reasons).NotTo(BeEmpty(), "a refusal has a reason")
	notRun := func(g Gomega) {
		g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		g.Expect(apimeta.IsStatusConditionTrue(stack.Status.Conditions, meta.ReadyCondition)).To(BeFalse(), "%+v", stack.Status.Conditions)
		g.Expect(stack.Status.Outputs).To(BeEmpty())
		g.Expect(stack.Status.LastAppliedRevision).To(BeEmpty())
	}
	reason, message := "", ""
	a.eventually(func(g Gomega) {
		notRun(g)
		ready := apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(ready.Status).To(Equal(metav1.ConditionFalse), "%+v", stack.Status.Conditions)
		g.Expect(want.reasons).To(ContainElement(ready.Reason), ready.Message)
		g.Expect(ready.Message).To(ContainSubstring(want.says))
		g.Expect(apimeta.IsStatusConditionTrue(stack.Status.Conditions, meta.StalledCondition)).To(Equal(want.stalled), "%+v", stack.Status.Conditions)
		reason, message = ready.Reason, ready.Message
	})
	a.sawRefusal(reason, want)
	a.Consistently(notRun).WithContext(a.ctx).WithTimeout(quietTime).WithPolling(quietTime / 3).Should(Succeed())
	a.Expect(len(message)).To(BeNumerically("<=", 4<<10), "a message is bounded")
	return message
}

// sawRefusal records the reason for which a Stack is not run.
func (a *attacker) sawRefusal(reason string, want refusal) {
	a.saw(reason)
	if want.stalled {
		a.saw(stalled)
	}
}

// expectUpdateRefused waits until the Update reports one of the reasons for which it does not run or has failed, and checks that it does
// not run. It returns the status.
func (a *attacker) expectUpdateRefused(update *autov1alpha1.Update, reasons ...string) string {
	a.t.Helper()
	check := func(g Gomega) {
		g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(update.Status.State).NotTo(Or(Equal(autov1alpha1.UpdateStateRunning), Equal(autov1alpha1.UpdateStateSucceeded)))
	}
	reason := ""
	a.eventually(func(g Gomega) {
		check(g)
		decides := autov1alpha1.UpdateProgressing
		if update.HasFailed() {
			decides = autov1alpha1.UpdateFailed
		}
		condition := apimeta.FindStatusCondition(update.Status.Conditions, decides)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(reasons).To(ContainElement(condition.Reason), "%+v", update.Status)
		reason = condition.Reason
	})
	a.saw(reason)
	a.Consistently(check).WithContext(a.ctx).WithTimeout(quietTime).WithPolling(quietTime / 3).Should(Succeed())
	return fmt.Sprintf("%+v", update.Status)
}

// expectForbidden checks that the API server rejected the request of the attacker.
func (a *attacker) expectForbidden(err error) {
	a.t.Helper()
	a.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	a.saw(string(metav1.StatusReasonForbidden))
}

// memoryLimit is the memory that the controller has in every installation, in bytes.
const memoryLimit = 512 << 20

// controllerLimits checks the limits of the controller's container.
type controllerLimits struct {
	t         *testing.T
	pod       types.UID
	container cluster.Container
}

// watchController finds the container of the controller, and checks that the kernel enforces the memory limit of the manifest.
func watchController(ctx context.Context, t *testing.T, g *WithT) *controllerLimits {
	pod := runningController(ctx, g)
	g.Expect(pod.Spec.Containers[0].Resources.Limits.Memory().Value()).To(BeEquivalentTo(memoryLimit))
	l := &controllerLimits{t: t, pod: pod.UID}
	var err error
	l.container, err = cluster.FindContainer(pod, pod.Spec.Containers[0].Name)
	g.Expect(err).NotTo(HaveOccurred())
	limit, _, err := l.container.MemoryLimit()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(limit).To(BeEquivalentTo(memoryLimit))
	return l
}

// expectKept checks that the pod of the controller is still the same, that its container was never restarted, and that it had memory left.
func (l *controllerLimits) expectKept(ctx context.Context, g *WithT) {
	pod := runningController(ctx, g)
	g.Expect(pod.UID).To(Equal(l.pod))
	g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "%+v", pod.Status.ContainerStatuses[0].LastTerminationState)
	_, peak, err := l.container.MemoryLimit()
	g.Expect(err).NotTo(HaveOccurred())
	_, anonymous, err := l.container.Memory()
	g.Expect(err).NotTo(HaveOccurred())
	l.t.Logf("memory of the controller: %d MiB at most, with what the kernel can drop; %d MiB in its process now", peak>>20, anonymous>>20)
	g.Expect(anonymous).To(BeNumerically("<", memoryLimit))
}

func runningController(ctx context.Context, g *WithT) *corev1.Pod {
	pods := &corev1.PodList{}
	g.Expect(system.Client.List(ctx, pods, client.InNamespace(cluster.FluxNamespace), client.MatchingLabels{"app": podsystem.ControllerName})).To(Succeed())
	g.Expect(pods.Items).To(HaveLen(1))
	g.Expect(pods.Items[0].Status.ContainerStatuses).To(HaveLen(1))
	return &pods.Items[0]
}
