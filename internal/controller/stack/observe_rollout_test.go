package stack

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/render"
	"github.com/stack-controller/stack-controller/internal/waves"
)

func TestRolloutRefNeedsASourceThatStacksShare(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: "dev", RolloutRef: &pulumiv1.RolloutReference{Name: "all"}}}
	_, err := desire(stack)
	g.Expect(err).To(MatchError(ContainSubstring("spec.rolloutRef needs spec.fluxSource or spec.programRef")))
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: "app"}
	_, err = desire(stack)
	g.Expect(err).NotTo(HaveOccurred())
}

// oneRollout is a client that has one StackRollout.
type oneRollout struct {
	client.Client
	rollout *autov1alpha1.StackRollout
}

func (c oneRollout) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.rollout.DeepCopyInto(object.(*autov1alpha1.StackRollout))
	return nil
}

// After a restart, the labels of Namespaces are read only when somebody asks. A Stack must not count as one that is not admitted meanwhile: it
// would go back to the revision that it had, and lose the plan that somebody has approved.
func TestStackWaitsUntilItsNamespaceIsKnown(t *testing.T) {
	g := NewWithT(t)
	rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "waves"}
	rollout.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromSelector, Selector: &metav1.LabelSelector{}}
	rollout.Status = autov1alpha1.StackRolloutStatus{Target: &autov1alpha1.RolloutTarget{Digest: "sha256:b"}, Plans: []string{"team/app"}}
	r := &Reconciler{Client: oneRollout{rollout: rollout}, Namespaces: namespaces.New(namespaces.Options{})}
	o := guarded(pulumiv1.PlanPending, approvedBy("alice"))
	o.stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Namespace: "platform", Name: "waves"}
	o.artifact = &source.Artifact{Digest: "sha256:b", Revision: "main@sha1:b"}
	g.Expect(r.observeRollout(t.Context(), o)).To(MatchError(namespaces.ErrNotYet))
	g.Expect(o.held).To(BeNil())
	g.Expect(o.artifact.Digest).To(Equal("sha256:b"))

	o.stack.Spec.RolloutRef.Namespace, rollout.Namespace = "team", "team" // nobody has to ask
	g.Expect(r.observeRollout(t.Context(), o)).To(Succeed())
	g.Expect(o.planOnly).To(BeTrue())
}

// signedOffer is a Stack of a StackRollout, whose source offers sha256:b and has verified it. Only what was verified may run.
func signedOffer() (*Reconciler, *autov1alpha1.StackRollout, *observation) {
	from := pulumiv1.FluxSourceReference{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Name: "app"}
	offers := &countedSource{Flux: &source.Flux{}, offered: source.Artifact{
		Digest: "sha256:b", Revision: "main@sha1:b", Verification: source.Verification{Verified: true}, Origin: autov1alpha1.UpdateSource{SourceRef: &meta.NamespacedObjectKindReference{Kind: from.Kind, Name: from.Name}}}}
	rollout := &autov1alpha1.StackRollout{Namespace: "team", Name: "waves"}
	r := &Reconciler{Client: oneRollout{rollout: rollout}, Sources: &source.Set{Sources: []source.Source{offers}, RequireVerified: true}}
	o := upToDate()
	o.stack.Namespace = "team"
	o.stack.Spec.FluxSource, o.stack.Spec.RolloutRef = &pulumiv1.FluxSource{SourceRef: from}, &pulumiv1.RolloutReference{Name: "waves"}
	return r, rollout, o
}

// Whether the revision that a Stack has was verified is not forgotten, and not learned, from another one that waits.
func TestHeldOfferIsNotRecordedAsVerified(t *testing.T) {
	g := NewWithT(t)
	r, rollout, o := signedOffer()
	observed := func() string {
		g.Expect(r.observeSource(t.Context(), o)).To(Succeed())
		followVerification(o)
		return o.artifact.Digest
	}
	for _, verified := range []string{"sha256:a", ""} {
		o.stack.Status.VerifiedDigest = verified
		g.Expect(observed()).To(Equal("sha256:a"))
		g.Expect(o.stack.Status.VerifiedDigest).To(Equal(verified))
	}

	rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: autov1alpha1.RolloutRevision{Revision: "main@sha1:b", Digest: "sha256:b"}}
	rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: waves.Name("team", o.stack.Name)}}
	o.held, o.stack.Status.VerifiedDigest = nil, "sha256:a"
	g.Expect(observed()).To(Equal("sha256:b"))
	g.Expect(o.stack.Status.VerifiedDigest).To(Equal("sha256:b"))
	g.Expect(o.stack.Status.EarlierVerifiedDigests).To(ConsistOf("sha256:a"), "until it has run the other one")

	rollout.Status.Paused = true
	g.Expect(observed()).To(Equal("sha256:a"), "an edit runs what the Stack has")
	g.Expect(o.stack.Status.EarlierVerifiedDigests).To(ConsistOf("sha256:a"))
}

// What all others have is offered no longer, so nobody says of it whether it is verified.
func TestNewStackBeginsOnlyWithWhatIsKnownToBeVerified(t *testing.T) {
	g := NewWithT(t)
	r, rollout, o := signedOffer()
	program := &pulumiv1.Program{Name: "app"}
	program.Program.Resources = map[string]pulumiv1.Resource{"a": {Type: "test:index:Sleep"}}
	content, err := render.Program(program)
	g.Expect(err).NotTo(HaveOccurred())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }))
	t.Cleanup(server.Close)
	store, err := artifact.NewStore(artifact.Options{Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	r.Artifacts = artifact.NewFetcher(store, 0)
	stable := autov1alpha1.RolloutRevision{Revision: "main@sha1:a", Digest: digest.FromBytes(content).String()}
	rollout.Status.Stable = &stable
	offer, err := r.Sources.Resolve(t.Context(), o.stack)
	g.Expect(err).NotTo(HaveOccurred())
	kept, err := r.Sources.Earlier("team", offer, stable.Digest, stable.Revision)
	g.Expect(err).NotTo(HaveOccurred())
	kept.URL = server.URL
	g.Expect(store.Fetch(t.Context(), kept.Reference)).To(Succeed())

	o.stack.Status = pulumiv1.StackStatus{}
	g.Expect(r.observeSource(t.Context(), o)).To(Succeed())
	g.Expect(o.artifact).To(BeNil())
	g.Expect(o.sourceProblem).To(HaveValue(And(HaveField("Reason", pulumiv1.WaveNotOpenReason), HaveField("Message", ContainSubstring("a new Stack waits")))))

	begins := func(why string) {
		o.sourceProblem = nil
		g.Expect(r.observeSource(t.Context(), o)).To(Succeed())
		g.Expect(o.sourceProblem).To(BeNil(), why)
		g.Expect(o.artifact.Digest).To(Equal(stable.Digest), why)
	}
	o.stack.Status.VerifiedDigest = stable.Digest
	begins("it was verified when it was offered")
	o.stack.Status.VerifiedDigest, r.Sources.RequireVerified = "", false
	begins("nothing has to be verified")
}

// The condition appears after five to ten minutes, at another time for each Stack, and does not change with each commit.
func TestConditionHeld(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	times := map[time.Duration]bool{}
	for i := range 100 {
		stack := &pulumiv1.Stack{UID: types.UID(fmt.Sprintf("uid-%d", i))}
		o := &observation{now: now, stack: stack, held: &held{waves.Verdict{Reason: pulumiv1.WaveNotOpenReason, Message: "waits"}, now}}
		left := showHeld(o, decision{})
		g.Expect(left).To(And(BeNumerically(">=", heldAfter), BeNumerically("<", heldAfter+spreadOver)))
		times[left] = true
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeFalse())

		o.now = now.Add(left)
		g.Expect(showHeld(o, decision{})).To(BeZero())
		shown := *conditions.Get(stack, pulumiv1.HeldCondition)
		g.Expect(shown.Reason).To(Equal(pulumiv1.WaveNotOpenReason))

		o.now, o.held.since = o.now.Add(time.Hour), o.now.Add(time.Hour)
		g.Expect(showHeld(o, decision{})).To(BeZero(), "a newer commit")
		g.Expect(*conditions.Get(stack, pulumiv1.HeldCondition)).To(Equal(shown))

		o.held = nil
		g.Expect(showHeld(o, decision{action: actionFetch, quiet: true})).To(BeZero())
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeFalse(), "it has its turn")

		o.held = &held{waves.Verdict{Reason: pulumiv1.WindowClosedReason, Message: "waits"}, now}
		g.Expect(showHeld(o, decision{})).To(BeZero())
		o.held = nil
		g.Expect(showHeld(o, decision{action: actionFetch, quiet: true})).To(BeZero())
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeTrue(), "a new commit is compared")
		g.Expect(showHeld(o, decision{})).To(BeZero())
		g.Expect(conditions.Has(stack, pulumiv1.HeldCondition)).To(BeFalse())
	}
	g.Expect(len(times)).To(BeNumerically(">", 90))
}

// members is a client that has the Stacks of one StackRollout.
type members struct {
	client.Client
	stacks []pulumiv1.Stack
}

func (c members) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*pulumiv1.StackList).Items = c.stacks
	return nil
}

// The cache has only the first turns of a large StackRollout. A Stack that has the last one, and that nothing else wakes, must begin all the same.
func TestStackThatGetsATurnIsWoken(t *testing.T) {
	for name, annotation := range map[string]int{"small": 0, "large": 60 << 10} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			rollout := func(turns int) *autov1alpha1.StackRollout {
				rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "waves", Annotations: map[string]string{"a": strings.Repeat("a", annotation)}}
				rollout.Status.Target = &autov1alpha1.RolloutTarget{Digest: "sha256:b"}
				for i := range turns {
					rollout.Status.Turns = append(rollout.Status.Turns, autov1alpha1.RolloutTurn{Stack: fmt.Sprintf("team/%0200d", i), Wave: "rest", Since: metav1.NewTime(now)})
				}
				return informercache.Shortened(rollout).(*autov1alpha1.StackRollout)
			}
			last := fmt.Sprintf("%0200d", 149)
			r := &Reconciler{Client: members{stacks: []pulumiv1.Stack{{Namespace: "team", Name: last}}}}
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			r.rolloutChanged(t.Context(), event.UpdateEvent{ObjectOld: rollout(149), ObjectNew: rollout(150)}, queue)
			g.Expect(queue.Len()).To(Equal(1))
			woken, _ := queue.Get()
			g.Expect(woken.Name).To(Equal(last))
		})
	}
}

// All Stacks of a StackRollout had a revision, so new ones begin with it. The others have it already, and there may be 10,000.
func TestWhatNewStacksBeginWithWakesOnlyThose(t *testing.T) {
	g := NewWithT(t)
	rollout := func(stable string) *autov1alpha1.StackRollout {
		rollout := &autov1alpha1.StackRollout{Namespace: "platform", Name: "waves"}
		rollout.Status.Target = &autov1alpha1.RolloutTarget{Digest: "sha256:b"}
		rollout.Status.Stable = &autov1alpha1.RolloutRevision{Digest: stable}
		return rollout
	}
	stack := func(name string, last *pulumiv1.StackUpdateStatus) pulumiv1.Stack {
		stack := pulumiv1.Stack{Namespace: "team", Name: name}
		stack.Status.LastUpdate = last
		return stack
	}
	large := stack("large", &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:a"})
	large.Annotations = map[string]string{"a": strings.Repeat("a", 80<<10)}
	r := &Reconciler{Client: members{stacks: []pulumiv1.Stack{
		stack("new", nil), stack("has-run", &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:a"}), stack("stopped-before", &pulumiv1.StackUpdateStatus{}),
		*informercache.Shortened(&large).(*pulumiv1.Stack),
	}}}
	woken := func(before, after *autov1alpha1.StackRollout) (names []string) {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		r.rolloutChanged(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, queue)
		for queue.Len() > 0 {
			request, _ := queue.Get()
			names = append(names, request.Name)
		}
		return names
	}
	g.Expect(woken(rollout("sha256:a"), rollout("sha256:a"))).To(BeEmpty())
	g.Expect(woken(rollout("sha256:a"), rollout("sha256:b"))).To(ConsistOf("new", "stopped-before", "large"))
	next := rollout("sha256:b")
	next.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "team/has-run"}}
	g.Expect(woken(rollout("sha256:a"), next)).To(ConsistOf("new", "stopped-before", "large", "has-run"), "one has a turn, too")
	open := rollout("sha256:a")
	open.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll}
	g.Expect(woken(rollout("sha256:a"), open)).To(HaveLen(4))
}
