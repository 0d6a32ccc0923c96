package migrate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

const (
	digest = "sha256:44d554df090dcdeb9bae908cd38155c8c93db05f64dc72982027e8e1294af0d3"
	sha    = "2a63bbfc4a1d5e3ff6e0b2e7a4a1a6f1e2c9d3b4"
)

// kind is a kind of source, with what each of the two controllers records as its commit.
type kind struct {
	name                             string
	set                              func(*pulumiv1.StackSpec)
	commit, revision, operatorCommit string
}

var kinds = []kind{
	{"git", func(s *pulumiv1.StackSpec) {
		s.GitSource = pulumiv1.GitSource{ProjectRepo: "https://git.example.com/app", Branch: "main"}
	}, sha, "main@sha1:" + sha, sha},
	{"flux", func(s *pulumiv1.StackSpec) {
		s.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Name: "app"}}
	}, digest, "main@sha1:" + sha, "main@sha1:" + sha},
	{"program", func(s *pulumiv1.StackSpec) { s.ProgramRef = &pulumiv1.ProgramReference{Name: "app"} }, digest, "3", "3"},
}

// succeeded sets the status after a successful update, with all fields that this controller writes.
func succeeded(stack *pulumiv1.Stack, k kind) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	status := &stack.Status
	status.ObservedGeneration = stack.Generation
	status.LastHandledReconcileAt, status.LastHandledForceAt = "now", "now"
	status.Outputs = map[string]apiextensionsv1.JSON{"url": {Raw: []byte(`"https://example.com"`)}, "gone": {Raw: []byte(`{"a":1}`)}}
	status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "app", Runtime: "yaml"}
	status.Deployed, status.DeployedStack = true, "dev"
	status.LastAttemptedRevision, status.LastAppliedRevision = k.revision, k.revision
	status.VerifiedDigest, status.EarlierVerifiedDigests = digest, []string{digest}
	status.LastUpdate = &pulumiv1.StackUpdateStatus{
		Generation: stack.Generation, Name: "app-1", Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded,
		LastAttemptedCommit: k.commit, LastSuccessfulCommit: k.commit, Revision: k.revision, ContentDigest: digest, ReferencesDigest: "0123",
		LastResyncTime: now, ResourceChanges: map[string]int64{"create": 2},
	}
	status.History.Upsert(digest, now.Time, time.Second, "succeeded", nil)
	conditions.MarkTrue(stack, meta.ReadyCondition, pulumiv1.ProcessingCompletedReason, "applied revision %s", k.revision)
}

// failed sets the status after that many failures.
func failed(stack *pulumiv1.Stack, k kind, failures int64) {
	succeeded(stack, k)
	last := stack.Status.LastUpdate
	last.State, last.Failures, last.Message, last.Reason = pulumiv1.StackUpdateFailed, failures, "canary-of-a-message", "UpdateFailed"
	last.LastSuccessfulCommit, stack.Status.LastAppliedRevision = "", ""
}

var phases = map[string]struct {
	status func(*fixture, *pulumiv1.Stack, kind)
	ready  gomegatypes.GomegaMatcher
	// others are the conditions beside Ready.
	others []string
}{
	"initialising": {func(_ *fixture, stack *pulumiv1.Stack, _ kind) {
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: 1, Name: "app-1", Commit: digest, RequestedAt: "now"}
		conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "waiting for workspace readiness")
		conditions.MarkUnknown(stack, meta.ReadyCondition, pulumiv1.NotReadyInProgressReason, "waiting for workspace readiness")
	}, BeFalse(), []string{"Reconciling=StackProcessing"}},
	"updated": {func(s *fixture, stack *pulumiv1.Stack, k kind) {
		update := s.update(stack, "app-"+k.name)
		s.complete(update)
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: 1, Name: update.Name, Commit: k.commit, Revision: k.revision, ContentDigest: digest}
		conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "stack is being processed")
		conditions.MarkUnknown(stack, meta.ReadyCondition, pulumiv1.NotReadyInProgressReason, "stack is being processed")
	}, BeFalse(), []string{"Reconciling=StackProcessing"}},
	"retrying": {func(_ *fixture, stack *pulumiv1.Stack, k kind) {
		failed(stack, k, 1)
		conditions.MarkReconciling(stack, pulumiv1.RetryingAfterFailureReason, "up failed")
		conditions.MarkFalse(stack, meta.ReadyCondition, pulumiv1.RetryingAfterFailureReason, "up failed")
	}, BeFalse(), []string{"Reconciling=RetryingAfterFailure"}},
	"stalled": {func(_ *fixture, stack *pulumiv1.Stack, k kind) {
		failed(stack, k, 7)
		conditions.MarkStalled(stack, pulumiv1.UpdateFailedReason, "up failed (attempt 7)")
		conditions.MarkFalse(stack, meta.ReadyCondition, pulumiv1.UpdateFailedReason, "up failed (attempt 7)")
	}, BeFalse(), []string{"Stalled=UpdateFailed"}},
	"invalid": {func(_ *fixture, stack *pulumiv1.Stack, k kind) {
		succeeded(stack, k)
		conditions.MarkStalled(stack, pulumiv1.SpecInvalidReason, "two sources")
		conditions.MarkFalse(stack, meta.ReadyCondition, pulumiv1.SpecInvalidReason, "two sources")
	}, BeTrue(), nil},
	"ready": {func(_ *fixture, stack *pulumiv1.Stack, k kind) { succeeded(stack, k) }, BeTrue(), nil},
}

func TestOperatorCanWriteEveryStatusOnlyAfterItIsHandedBack(t *testing.T) {
	t.Run("a condition that it does not know", func(t *testing.T) {
		s := newFixture(t)
		stack := s.stack("stalled", kinds[0].set, func(stack *pulumiv1.Stack) { phases["stalled"].status(s, stack, kinds[0]) })
		operator.MarkReady(stack)
		s.Expect(s.operator.SaveStatus(s.ctx, stack)).To(Succeed())
		s.Expect(conditions.IsStalled(stack)).To(BeTrue(), "this is what the command is for")
		_, err := s.run()
		s.Expect(err).NotTo(HaveOccurred())
		s.read(stack)
		operator.MarkReady(stack)
		s.Expect(s.operator.SaveStatus(s.ctx, stack)).To(Succeed())
		s.Expect(shown(stack)).To(ConsistOf("Ready=ProcessingCompleted"))
	})
	t.Run("a condition that both have written", func(t *testing.T) {
		s := newFixture(t)
		left := func(name string) *pulumiv1.Stack {
			return s.stack(name, kinds[0].set, func(stack *pulumiv1.Stack) {
				conditions.MarkReconciling(stack, pulumiv1.StackProcessingReason, "stack is being processed: up by update app-1")
				conditions.MarkUnknown(stack, meta.ReadyCondition, pulumiv1.NotReadyInProgressReason, "stack is being processed: up by update app-1")
			})
		}
		goOn := func(stack *pulumiv1.Stack) error {
			operator.MarkReconciling(stack, "StackProcessing", "stack is being processed")
			s.Expect(s.operator.SaveStatus(s.ctx, stack)).To(Succeed())
			operator.MarkReady(stack)
			return s.operator.SaveStatus(s.ctx, stack)
		}
		s.Expect(goOn(left("left"))).To(MatchError(ContainSubstring("message: Required value")), "this is what the command is for")

		stack := left("handed-back")
		_, err := s.run()
		s.Expect(err).NotTo(HaveOccurred())
		s.read(stack)
		s.Expect(goOn(stack)).To(Succeed())
		s.Expect(shown(stack)).To(ConsistOf("Ready=ProcessingCompleted"))
	})
}

func TestEveryPhaseIsHandedBack(t *testing.T) {
	for name, phase := range phases {
		for _, k := range kinds {
			for _, deleting := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/deleting=%t", name, k.name, deleting), func(t *testing.T) {
					t.Parallel()
					s := newFixture(t)
					stack := s.stack("app", k.set, func(stack *pulumiv1.Stack) { phase.status(s, stack, k) })
					if deleting {
						s.Expect(admin.Delete(s.ctx, stack)).To(Succeed())
					}
					out, err := s.run()
					s.Expect(err).NotTo(HaveOccurred())
					s.Expect(out).To(ContainSubstring("Stack %s/app: handed back", s.namespace))
					s.Expect(out).NotTo(ContainSubstring("canary"))
					s.read(stack)
					s.Expect(conditions.IsReady(stack)).To(phase.ready)
					s.Expect(shown(stack)).To(ConsistOf(append(phase.others, "Ready="+conditions.GetReason(stack, meta.ReadyCondition))))
					s.onlyTheOperatorOwnsStatus(stack)
					s.operatorGoesOn(stack)
				})
			}
		}
	}
}

// operatorGoesOn lets the operator write several statuses, and checks that each one is exactly what the operator wrote.
func (s *fixture) operatorGoesOn(stack *pulumiv1.Stack) {
	s.t.Helper()
	for _, step := range []struct {
		change func()
		shows  []string
	}{
		{func() {
			operator.MarkReconciling(stack, "StackProcessing", "stack is being processed")
			stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: 1, Name: "app-2", Commit: sha}
		}, []string{"Ready=NotReadyInProgress", "Reconciling=StackProcessing"}},
		{func() {
			operator.MarkStalled(stack, "UpdateFailed", "up failed 3 times")
			stack.Status.CurrentUpdate = nil
			stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Generation: 1, Name: "app-2", State: pulumiv1.StackUpdateFailed, Message: "no", Failures: 3}
		}, []string{"Ready=NotReadyStalled", "Stalled=UpdateFailed"}},
		{func() {
			operator.MarkReady(stack)
			stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Generation: 1, Name: "app-3", State: pulumiv1.StackUpdateSucceeded, LastSuccessfulCommit: sha}
			stack.Status.Outputs = map[string]apiextensionsv1.JSON{"url": {Raw: []byte(`"https://example.org"`)}}
		}, []string{"Ready=ProcessingCompleted"}},
	} {
		step.change()
		wanted := stack.Status.DeepCopy()
		s.Expect(s.operator.SaveStatus(s.ctx, stack)).To(Succeed())
		s.read(stack)
		s.Expect(shown(stack)).To(ConsistOf(step.shows))
		s.Expect(stack.Status.CurrentUpdate).To(Equal(wanted.CurrentUpdate))
		s.Expect(stack.Status.LastUpdate).To(Equal(wanted.LastUpdate))
		s.Expect(stack.Status.Outputs).To(Equal(wanted.Outputs))
		s.Expect(stack.Status.History).To(BeEmpty())
		s.Expect(stack.Status.LastHandledReconcileAt).To(BeEmpty())
	}
}

// shown returns the types and reasons of the conditions.
func shown(stack *pulumiv1.Stack) (shown []string) {
	for _, condition := range stack.Status.Conditions {
		shown = append(shown, condition.Type+"="+condition.Reason)
	}
	return shown
}

func (s *fixture) onlyTheOperatorOwnsStatus(object client.Object) {
	s.t.Helper()
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "status" {
			s.Expect(entry.Manager).To(Equal(operator.StackStatusOwner))
			s.Expect(entry.Operation).To(Equal(metav1.ManagedFieldsOperationApply))
		}
	}
}

func TestOperatorRunsNothingForAStackThatIsUpToDate(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			s := newFixture(t)
			stack := s.stack("app", k.set, func(stack *pulumiv1.Stack) { succeeded(stack, k) })
			s.Expect(operator.IsSynced(stack, k.operatorCommit)).To(Equal(k.name == "git"), "the commits have other names here")
			_, err := s.run()
			s.Expect(err).NotTo(HaveOccurred())
			s.read(stack)
			s.Expect(operator.IsSynced(stack, k.operatorCommit)).To(BeTrue())
			s.Expect(stack.Status.Outputs).To(HaveLen(2))
			s.Expect(stack.Status.ProjectInfo).NotTo(BeNil())
			s.Expect(stack.Finalizers).To(ConsistOf(pulumiv1.Finalizer))
		})
	}
	t.Run("whose edit needed no update", func(t *testing.T) {
		s := newFixture(t)
		stack := s.stack("app", kinds[1].set, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[1]) })
		stack.Spec.ResyncFrequencySeconds = 600
		stack.Annotations = map[string]string{pulumiv1.ReconcileRequestAnnotation: "long ago"}
		s.Expect(admin.Update(s.ctx, stack)).To(Succeed())
		s.write(stack, func() {
			stack.Status.ObservedGeneration, stack.Status.ObservedReconcileRequest = stack.Generation, "long ago"
		})
		_, err := s.run()
		s.Expect(err).NotTo(HaveOccurred())
		s.read(stack)
		s.Expect(stack.Generation).To(BeNumerically(">", 1))
		s.Expect(operator.IsSynced(stack, kinds[1].operatorCommit)).To(BeTrue())
	})
	t.Run("but for one that has a new commit, an edit or a request", func(t *testing.T) {
		s := newFixture(t)
		stack := s.stack("app", kinds[1].set, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[1]) })
		stack.Annotations = map[string]string{pulumiv1.ReconcileRequestAnnotation: "now"}
		s.Expect(admin.Update(s.ctx, stack)).To(Succeed())
		_, err := s.run()
		s.Expect(err).NotTo(HaveOccurred())
		s.read(stack)
		s.Expect(operator.IsSynced(stack, kinds[1].operatorCommit)).To(BeFalse())
		delete(stack.Annotations, pulumiv1.ReconcileRequestAnnotation)
		s.Expect(operator.IsSynced(stack, "main@sha1:other")).To(BeFalse())
	})
}

func TestWhatTheOperatorWillDoDifferentlyIsSaid(t *testing.T) {
	s := newFixture(t)
	s.stack("app", func(spec *pulumiv1.StackSpec) {
		kinds[1].set(spec)
		spec.Suspend = true
		spec.Drift = &pulumiv1.DriftSpec{}
		spec.FluxSource.SourceRef.Namespace = "elsewhere"
		spec.DependsOn = []pulumiv1.DependencyReference{{Name: "network"}}
	}, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[1]) })
	program := &pulumiv1.Program{Namespace: s.namespace, Name: "app"}
	s.Expect(yaml.Unmarshal([]byte("program: {resources: {a: {type: a:b:C, options: {retainOnDelete: true}}}}"), program)).To(Succeed())
	s.Expect(admin.Create(s.ctx, program)).To(Succeed())
	s.write(program, func() { conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "can be run") })
	out, err := s.run(dryRun, accept("Stack/app", "Program/app"))
	s.Expect(err).NotTo(HaveOccurred())
	for _, word := range []string{"spec.suspend", "spec.dependsOn", "spec.drift", "in the namespace of the Stack only", "program.resources.*.options.retainOnDelete"} {
		s.Expect(out).To(ContainSubstring(word))
	}
	s.Expect(strings.Count(out, "note: ")).To(Equal(5))
}
