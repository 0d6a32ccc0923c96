package cli_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func TestPlanIsShown(t *testing.T) {
	golden(t, "plan-show", 0, "plan", "show", "portal", "-n", recorded)
}

func TestRightsForOutputsArePrinted(t *testing.T) {
	golden(t, "outputs-grant", 0, "outputs", "grant", "portal", "-n", recorded)
	golden(t, "outputs-grant-nothing", 1, "outputs", "grant", "network", "-n", recorded)
}

func TestPlansAreDecidedOnTheCommandLine(t *testing.T) {
	suite.Long(t, "a real plan from its making to its end; the controller's part is TestPlanWaitsForItsApprovalAndIsCarriedOut, see TestPlanIsShown")
	p := begin(t, "plans")
	p.says(1, "plan show plans", `the Stack "plans" has no plan`)
	p.InstallProvider(p.Name)
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Approval = &pulumiv1.ApprovalPolicy{} })
	pending := func(s *pulumiv1.Stack) bool {
		return s.Status.Plan != nil && s.Status.Plan.State == pulumiv1.PlanPending && s.Status.CurrentUpdate == nil
	}
	p.commit(pair(p.Name, "a", "old"))
	p.says(3, "reconcile stack plans --with-source", "waits for approval")
	plan := p.Await(pending).Status.Plan

	p.says(2, "plan approve plans", "say which plan with --digest")
	p.says(3, "plan approve plans --digest sha256:other", "is another one by now")
	answer := ask(p.Fixture, "plan", "show", p.Name, "--diff")
	p.Expect(answer.code).To(BeZero(), answer.err)
	p.Expect(answer.out).To(And(ContainSubstring(plan.Digest), ContainSubstring(`+ content: "a"`)))
	p.says(0, "plan reject plans --digest "+plan.Digest, "created Approval", "is rejected")
	p.Await(func(s *pulumiv1.Stack) bool { return conditions.GetReason(s, "Ready") == pulumiv1.PlanRejectedReason })
	p.Expect(ask(p.Fixture, "explain", "stack", p.Name).out).To(ContainSubstring("PlanRejected"))
	p.says(3, "plan approve plans --digest "+plan.Digest, "the Approval does not count", "rejected plan", "only another plan can be approved")

	p.commit(pair(p.Name, "b", "old"))
	p.says(3, "reconcile stack plans --with-source", "waits for approval")
	plan = p.Await(func(s *pulumiv1.Stack) bool { return pending(s) && s.Status.Plan.Name != plan.Name }).Status.Plan
	p.says(0, "plan approve plans --reason CHG-42 --digest "+plan.Digest, "created Approval", "is approved (+2 ~0 +-0 -0)")
	stack := p.Await(systemtest.Showing(`"b"`))
	p.Expect(stack.Status.Plan.Approvals).To(HaveExactElements(HaveField("Reason", "CHG-42")))
}

// Whoever may delete and create Secrets must not decide what an approver sees.
func TestTextOfAPlanThatSomebodyReplacedIsNotShown(t *testing.T) {
	suite.Long(t, "a plan that is replaced; see TestPlanIsShown")
	p := begin(t, "replaced-text")
	p.InstallProvider(p.Name)
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Approval = &pulumiv1.ApprovalPolicy{} })
	p.commit(pair(p.Name, "a", "old"))
	p.says(3, "reconcile stack replaced-text --with-source", "waits for approval")
	plan := p.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.Plan != nil && s.Status.Plan.State == pulumiv1.PlanPending && s.Status.CurrentUpdate == nil
	}).Status.Plan
	secret := &corev1.Secret{}
	p.Get(plan.Name+"-plan-0", secret)
	p.Succeed(system.Client.Delete(p.Context(), secret))
	text := &bytes.Buffer{}
	zip := gzip.NewWriter(text)
	_, _ = zip.Write([]byte("+ create harmless\n"))
	p.Succeed(zip.Close())
	forged := &corev1.Secret{
		Namespace: secret.Namespace, Name: secret.Name, Labels: secret.Labels, OwnerReferences: secret.OwnerReferences,
		Immutable: secret.Immutable, Data: maps.Clone(secret.Data),
	}
	forged.Data[autov1alpha1.PlanTextKey] = text.Bytes()
	p.Create(forged)
	answer := ask(p.Fixture, "plan", "show", p.Name, "--diff")
	p.Expect(answer.code).To(Equal(3))
	p.Expect(answer.out).NotTo(ContainSubstring("harmless"))
	p.Expect(answer.err).To(ContainSubstring("does not have the text that was saved with plan"))
}

// An approver must not take the beginning of a plan for all of it. No controller reconciles these objects.
func TestPlanThatIsNotShownToItsEndIsAFailure(t *testing.T) {
	suite.Long(t, "a plan of many resources; see TestPlanIsShown")
	t.Parallel()
	p := systemtest.New(t, system, "long-plan", systemtest.Patience)
	p.Enter(nil)
	text := &bytes.Buffer{}
	zip := gzip.NewWriter(text)
	for range 65 {
		_, _ = zip.Write(bytes.Repeat([]byte("+ create harmless\n"), 1<<20/len("+ create harmless\n")+1))
	}
	_, _ = zip.Write([]byte("- delete everything\n"))
	p.Succeed(zip.Close())
	meta := p.Meta("long-plan")
	meta.Labels = map[string]string{"recorded": "true"}
	saved := &autov1alpha1.SavedPlan{TextDigest: fmt.Sprintf("sha256:%x", sha256.Sum256(text.Bytes())), Secrets: []string{"long-plan"}}
	saved.Digest = saved.CalculateDigest()
	update := &autov1alpha1.Update{ObjectMeta: meta, Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypePreview, StackName: "dev"}}
	stack := &pulumiv1.Stack{ObjectMeta: meta, Spec: pulumiv1.StackSpec{Stack: "dev"}}
	p.Create(update, stack, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{autov1alpha1.PlanTextKey: text.Bytes()}})
	update.Status.Plan = saved
	p.Succeed(system.Client.Status().Update(p.Context(), update))
	stack.Status.Plan = &pulumiv1.PlanStatus{Name: update.Name, Digest: saved.Digest, State: pulumiv1.PlanPending, Operation: pulumiv1.ApprovedUp}
	p.Succeed(system.Client.Status().Update(p.Context(), stack))
	answer := ask(p, "plan", "show", "long-plan", "--diff")
	p.Expect(answer.code).To(Equal(3), answer.err)
	p.Expect(answer.err).To(ContainSubstring("do not approve what you have not seen"))
	p.Expect(strings.Contains(answer.out, "everything")).To(BeFalse())
}

// fixture is a fixture with a Stack that follows a git repository and is ready.
type fixture struct {
	*systemtest.Fixture
	app *localsystem.App
}

func begin(t *testing.T, name string) *fixture {
	t.Helper()
	t.Parallel() // the test mostly waits
	p := &fixture{Fixture: systemtest.New(t, system, name, systemtest.Patience)}
	app, err := system.Deploy(p.Context(), name, systemtest.Returning(name, 1))
	p.Succeed(err)
	p.app = app
	p.Await(systemtest.Showing("1"))
	return p
}

// commit pushes the files and returns the commit. It does not announce the commit.
func (p *fixture) commit(files gitserver.Files) string {
	p.Helper()
	sha, err := p.app.Repository.Commit(files)
	p.Succeed(err)
	return sha
}

// says runs the command line tool and expects the exit code, and these messages in this order.
func (p *fixture) says(code int, args string, told ...string) {
	p.Helper()
	answer := ask(p.Fixture, strings.Fields(args)...)
	p.Expect(answer.code).To(Equal(code), answer.err)
	rest := answer.err
	for _, text := range told {
		_, after, found := strings.Cut(rest, text)
		p.Expect(found).To(BeTrue(), "%q is not said in its turn:\n%s", text, answer.err)
		rest = after
	}
	p.Expect(answer.out).To(BeEmpty())
}

func TestReconcileFetchesTheSourceRunsTheUpdateAndSaysWhatCameOfIt(t *testing.T) {
	p := begin(t, "reconcile")
	p.InstallProvider(p.Name)
	p.commit(systemtest.Returning(p.Name, 2))
	p.says(0, "reconcile stack reconcile --with-source",
		"► annotating GitRepository reconcile", "✔ fetched revision main@sha1:", "► annotating Stack", "◎ waiting for Stack", "✔ Stack reconcile is ready: applied revision main@sha1:")
	p.Await(systemtest.Showing("2"))

	p.commit(systemtest.Program(p.Name, "outputs:", "  x: ${nothing}"))
	p.says(3, "reconcile stack reconcile --with-source", "✗ Stack \"reconcile\" is not ready", "nothing")

	p.commit(systemtest.Program(p.Name, "resources:", "  slow:", "    type: test:index:Sleep", "    properties: {seconds: 600}", "    options: {version: 0.1.0}"))
	p.says(4, "reconcile stack reconcile --with-source --timeout 4s", "✔ fetched revision", "is not ready after 4s: ")
	p.Await(func(stack *pulumiv1.Stack) bool {
		update := &autov1alpha1.Update{}
		current := stack.Status.CurrentUpdate
		return current != nil && system.Client.Get(p.Context(), p.Key(current.Name), update) == nil && update.Status.State == autov1alpha1.UpdateStateRunning
	})
	out, ended := &buffer{}, make(chan int)
	go func() { ended <- follow(p.Context(), out, "logs", "stack", p.Name, "-n", p.Name) }()
	p.Eventually(out.String).Should(MatchRegexp(`\+ +test:index:Sleep slow creating`))
	p.says(0, "cancel stack reconcile", "waiting for update", "✔ update", "ended as Cancelled", "✔ Stack reconcile is suspended")
	p.Eventually(ended).Should(Receive(Equal(0)), "the log ends with the update")
	p.Expect(out.String()).To(HaveSuffix("\n"))
	p.says(0, "cancel stack reconcile", "✔ no update of Stack reconcile is running")
	p.says(1, "reconcile stack reconcile", "✗ the Stack \"reconcile\" is suspended: resume it first")
	p.says(0, "suspend stack reconcile", "is suspended already")

	sha := p.commit(systemtest.Returning(p.Name, 3))
	p.Succeed(system.Fetch(p.Context(), p.app))
	p.Eventually(func() string { return ask(p.Fixture, "tree", "stack", p.Name).out }).Should(HavePrefix("GitRepository reconcile/reconcile  Ready main@sha1:" + sha[:8]))
	p.says(0, "resume stack --all", "► resuming Stack reconcile", "✔ Stack reconcile is ready")
	p.says(0, "resume stack reconcile", "is not suspended")
	p.says(2, "resume stack", "name Stacks, or use --all")
}
