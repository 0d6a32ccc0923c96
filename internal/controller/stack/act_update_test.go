package stack

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// conflicts answers each write of a Stack's status with a conflict while on is set.
type conflicts struct {
	http.RoundTripper
	on *atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (c conflicts) RoundTrip(request *http.Request) (*http.Response, error) {
	path := request.URL.Path
	if !c.on.Load() || request.Method != http.MethodPatch || !strings.Contains(path, "/stacks/") || !strings.HasSuffix(path, "/status") {
		return c.RoundTripper.RoundTrip(request)
	}
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusConflict)
	status := apierrors.NewConflict(pulumiv1.GroupVersion.WithResource("stacks").GroupResource(), "app", nil).ErrStatus
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if err := json.NewEncoder(answer).Encode(status); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// Only watches wake a Stack in these tests. The watch on the Update has reported its end while the status could not be written.
func TestUpdateThatEndedBeforeAStatusCouldNameItIsRecorded(t *testing.T) {
	s := newFixture(t)
	s.conflicting.Store(true)
	stack := s.dependent("app")
	update := s.awaitUnfinishedUpdate()
	s.mark(update, started, succeeded)
	s.Consistently(func(g Gomega) {
		g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		g.Expect(stack.Status.CurrentUpdate).To(BeNil())
	}).WithTimeout(time.Second).Should(Succeed())

	s.conflicting.Store(false)
	s.await(stack, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
	s.Expect(stack.Status.LastUpdate.Name).To(Equal(update.Name))
	s.Expect(s.updates()).To(HaveLen(1), "it is not repeated")
}

func TestUpdateThatSomebodyRemovedMayHaveBeenCutOff(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now())
	s.edit(stack, withImage("two"))
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	removed, next := &autov1alpha1.Update{}, &autov1alpha1.Update{}
	key := client.ObjectKey{Namespace: s.namespace, Name: stack.Status.CurrentUpdate.Name}
	s.Expect(s.client.Get(t.Context(), key, removed)).To(Succeed())
	s.Expect(removed.Spec.AfterInterruption).To(BeNil())
	s.Expect(s.client.Patch(t.Context(), removed, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	s.Expect(s.client.Delete(t.Context(), removed)).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		current := stack.Status.CurrentUpdate
		return current != nil && s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: current.Name}, next) == nil && next.UID != removed.UID
	})
	s.Expect(next.Spec.AfterInterruption).To(HaveValue(BeTrue()))
	s.succeed(stack, time.Now())
	s.Expect(stack.Status.LastUpdate.PendingOperations).To(BeFalse())
}

func TestUpdateThatNoStatusNamedMayHaveBeenCutOff(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now().Add(-time.Minute))
	s.conflicting.Store(true)
	s.edit(stack, withImage("two"))
	unnamed := s.awaitUnfinishedUpdate()
	s.mark(unnamed, started, wasInterrupted)
	s.edit(stack, withImage("three"))
	s.Eventually(s.updates).Should(HaveLen(3))
	s.Consistently(s.updates, "1s").Should(HaveLen(3), "only one can follow, however often its creation is decided on")

	s.conflicting.Store(false)
	s.Consistently(s.updates, "1s").Should(HaveLen(3))
	for _, update := range s.updates() {
		if !update.IsComplete() {
			s.Expect(update.Spec.AfterInterruption).To(HaveValue(BeTrue()))
		}
	}
}

func TestRequestIsAnsweredByAnUpdateThatNoStatusNamed(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now().Add(-time.Minute))
	s.conflicting.Store(true)
	s.edit(stack, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, "now")
	})
	unnamed := s.awaitUnfinishedUpdate()
	s.mark(unnamed, started, succeeded)
	s.conflicting.Store(false)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return conditions.IsReady(stack) && stack.Status.LastUpdate.Name == unnamed.Name && stack.Status.LastHandledReconcileAt == "now"
	})
	s.Consistently(s.updates, "1s").Should(HaveLen(2))
}

// A controller that was frozen does not know at once that another one is the leader, and what it has read of the Stack and of its source is
// old.
func TestControllerThatKnowsLessDoesNotCreateASecondUpdate(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	stack = s.succeed(stack, time.Now().Add(-time.Minute))
	stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "old"}
	workspace := &autov1alpha1.Workspace{}
	s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), workspace)).To(Succeed())
	known := &observation{stack: stack.DeepCopy(), workspace: workspace, artifact: upToDate().artifact, desired: &desired{}}
	known.artifact.Origin.SourceRef = &meta.NamespacedObjectKindReference{Kind: sourcev1.GitRepositoryKind, Name: "app"}
	s.edit(stack, withImage("two"))
	stack = s.await(stack, working)

	frozen := &Reconciler{Client: s.client, APIReader: s.client, EventRecorder: record.NewFakeRecorder(1)}
	d := decision{action: actionUpdate, kind: autov1alpha1.UpdateTypeUp}
	update, err := frozen.createUpdate(t.Context(), known, d)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(update.Name).To(Equal(stack.Status.CurrentUpdate.Name))
	s.Expect(s.updates()).To(HaveLen(2))
	recordStart(known.stack, d, update)
	s.Expect(known.stack.Status.CurrentUpdate.Generation).To(Equal(stack.Generation), "it tells what the update is for")
	s.Expect(known.stack.Status.CurrentUpdate.Commit).To(BeEmpty())
	s.Expect(known.stack.Status.LastHandledReconcileAt).To(BeEmpty(), "the update does not answer that request")
}

func TestControllerThatKnowsLessDoesNotChangeTheWorkspaceBack(t *testing.T) {
	s := newFixture(t)
	stack := s.newStack(func(*pulumiv1.Stack) {})
	stack = s.succeed(stack, time.Now())
	old := &autov1alpha1.Workspace{}
	s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), old)).To(Succeed())
	wanted, err := desire(stack)
	s.Expect(err).NotTo(HaveOccurred())
	wanted.workspace.Spec.Image = "between"
	s.edit(stack, withImage("two"))
	workspace := &autov1alpha1.Workspace{}
	s.Eventually(func() string {
		s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(stack), workspace)).To(Succeed())
		return workspace.Spec.Image
	}).Should(Equal("two"))

	frozen := &Reconciler{Client: s.client, APIReader: s.client}
	s.Expect(frozen.applyWorkspace(t.Context(), &observation{stack: stack, desired: wanted, workspace: old}, true)).
		To(MatchError(apierrors.IsConflict, "IsConflict"))
}

func (s *fixture) updates() []autov1alpha1.Update {
	list := &autov1alpha1.UpdateList{}
	s.Expect(s.client.List(s.t.Context(), list, client.InNamespace(s.namespace))).To(Succeed())
	return list.Items
}

// awaitUnfinishedUpdate waits for an Update that has not ended, and returns it.
func (s *fixture) awaitUnfinishedUpdate() (found *autov1alpha1.Update) {
	s.t.Helper()
	s.Eventually(func() *autov1alpha1.Update {
		for _, update := range s.updates() {
			if !update.IsComplete() {
				found = &update
			}
		}
		return found
	}).ShouldNot(BeNil())
	return found
}

func TestStatusOfAShortUpdateShowsOnlyItsResult(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.ShowAfter = 3 * time.Second })
	stack := s.newStack(func(*pulumiv1.Stack) {})
	last := s.succeed(stack, time.Now().Add(-time.Minute)).Status.LastUpdate

	s.edit(stack, withImage("two"))
	short := s.awaitUnfinishedUpdate()
	s.mark(short, started)
	s.Consistently(s.shown(stack), "1s").Should(Equal(last.Name+" "), "an update that may be a short one")
	s.mark(short, succeeded)
	s.Eventually(s.shown(stack)).Should(Equal(short.Name + " "))

	s.edit(stack, withImage("three"))
	long := s.awaitUnfinishedUpdate()
	s.Eventually(s.shown(stack)).Should(Equal(short.Name + " " + long.Name))
}

func TestShortUpdateThatFailsWhileTheStackIsSuspendedLeavesItNotReady(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.ShowAfter = 5 * time.Second })
	stack := s.newStack(func(*pulumiv1.Stack) {})
	s.succeed(stack, time.Now().Add(-time.Minute))
	s.edit(stack, withImage("two"))
	short := s.awaitUnfinishedUpdate()
	s.mark(short, started)
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
	s.mark(short, wasInterrupted)
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return conditions.GetReason(stack, meta.ReadyCondition) == pulumiv1.SuspendedReason && stack.Status.LastUpdate.Name == short.Name
	})
}

func TestUpdateThatTakesThePlaceOfOneThatNeverRanIsNotReplacedToo(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.ShowAfter = 2 * time.Second })
	stack := s.newStack(func(*pulumiv1.Stack) {})
	first := s.awaitUnfinishedUpdate()
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })

	s.edit(stack, withImage("two"))
	s.Eventually(func() *metav1.Time { return s.awaitUnfinishedUpdate().DeletionTimestamp }).ShouldNot(BeNil())
	s.Expect(s.client.Patch(t.Context(), first, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	unfinished := func() types.UID {
		for _, update := range s.updates() {
			if update.DeletionTimestamp.IsZero() {
				return update.UID
			}
		}
		return ""
	}
	s.Eventually(unfinished).ShouldNot(Or(BeEmpty(), Equal(first.UID)))
	second := s.awaitUnfinishedUpdate()
	s.Expect(second.Name).To(Equal(first.Name))
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Labels = map[string]string{"look": "again"} })
	s.Consistently(unfinished, "1s").Should(Equal(second.UID))
}

func TestUpdateOfADependencyIsShownAtOnce(t *testing.T) {
	s := newFixture(t, func(r *Reconciler) { r.ShowAfter = time.Hour })
	s.dependent("dependent", requires("app"))
	stack := s.newStack(func(*pulumiv1.Stack) {})
	last := s.succeed(stack, time.Now().Add(-time.Minute)).Status.LastUpdate
	s.edit(stack, withImage("two"))
	s.Eventually(s.shown(stack)).Should(HavePrefix(last.Name + " app-"))
}

// shown returns the names of the last and the current update in the status.
func (s *fixture) shown(stack *pulumiv1.Stack) func() string {
	return func() string {
		now := &pulumiv1.Stack{}
		s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(stack), now)).To(Succeed())
		current := ""
		if now.Status.CurrentUpdate != nil {
			current = now.Status.CurrentUpdate.Name
		}
		return now.Status.LastUpdate.Name + " " + current
	}
}

// The controller would take a preview of a destroy for a destroy, that is, for the proof that nothing is left.
func TestTemplateCannotMakeAPreviewOfAnUpdate(t *testing.T) {
	g := NewWithT(t)
	o := upToDate()
	o.desired, o.workspace = &desired{}, &autov1alpha1.Workspace{}
	o.stack.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{
		PreviewOnly: new(true), ProjectInfo: &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"},
	}}
	for _, kind := range []autov1alpha1.UpdateType{autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypeDestroy} {
		update, err := desiredUpdate(o, decision{kind: kind})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(update.Spec.PreviewOnly).To(BeNil())
		g.Expect(update.Spec.ProjectInfo).To(BeNil())
	}
}

// An Update has the name of the next one of a Stack with spec.approval, is owned by the Stack, and planned another program: what somebody
// can do who may create Updates, where the admission policy is missing. Neither its plan nor its annotations get into the status.
func TestPlanThatSomebodyElseMadeIsNotThatOfTheStack(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{
		Namespace: s.namespace, Name: "app",
		Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true, Approval: &pulumiv1.ApprovalPolicy{}},
	}
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	forged := &autov1alpha1.Update{
		Namespace: s.namespace, Name: updateName(stack), Labels: labelsOf(stack),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: stack.Name, UID: stack.UID}},
		Annotations: map[string]string{
			pulumiv1.DriftUpdateAnnotation: "sha256:drift", pulumiv1.SpecDigestAnnotation: specDigest(stack), pulumiv1.StackGenerationAnnotation: "2",
		},
		Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: stack.Name, StackName: stack.Spec.Stack, Type: autov1alpha1.UpdateTypePreview, SavePlan: new(true),
			Source: &autov1alpha1.UpdateSource{URL: "https://mallory.example.com/evil.tar.gz", Digest: "sha256:e0e0"},
		},
	}
	s.Expect(s.client.Create(t.Context(), forged)).To(Succeed())
	savesPlan := func(update *autov1alpha1.Update) {
		update.Status.Plan = &autov1alpha1.SavedPlan{Digest: "sha256:" + strings.Repeat("a", 64), ChangesDigest: "sha256:c", InputsDigest: "sha256:i", StateDigest: "sha256:s"}
		update.Status.ResourceChanges = map[string]int64{"create": 1}
	}
	s.mark(forged, started, savesPlan, succeeded)
	s.edit(stack, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = false })

	own := &autov1alpha1.Update{}
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	s.Expect(s.client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: stack.Status.CurrentUpdate.Name}, own)).To(Succeed())
	s.Expect(own.UID).To(And(Equal(stack.Status.CurrentUpdate.UID), Not(Equal(forged.UID))))
	s.Expect(own.Spec.Source).To(BeNil())
	s.Expect(stack.Status.Plan).To(BeNil())

	// Its annotations are rewritten while it runs. The plan has the inputs and the operation that the status has.
	changed := own.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, pulumiv1.DriftUpdateAnnotation, "sha256:drift")
	s.Expect(s.client.Patch(t.Context(), changed, client.MergeFrom(own))).To(Succeed())
	s.mark(own, started, savesPlan, succeeded)
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.Plan != nil })
	plan := stack.Status.Plan
	s.Expect(plan.UID).To(Equal(own.UID))
	s.Expect(plan.Operation).To(Equal(pulumiv1.ApprovedUp))
	s.Expect(plan.Drift).To(BeEmpty())
	s.Expect(plan.State).To(Equal(pulumiv1.PlanPending))
	s.Expect(plan.Generation).To(Equal(stack.Generation))

	// Its specification is edited afterwards. What the Secrets have is not the plan of that, so the plan is made again.
	s.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(own), own)).To(Succeed())
	edited := own.DeepCopy()
	edited.Spec.Source = forged.Spec.Source
	s.Expect(s.client.Patch(t.Context(), edited, client.MergeFrom(own))).To(Succeed())
	approval := &autov1alpha1.Approval{Namespace: s.namespace, Name: "app-1", Spec: autov1alpha1.ApprovalSpec{
		Update: plan.Name, Digest: plan.Digest, Decision: autov1alpha1.ApprovalApprove, By: "alice",
	}}
	s.Expect(s.client.Create(t.Context(), approval)).To(Succeed())
	judged := approval.DeepCopy()
	conditions.MarkTrue(judged, autov1alpha1.ApprovalAccepted, autov1alpha1.ApprovalCountsReason, "it counts")
	s.Expect(s.client.Status().Patch(t.Context(), judged, client.MergeFrom(approval))).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return stack.Status.Plan.State == pulumiv1.PlanSuperseded && stack.Status.CurrentUpdate != nil
	})
	s.Expect(stack.Status.Plan.Approvals).To(BeEmpty())
	s.Expect(stack.Status.CurrentUpdate.UID).NotTo(Equal(own.UID))
}

// Approvals of a plan that failed half-way cover what is left of its changes. Whoever may delete and create Updates can give the name of its
// Update to another one, which would make anything change that they like.
func TestChangesOfAnUpdateThatTookTheNameOfAPlanWereNotApproved(t *testing.T) {
	s := newFixture(t)
	newUpdate := func(name string, changes ...string) *autov1alpha1.Update {
		update := &autov1alpha1.Update{Namespace: s.namespace, Name: name, Spec: autov1alpha1.UpdateSpec{
			WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypePreview, SavePlan: new(true),
		}}
		s.Expect(s.client.Create(t.Context(), update)).To(Succeed())
		s.mark(update, started, succeeded, func(update *autov1alpha1.Update) {
			for _, change := range changes {
				update.Status.Changes = append(update.Status.Changes, autov1alpha1.ResourceChange{Operation: "delete", URN: change, Digest: change})
			}
			update.Status.Plan = &autov1alpha1.SavedPlan{
				Digest: "sha256:" + strings.Repeat("a", 64), ChangesDigest: "sha256:" + name, InputsDigest: "sha256:i", StateDigest: "sha256:s",
			}
		})
		return update
	}
	approved, next := newUpdate("app-plan", "a", "b"), newUpdate("app-next", "b")
	carriedOver := func() []pulumiv1.PlanApproval {
		stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Approval: &pulumiv1.ApprovalPolicy{}}}
		stack.Status.Plan = &pulumiv1.PlanStatus{
			Name: approved.Name, UID: approved.UID, State: pulumiv1.PlanFailed, Update: "app-2", Operation: pulumiv1.ApprovedUp, Enforce: autov1alpha1.EnforcePlan,
			ChangesDigest: "sha256:app-plan", InputsDigest: "sha256:i", Approvals: []pulumiv1.PlanApproval{{By: "alice"}},
			ExpiresAt: new(metav1.NewTime(time.Now().Add(time.Hour))),
		}
		stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: next.Name, UID: next.UID}
		s.Expect((&Reconciler{APIReader: s.client}).recordSavedPlan(t.Context(), &observation{stack: stack, now: time.Now()}, next)).To(Succeed())
		return stack.Status.Plan.Approvals
	}
	s.Expect(carriedOver()).To(HaveLen(1))
	s.Expect(s.client.Delete(t.Context(), approved)).To(Succeed())
	newUpdate("app-plan", "b")
	s.Expect(carriedOver()).To(BeEmpty())
}

// A destroy that waits when its Stack is deleted is never cancelled: the next one would be, too.
func TestOnlyAnUpIsTheFirstToDeploy(t *testing.T) {
	for kind, want := range map[autov1alpha1.UpdateType]bool{
		autov1alpha1.UpdateTypeUp: true, autov1alpha1.UpdateTypeDestroy: false, autov1alpha1.UpdateTypePreview: false,
	} {
		g := NewWithT(t)
		update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Type: kind}}
		stack := &pulumiv1.Stack{}
		recordStart(stack, decision{kind: kind}, update)
		g.Expect(stack.Status.CurrentUpdate.First).To(Equal(want), "created %s", kind)

		o := &observation{stack: &pulumiv1.Stack{}, update: update}
		restoreStatus(o)
		g.Expect(o.stack.Status.CurrentUpdate.First).To(Equal(want), "restored %s", kind)
		o = &observation{stack: &pulumiv1.Stack{}, update: update, deployed: true}
		restoreStatus(o)
		g.Expect(o.stack.Status.CurrentUpdate.First).To(BeFalse(), "another Update may have deployed something")
	}
}
