package stack

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// heldAfter is how long a Stack is held before its status says so, and spreadOver the time over which the Stacks of one StackRollout say it.
const (
	heldAfter  = 5 * time.Minute
	spreadOver = 5 * time.Minute
)

// held is why a Stack does not get what its source offers.
type held struct {
	waves.Verdict
	// since is when the source offered it, to the second.
	since time.Time
}

// observeRollout replaces what the source offers by what the Stack has, if the StackRollout that the Stack names does not let it have the offer
// yet. All that is decided afterwards is then decided for the revision that the Stack has: edits, retries and corrections of drift go on. An
// offer with the content that the Stack has needs no turn.
func (r *Reconciler) observeRollout(ctx context.Context, o *observation) error {
	if o.stack.Spec.RolloutRef == nil {
		return nil
	}
	rollout, err := r.rolloutOf(ctx, o.stack)
	if o.rollout = rollout; err != nil || o.artifact == nil {
		return err
	}
	if rollout != nil {
		if _, err := waves.Admits(rollout, o.stack.Namespace, r.Namespaces); errors.Is(err, namespaces.ErrNotYet) {
			return err
		}
	}
	offer := o.artifact
	verdict := waves.Release(o.stack, rollout, autov1alpha1.RolloutRevision{Revision: offer.Revision, Digest: offer.Digest}, offer.Commit(), r.Namespaces)
	if verdict.Released {
		o.planOnly = verdict.PlanOnly
		return nil
	}
	if same, err := r.hasContentOf(o, offer); err != nil || same {
		return err
	}
	o.held = &held{verdict, offer.Published}
	commit, revision := "", o.stack.Status.LastAttemptedRevision
	if last := o.stack.Status.LastUpdate; last != nil {
		commit = last.LastAttemptedCommit
	}
	first := hasRunNothing(o.stack)
	if first && rollout != nil {
		if stable := waves.Beginning(&rollout.Status); stable != nil {
			commit, revision = stable.Digest, stable.Revision
		}
	}
	if o.artifact, err = r.Sources.Earlier(o.stack.Namespace, offer, commit, revision); err != nil {
		return err
	}
	if first && (commit == "" || r.mayBeUnverified(o.stack, commit) || r.Artifacts.Stored(o.artifact.Reference) == "") {
		return &source.Problem{Reason: verdict.Reason, Message: verdict.Message, Watched: true}
	}
	return nil
}

// hasRunNothing reports whether the Stack has no commit yet, so that it begins with what its StackRollout has for new Stacks.
func hasRunNothing(stack *pulumiv1.Stack) bool {
	last := stack.Status.LastUpdate
	return last == nil || last.LastAttemptedCommit == ""
}

// mayHaveRunNothing reports the same of a Stack of the cache, which may have only the small fields of it.
func mayHaveRunNothing(stack *pulumiv1.Stack) bool {
	return informercache.IsShortened(stack) || hasRunNothing(stack)
}

// mayBeUnverified reports whether the Stack must not run an artifact that its source offered before: a source says only of the newest one whether
// it is verified.
func (r *Reconciler) mayBeUnverified(stack *pulumiv1.Stack, digest string) bool {
	return r.Sources.RequiresVerified(stack) && !slices.Contains(stack.Status.VerifiedDigests(), digest)
}

// rolloutOf returns the StackRollout that the Stack names, of any shard; nil when there is none. The caller must not change it.
func (r *Reconciler) rolloutOf(ctx context.Context, stack *pulumiv1.Stack) (*autov1alpha1.StackRollout, error) {
	key, _ := waves.RolloutOf(stack)
	rollout := &autov1alpha1.StackRollout{}
	err := r.Get(ctx, key, rollout, client.UnsafeDisableDeepCopy)
	large, isLarge := errors.AsType[*informercache.TooLargeError](err)
	switch {
	case isLarge:
		return nil, large
	case err == nil:
		return rollout, nil
	case apierrors.IsNotFound(err), key.Namespace != stack.Namespace:
		// A controller that watches one namespace reads no StackRollout of another one.
		return nil, nil
	}
	return nil, fmt.Errorf("read the StackRollout %s: %w", key, err)
}

// hasContentOf reports whether the files that the Stack consists of are the same in the artifact as in the one that it ran last. As long as
// that is not known it returns false; the end of a download or a comparison wakes the Stack.
func (r *Reconciler) hasContentOf(o *observation, offer *source.Artifact) (bool, error) {
	last, waiter := o.stack.Status.LastUpdate, client.ObjectKeyFromObject(o.stack)
	if last == nil || last.ContentDigest == "" || usesWholeArtifact(o.stack) || o.desired == nil {
		return false, nil
	}
	stored, err := r.Artifacts.Request(offer.Reference, waiter)
	if err != nil || stored == "" {
		return false, nil // a revision that the Stack may not have is not its problem
	}
	reference := offer.Reference
	reference.Digest = stored
	found, err := r.Contents.Request(reference, o.desired.selection, waiter)
	return err == nil && found != nil && found.Digest == last.ContentDigest, nil
}

// locateKept finds the revision that a Stack has, which its source may no longer offer.
func (r *Reconciler) locateKept(ctx context.Context, o *observation) error {
	kept := *o.artifact
	if r.Artifacts.Stored(kept.Reference) != "" {
		return nil
	}
	reference, err := r.Sources.OfUpdate(&kept.Origin).Locate(ctx, o.stack.Namespace, kept.UpdateSource(""))
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		return &source.Problem{Reason: pulumiv1.RevisionNotKeptReason, Message: fmt.Sprintf(
			"%s is no longer kept, and the source has a newer revision that waits for its turn, or that the annotation %s lets the Stack have: %s",
			describeRevision(&kept), pulumiv1.ReleaseRevisionAnnotation, problem.Message)}
	}
	kept.Reference = reference
	o.artifact = &kept
	return err
}

// requestArtifact requests the artifact. One that a source offered before has no URL, but may be stored.
func (r *Reconciler) requestArtifact(reference artifact.Reference, waiter types.NamespacedName) (stored string, err error) {
	if stored := r.Artifacts.Stored(reference); stored != "" && reference.URL == "" && reference.Maker == nil {
		return stored, nil
	}
	return r.Artifacts.Request(reference, waiter)
}

// mayHave reports whether the Stack may have the artifact that its source offers by now.
func (r *Reconciler) mayHave(ctx context.Context, stack *pulumiv1.Stack, offer *source.Artifact) bool {
	if stack.Spec.RolloutRef == nil {
		return true
	}
	rollout, err := r.rolloutOf(ctx, stack)
	return err == nil && waves.Release(stack, rollout, autov1alpha1.RolloutRevision{Revision: offer.Revision, Digest: offer.Digest}, offer.Commit(), r.Namespaces).Released
}

// showHeld sets or removes the condition Held, and returns when to do so; zero for not at all. The condition appears late, because most Stacks
// get their turn before, and at another time for each Stack.
func showHeld(o *observation, d decision) time.Duration {
	held := o.held
	if held == nil && d.action == actionHold && d.quiet {
		held = heldByWindow(o, d)
	}
	if held == nil {
		// While a new commit is compared with the last one, the windows hold back what they did.
		if comparing := d.action == actionFetch && d.quiet; !comparing || conditions.GetReason(o.stack, pulumiv1.HeldCondition) != pulumiv1.WindowClosedReason {
			conditions.Delete(o.stack, pulumiv1.HeldCondition)
		}
		return 0
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(o.stack.UID))
	due := heldAfter + time.Duration(float64(hash.Sum32())/(1<<32)*float64(spreadOver))
	shown := conditions.Has(o.stack, pulumiv1.HeldCondition)
	if left := due - o.now.Sub(held.since); left > 0 && !shown {
		return left
	}
	conditions.Set(o.stack, &metav1.Condition{Type: pulumiv1.HeldCondition, Status: metav1.ConditionTrue, Reason: held.Reason, Message: held.Message})
	return 0
}

// heldByWindow says that a window holds back what the source offers, or another change that the Stack itself does not ask for.
func heldByWindow(o *observation, d decision) *held {
	h := &held{Verdict: waves.Verdict{Reason: d.reason, Message: d.message}}
	if o.artifact != nil {
		h.since = o.artifact.Published
	}
	return h
}
