// Package rollout is the controller of StackRollouts: it decides which Stacks may have the revision that a source offers, wave by wave, and
// says so in the status. The Stack controller asks internal/waves.Release, which reads that status.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/predicates"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

const (
	// sourceIndex is the index of StackRollouts by the key of their source.
	sourceIndex = "rollout.source"
	// writeInterval is the shortest time between two writes of the status of a StackRollout: many Stacks end their updates at once.
	writeInterval = time.Second
	// warnInterval is how often a StackRollout at most announces that Stacks which it does not admit name it.
	warnInterval = time.Hour
	// conflictInterval is the time to the next reconcile when the StackRollout was changed meanwhile.
	conflictInterval = 100 * time.Millisecond
)

// Reconciler reconciles StackRollouts. Its exported fields are set before SetupWithManager, and do not change.
type Reconciler struct {
	client.Client
	record.EventRecorder
	// APIReader reads from the API server a Stack of which the cache has only the small fields.
	APIReader client.Reader
	// Sources resolve the source of a StackRollout, and those of its Stacks.
	Sources *source.Set
	// Namespaces has the labels of Namespaces.
	Namespaces *namespaces.Watcher
	// Store keeps the artifacts that Stacks have which wait for their turn.
	Store interface {
		Keep(holder string, digests []string)
	}
	// Metrics are those about StackRollouts; nil for none.
	Metrics *metrics.Rollouts
	// Shard has the StackRollouts of this controller; nil when it has all. AllStacks has the Stacks of all shards then;
	// without shards it is nil, and Client has all Stacks.
	Shard     *shard.Shard
	AllStacks cache.Cache
	// started is when the first reconcile began: a controller that is not the leader waits for that. begin sets it.
	started time.Time
	begin   sync.Once
	// written has, by the name of the StackRollout, when its status was written last.
	written sync.Map
	// hours has, by the name of the StackRollout, what the windows of its Stacks allow.
	hours sync.Map
	// checks has, by the name of the StackRollout, what the checks of its waves said.
	checks sync.Map
	// warned has, by the name of the StackRollout, when it was announced last that Stacks which are not admitted name it.
	warned sync.Map
}

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=stackrollouts,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=stackrollouts/status,verbs=patch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=approvals,verbs=list;watch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &autov1alpha1.StackRollout{}, sourceIndex, func(object client.Object) []string {
		if key := r.Sources.Key(follower(object.(*autov1alpha1.StackRollout))); key != "" {
			return []string{key}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index the stackrollouts by their sources: %w", err)
	}
	// A label may move it to another shard.
	changed := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicates.ReconcileRequestedPredicate{})
	build := ctrl.NewControllerManagedBy(mgr).
		Named("stackrollout").
		For(&autov1alpha1.StackRollout{}, builder.WithPredicates(changed)).
		Watches(&autov1alpha1.Approval{}, handler.EnqueueRequestsFromMapFunc(rolloutOfApproval)).
		WithOptions(options)
	if changes := (predicate.Funcs{UpdateFunc: concerns}); r.AllStacks == nil {
		build = build.Watches(&pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(rolloutOf), builder.WithPredicates(changes))
	} else {
		if err := r.addIndexes(ctx); err != nil {
			return err
		}
		build = build.WatchesRawSource(ctrlsource.Kind[client.Object](
			r.AllStacks, &pulumiv1.Stack{}, handler.EnqueueRequestsFromMapFunc(rolloutOf), changes))
	}
	for _, watch := range r.Sources.Watches(mgr.GetCache(), r.rolloutsOf) {
		build = build.WatchesRawSource(watch)
	}
	build = build.WatchesRawSource(r.Namespaces.Source(r.rolloutsThatReadNamespaces))
	large := informercache.ShowingTooLarge(r, r.Client, r.EventRecorder, &autov1alpha1.StackRollout{},
		metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: pulumiv1.SpecInvalidReason},
		metav1.Condition{Type: meta.StalledCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.SpecInvalidReason})
	if err := build.Complete(large); err != nil {
		return fmt.Errorf("build the StackRollout controller: %w", err)
	}
	return nil
}

// rolloutOf returns the StackRollout that a Stack names.
func rolloutOf(_ context.Context, object client.Object) []reconcile.Request {
	if key, named := waves.RolloutOf(object.(*pulumiv1.Stack)); named {
		return []reconcile.Request{{NamespacedName: key}}
	}
	return nil
}

// rolloutOfApproval returns the StackRollout that an Approval is about.
func rolloutOfApproval(_ context.Context, object client.Object) []reconcile.Request {
	if name := object.(*autov1alpha1.Approval).Spec.Rollout; name != "" {
		return []reconcile.Request{{Namespace: object.GetNamespace(), Name: name}}
	}
	return nil
}

// concerns reports whether a change of a Stack can change what its StackRollout decides.
func concerns(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*pulumiv1.Stack), e.ObjectNew.(*pulumiv1.Stack)
	if before.Spec.RolloutRef == nil && after.Spec.RolloutRef == nil {
		return false
	}
	was, is := before.Status.LastUpdate, after.Status.LastUpdate
	return before.Generation != after.Generation || before.Status.ObservedGeneration != after.Status.ObservedGeneration ||
		before.Status.LastAppliedRevision != after.Status.LastAppliedRevision ||
		!maps.Equal(statusesOf(before), statusesOf(after)) ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels) || driftOf(before) != driftOf(after) || planOf(before) != planOf(after) ||
		(was == nil) != (is == nil) || was != nil && (was.Name != is.Name || was.LastAttemptedCommit != is.LastAttemptedCommit)
}

// driftOf returns what a wave with noDrift reads of a Stack.
func driftOf(stack *pulumiv1.Stack) (seen struct {
	checked                     string
	found, unconfirmed, unknown bool
}) {
	if drift := stack.Status.Drift; drift != nil {
		seen.checked, seen.found, seen.unconfirmed, seen.unknown = drift.CheckedUpdate, drift.Digest != "", drift.Unconfirmed != "", drift.Failures > 0
	}
	return seen
}

// planOf returns what a StackRollout reads of the plan of a Stack.
func planOf(stack *pulumiv1.Stack) (seen struct {
	commit, revision string
	state            pulumiv1.PlanState
	operation        pulumiv1.ApprovedOperation
}) {
	if plan := stack.Status.Plan; plan != nil {
		seen.commit, seen.revision, seen.state, seen.operation = plan.Commit, plan.Revision, plan.State, plan.Operation
	}
	return seen
}

// statusesOf returns the status of each condition, by its type. A check may read all of them.
func statusesOf(stack *pulumiv1.Stack) map[string]metav1.ConditionStatus {
	statuses := make(map[string]metav1.ConditionStatus, len(stack.Status.Conditions))
	for i := range stack.Status.Conditions {
		statuses[stack.Status.Conditions[i].Type] = stack.Status.Conditions[i].Status
	}
	return statuses
}

// rolloutsThatReadNamespaces returns the StackRollouts that may concern a Namespace whose labels have changed. Of a large one the cache may not have the
// selectors.
func (r *Reconciler) rolloutsThatReadNamespaces(ctx context.Context, _ string) (requests []reconcile.Request) {
	list := &autov1alpha1.StackRolloutList{}
	if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the stackrollouts that select namespaces")
	}
	for i := range list.Items {
		if rollout := &list.Items[i]; waves.ReadsNamespaces(rollout) || informercache.IsShortened(rollout) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(rollout)})
		}
	}
	return requests
}

// rolloutsOf returns the StackRollouts that the source with the key concerns: it is their source, or that of one of their Stacks.
func (r *Reconciler) rolloutsOf(ctx context.Context, key string) (requests []reconcile.Request) {
	found := map[types.NamespacedName]bool{}
	list := &autov1alpha1.StackRolloutList{}
	if err := r.List(ctx, list, client.MatchingFields{sourceIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the stackrollouts of a source", "source", key)
	}
	for i := range list.Items {
		found[client.ObjectKeyFromObject(&list.Items[i])] = true
	}
	stacks := &pulumiv1.StackList{}
	if err := r.stacks().List(ctx, stacks, client.MatchingFields{informercache.StacksBySource: key}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the stacks of a source", "source", key)
	}
	for i := range stacks.Items {
		if rollout, named := waves.RolloutOf(&stacks.Items[i]); named {
			found[rollout] = true
		}
	}
	for rollout := range found {
		requests = append(requests, reconcile.Request{NamespacedName: rollout})
	}
	return requests
}

// Reconcile observes, decides, and writes the status.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	r.begin.Do(func() { r.started = time.Now() })
	rollout := &autov1alpha1.StackRollout{}
	if err := r.Get(ctx, request.NamespacedName, rollout); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			r.Store.Keep(request.String(), nil)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !rollout.DeletionTimestamp.IsZero() || !r.Shard.Has(rollout) {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, r.keepForShard(ctx, rollout)
	}
	if at, found := r.written.Load(request.NamespacedName); found {
		if left := writeInterval - time.Since(at.(time.Time)); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
	}
	o, err := r.observe(ctx, rollout)
	switch {
	case errors.Is(err, namespaces.ErrNotYet):
		return ctrl.Result{RequeueAfter: writeInterval}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	d := decide(*o)
	r.Store.Keep(request.String(), neededBy(&d.status, o.members))
	ctrl.LoggerFrom(ctx).V(1).Info("decided", "waker", d.wake, "after", d.after.String(), "reason", d.reason, "message", d.message)
	before := rollout.DeepCopy()
	rollout.Status = d.status
	mark(rollout, d)
	rollout.Status.LastHandledReconcileAt = lastRequest(rollout)
	r.Metrics.Observe(rollout, d.blocked)
	if equality.Semantic.DeepEqual(before.Status, rollout.Status) {
		return ctrl.Result{RequeueAfter: d.after}, nil
	}
	err = patch.Status(ctx, r.Client, before, rollout)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	case err != nil:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.written.Store(request.NamespacedName, time.Now())
	r.announce(rollout, o.commit, d.events)
	return ctrl.Result{RequeueAfter: d.after}, nil
}

// forget removes what is remembered of a StackRollout that is gone, or belongs to another shard.
func (r *Reconciler) forget(key types.NamespacedName) {
	r.written.Delete(key)
	r.hours.Delete(key)
	r.checks.Delete(key)
	r.warned.Delete(key)
	r.Metrics.Forget(key.Namespace, key.Name)
}

// neededBy returns the digests of the artifacts that the Stacks of a StackRollout may need, at most maxKept: the target, what new Stacks begin with,
// and what Stacks ran last, also of sources of their own. Of these it prefers what Stacks ran that wait, because their sources offer it no longer.
// The order of the members, which may be another one each time, does not matter.
func neededBy(status *autov1alpha1.StackRolloutStatus, members []*waves.Member) (digests []string) {
	if status.Target != nil && status.Target.Digest != "" {
		digests = append(digests, status.Target.Digest)
	}
	if status.Stable != nil && status.Stable.Digest != "" && !slices.Contains(digests, status.Stable.Digest) {
		digests = append(digests, status.Stable.Digest)
	}
	waiting, others := sets.Set[string]{}, sets.Set[string]{}
	for _, m := range members {
		switch {
		case !waves.IsDigest(m.Has) || slices.Contains(digests, m.Has):
		case m.HasTarget:
			others.Insert(m.Has)
		default:
			waiting.Insert(m.Has)
		}
	}
	digests = slices.Concat(digests, sets.List(waiting), sets.List(others.Difference(waiting)))
	return digests[:min(len(digests), maxKept)]
}

func lastRequest(rollout *autov1alpha1.StackRollout) string {
	if value, requested := meta.ReconcileAnnotationValue(rollout.Annotations); requested {
		return value
	}
	return rollout.Status.LastHandledReconcileAt
}

// mark sets the conditions. A StackRollout that goes on, soaks, or is suspended is Ready: whoever waits for it with kstatus must not wait for
// days.
func mark(rollout *autov1alpha1.StackRollout, d decision) {
	complete, message := metav1.ConditionFalse, plaintext.Cut(d.message, maxMessage)
	if d.complete {
		complete = metav1.ConditionTrue
	}
	set := func(kind string, status metav1.ConditionStatus) {
		conditions.Set(rollout, &metav1.Condition{Type: kind, Status: status, Reason: d.reason, Message: message, ObservedGeneration: rollout.Generation})
	}
	set(autov1alpha1.RolloutComplete, complete)
	if !d.failed {
		set(meta.ReadyCondition, metav1.ConditionTrue)
		conditions.Delete(rollout, meta.ReconcilingCondition)
		conditions.Delete(rollout, meta.StalledCondition)
		return
	}
	set(meta.ReadyCondition, metav1.ConditionFalse)
	if d.stalled {
		set(meta.StalledCondition, metav1.ConditionTrue)
		conditions.Delete(rollout, meta.ReconcilingCondition)
		return
	}
	set(meta.ReconcilingCondition, metav1.ConditionTrue)
	conditions.Delete(rollout, meta.StalledCondition)
}

// announce records events, with the revision for Flux's notification-controller. Its git providers set the status of the commit that an event
// names, and of the revision of each warning: so a warning that says nothing about what the commit contains has none.
func (r *Reconciler) announce(rollout *autov1alpha1.StackRollout, commit *autov1alpha1.CommitInfo, announcements []announcement) {
	target := ptr.Deref(rollout.Status.Target, autov1alpha1.RolloutTarget{}).Revision
	group := autov1alpha1.GroupVersion.Group + "/"
	for _, a := range announcements {
		if a.uninvited && !r.mayWarn(client.ObjectKeyFromObject(rollout), time.Now()) {
			continue
		}
		metadata := map[string]string{}
		if !a.warning || a.verdict {
			metadata[group+eventv1.MetaRevisionKey], metadata[group+eventv1.MetaOriginRevisionKey] = target, events.OriginRevision(target, commit)
		}
		if a.verdict {
			metadata[eventv1.Group+"/"+eventv1.MetaCommitKey] = events.CommitRevision(commit)
		}
		maps.DeleteFunc(metadata, func(_, value string) bool { return value == "" })
		kind := corev1.EventTypeNormal
		if a.warning {
			kind = corev1.EventTypeWarning
		}
		r.AnnotatedEventf(rollout, metadata, kind, a.reason, "%s", a.message)
	}
}

// mayWarn reports whether another Stack that is not admitted is announced: whoever creates them does not choose how often.
func (r *Reconciler) mayWarn(key types.NamespacedName, now time.Time) bool {
	if at, found := r.warned.Load(key); found && now.Sub(at.(time.Time)) < warnInterval {
		return false
	}
	r.warned.Store(key, now)
	return true
}

// follower returns a Stack that follows the source of the StackRollout and has its target: a source is resolved for a Stack.
func follower(rollout *autov1alpha1.StackRollout) *pulumiv1.Stack {
	ref := rollout.Spec.SourceRef
	stack := &pulumiv1.Stack{}
	stack.Namespace, stack.Name = rollout.Namespace, rollout.Name
	if target := rollout.Status.Target; target != nil {
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: target.Digest, LastResyncTime: target.Since}
	}
	if ref.Kind == pulumiv1.ProgramKind {
		stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: ref.Name}
		return stack
	}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name}}
	return stack
}

// stacksOf lists the Stacks that name the StackRollout. Callers must not change them: they are those of the cache.
func stacksOf(ctx context.Context, from client.Reader, rollout types.NamespacedName) ([]pulumiv1.Stack, error) {
	list := &pulumiv1.StackList{}
	err := from.List(ctx, list, client.MatchingFields{informercache.StacksByRollout: rollout.String()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the stacks of the stackrollout: %w", err)
	}
	return list.Items, nil
}
