// Package stack is the controller of Stacks: it observes a Stack, its source, its Workspace and its current Update,
// decides on one action, and carries it out. It never waits for a pulumi run.
package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	runtimecontroller "github.com/fluxcd/pkg/runtime/controller"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// DefaultShowAfter is how long an update runs before the status of its Stack shows it.
const DefaultShowAfter = 2 * time.Second

// outdatedInterval is the time to the next reconcile of a Stack when the decision was made from objects that have changed since.
const outdatedInterval = 100 * time.Millisecond

// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks/status,verbs=patch
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks/finalizers,verbs=update
// +kubebuilder:rbac:groups=pulumi.com,resources=programs,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces;updates,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=source.toolkit.fluxcd.io,resources=gitrepositories;ocirepositories;buckets;externalartifacts,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Stacks.
type Reconciler struct {
	client.Client
	record.EventRecorder
	runtimecontroller.Metrics

	// APIReader reads what must not be cached: Secrets, and what a decision depends on when the cache may be behind.
	APIReader client.Reader
	// Contents finds out which parts of artifacts are the same.
	Contents *artifact.Contents
	// DefaultServiceAccount is the identity of the workspace pods of Stacks that name none; empty leaves it to the Workspace.
	DefaultServiceAccount string
	// Pods is true when agents run in pods of their own, which have tokens of their ServiceAccounts.
	Pods bool
	// Scope says whether Stacks in other namespaces may be depended on.
	Scope references.Scope
	// Sources resolves sources.
	Sources *source.Set
	// Artifacts fetches artifacts into the store without blocking.
	Artifacts *artifact.Fetcher
	// Outputs writes the objects of spec.outputs.
	Outputs *outputobject.Writer
	// References watches the Secrets and ConfigMaps that Stacks use; nil when they are not watched.
	References *references.Watcher
	// Namespaces has the labels of Namespaces, by which a StackRollout may admit Stacks.
	Namespaces *namespaces.Watcher
	// Objects reads and watches the objects of other kinds that Stacks depend on; nil allows none.
	Objects *objectwatch.Watcher
	// WaitInterval is the time to the next reconcile when something is missing that no watch covers.
	WaitInterval time.Duration
	// ShowAfter is how long an update may run before the status shows that it runs. Of a shorter update, the status shows only the result.
	// Writing each step costs the API server, and every client that watches, more than the step itself.
	ShowAfter time.Duration
	// Traced is true when updates are traced: Updates then record what only traces need.
	Traced bool
	// Jitter is the fraction by which the intervals between attempts and between resyncs are lengthened at most.
	Jitter float64
	// RecentOutputs has the outputs that were just stored.
	RecentOutputs interface {
		Take(update *autov1alpha1.Update) *corev1.Secret
	}
	// StoredOutputs has outputs of other Stacks that were read a moment ago.
	StoredOutputs *inputs.Stored
	// Stacks are the metrics about Stacks.
	Stacks *metrics.Stacks
	// Shard has the Stacks of this controller; nil when it has all.
	Shard *shard.Shard
	// Reaches reports whether this controller can follow the operation of an Update that another controller has started; nil when it always
	// can, because agents run where every controller reaches them.
	Reaches func(ctx context.Context, workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) bool

	// evaluate evaluates a readyExpr, if it is set; otherwise readyexpr.Evaluate does.
	evaluate func(ctx context.Context, expression string, self, dep *pulumiv1.Stack) (bool, error)
	// evaluated has the expressions of a Stack that were true, by the name of the Stack, while others of the Stack are left for the next
	// reconcile.
	evaluated sync.Map
	// evaluatedObjects is the same for the expressions about objects of other kinds.
	evaluatedObjects sync.Map
	// comparedInputs has, by the name of the Stack, what was read of its inputs.
	comparedInputs sync.Map
	// writtenOutputs has, by the name of the Stack, what its objects with outputs have, see recallOutputs.
	writtenOutputs sync.Map
	// paging is held while listLive has a page in memory.
	paging sync.Mutex
}

// Reconcile observes, decides, acts, and writes the status at most once.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	start := time.Now()
	stack := &pulumiv1.Stack{}
	if err := r.Get(ctx, request.NamespacedName, stack); err != nil {
		if apierrors.IsNotFound(err) {
			r.Stacks.Forget(request.NamespacedName)
			r.evaluated.Delete(request.NamespacedName)
			r.evaluatedObjects.Delete(request.NamespacedName)
			r.writtenOutputs.Delete(request.NamespacedName)
			r.comparedInputs.Delete(request.NamespacedName)
			r.Sources.Forget(request.NamespacedName)
			r.forgetDuration(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	defer func() {
		r.Stacks.Observe(stack)
		r.RecordDuration(ctx, stack, start)
	}()
	if !stack.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(stack, pulumiv1.Finalizer) {
		return ctrl.Result{}, nil
	}
	if err := r.ensureFinalizer(ctx, stack); err != nil {
		return ctrl.Result{}, err
	}

	before := stack.DeepCopy()
	outcome, err := r.reconcile(ctx, stack)
	if large, ok := errors.AsType[*informercache.TooLargeError](err); ok {
		// The object is the Workspace, an Update, a Stack that this one depends on, or a Stack that depends on this one.
		recorded := outcome.then
		outcome, err = r.stall(stack, decision{reason: pulumiv1.SpecInvalidReason, message: large.Error(), after: r.WaitInterval}), nil
		outcome.then = append(recorded, outcome.then...)
	}
	if err == nil {
		r.announceProblem(stack, start, &outcome)
	}
	if err == nil && outcome.hiddenFor > 0 && len(outcome.then) == 0 && r.onlyStarted(ctx, before, stack) {
		return ctrl.Result{RequeueAfter: soonest(outcome.hiddenFor, outcome.after)}, nil
	}
	if writeErr := r.write(ctx, before, stack); apierrors.IsConflict(writeErr) {
		return ctrl.Result{RequeueAfter: outdatedInterval}, nil
	} else if writeErr != nil {
		return ctrl.Result{}, writeErr
	}
	// These steps follow only when the status is written: an event must not be repeated, and an object that they delete may be the only other
	// record of what the status says. They also follow when the action after the result of an Update failed: the status has the result now, so
	// no later reconcile would take them.
	if err := errors.Join(err, outcome.finish(ctx)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: outcome.after}, nil
}

// outcome is how one reconcile ended.
type outcome struct {
	// after is when to come back; zero leaves it to the watches.
	after time.Duration
	// then are the steps that follow after the status is written. Each is taken also if one before it failed: none could be taken later.
	then []func(context.Context) error
	// hiddenFor is for how much longer the status may leave out that an update is in progress.
	hiddenFor time.Duration
	// announcesProblem says that there is an event about the problem that the Stack shows, in this reconcile or in an earlier one, and
	// announcesSuccess that there is one about an update that succeeded.
	announcesProblem, announcesSuccess bool
}

// addEvent adds a step that records an event.
func (o *outcome) addEvent(event func()) {
	o.then = append(o.then, func(context.Context) error {
		event()
		return nil
	})
}

// finish takes the steps that follow after the status is written.
func (o *outcome) finish(ctx context.Context) error {
	var failed []error
	for _, step := range o.then {
		failed = append(failed, step(ctx))
	}
	return errors.Join(failed...)
}

// soonest returns the shorter of two waits; zero stands for none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// reconcile reads, repairs what the status should say, decides and acts. It changes the status in memory only.
func (r *Reconciler) reconcile(ctx context.Context, stack *pulumiv1.Stack) (outcome, error) {
	o := &observation{now: time.Now(), stack: stack, waitInterval: r.WaitInterval, jitter: r.Jitter, shownPlan: shownPlan(stack)}
	err := r.observe(ctx, o)
	repair(o)
	switch {
	case errors.Is(err, namespaces.ErrNotYet):
		// The Stack may be one of a StackRollout: to take it for one that is not admitted would take its turn and its plan away. The watcher wakes it.
		return outcome{after: r.WaitInterval}, nil
	case err != nil:
		return outcome{}, err
	}
	result, ended, err := r.decideAndAct(ctx, o)
	if ended != nil {
		result.announcesSuccess = ended.announcesSuccess()
		result.then = slices.Insert(result.then, 0, func(ctx context.Context) error {
			if ended.planned {
				r.announcePlan(stack, ended.update)
			} else {
				r.announceResult(ctx, stack, ended.earlier, ended.result, ended.update)
			}
			return r.pruneUpdates(ctx, stack, ended.update.Name)
		})
	}
	return result, err
}

// decideAndAct decides and acts. A finished Update is recorded first; then there is a new decision to make. Content, and objects of other
// kinds, are looked up only for a decision that depends on them. ended is the Update whose end was recorded, also if what follows fails; nil when there was none.
func (r *Reconciler) decideAndAct(ctx context.Context, o *observation) (result outcome, ended *endedUpdate, err error) {
	for err == nil {
		d := decide(*o)
		ctrl.LoggerFrom(ctx).V(1).Info("decided", d.keysAndValues()...)
		o.stack.Status.Plan = d.plan
		switch {
		case d.action == actionRecord:
			ended, err = r.record(ctx, o)
		case d.needsContent(o):
			err = r.observeContent(ctx, o)
		case d.action == actionReadObjects:
			err = r.observeObjects(ctx, o)
		case d.action == actionTakeOver:
			if err = r.takeOver(ctx, o); err != nil {
				result, err = r.handleRejection(o, err)
				return result, nil, err
			}
			return outcome{after: d.after}, nil, nil
		case d.action == actionWriteOutputs:
			err = r.writeOutputs(ctx, o)
		default:
			result, err = r.actAlsoOnDrift(ctx, o, d)
			return result, ended, err
		}
	}
	return outcome{}, ended, err
}

func (r *Reconciler) actAlsoOnDrift(ctx context.Context, o *observation, d decision) (outcome, error) {
	drift := decideOnDrift(*o, d)
	result, err := r.act(ctx, o, d)
	if err == nil {
		r.actOnDrift(ctx, o, drift, &result)
		result.after = soonest(result.after, showHeld(o, d))
	}
	if o.unheard || o.artifact != nil && !o.artifact.Watched {
		result.after = soonest(result.after, r.WaitInterval)
	}
	if o.otherShard != nil {
		// Changes of the Update wake only the other controller.
		result.after = r.WaitInterval
	}
	return result, err
}

// forgetDuration deletes the duration metric of a Stack that no longer exists. Flux's library does this in the last reconcile of a
// Stack, but there is none when somebody else removes the finalizer.
func (r *Reconciler) forgetDuration(stack types.NamespacedName) {
	if r.MetricsRecorder != nil {
		r.MetricsRecorder.DeleteDuration(corev1.ObjectReference{Kind: pulumiv1.StackKind, Namespace: stack.Namespace, Name: stack.Name})
	}
}

// endedUpdate is an Update whose end a reconcile has recorded.
type endedUpdate struct {
	update *autov1alpha1.Update
	// planned is true when the end concerns only a plan and is not the result of an update.
	planned bool
	// earlier is the result that the status had before, result the one that it has now.
	earlier, result *pulumiv1.StackUpdateStatus
}

// record records the end of the current Update in the status, and takes the Update out of the observation.
func (r *Reconciler) record(ctx context.Context, o *observation) (ended *endedUpdate, err error) {
	ended = &endedUpdate{update: o.update, earlier: o.stack.Status.LastUpdate}
	if ended.planned, err = r.recordPlan(ctx, o, o.update); err != nil {
		return nil, err
	}
	if !ended.planned {
		outputs, err := r.readOutputs(ctx, o.update)
		if err != nil {
			return nil, err
		}
		recordResult(o.stack, o.update, outputs)
		if givesOutputs(o.update) {
			o.outputs.source, o.outputs.values = sourceOfOutputs(o.update), outputs
		}
	}
	followGeneration(o.stack)
	ended.result = o.stack.Status.LastUpdate
	o.update, o.now = nil, time.Now()
	if hasUnknownInputs(o.stack) {
		err = r.observeInputs(ctx, o)
	}
	if err == nil && o.held != nil {
		// What a held Stack has is what it ran last.
		o.held, o.sourceProblem = nil, nil
		err = r.observeSource(ctx, o)
	}
	return ended, err
}

// onlyStarted reports whether the reconcile changed nothing but that an update is in progress, or that its operation began. The Update
// itself shows this, so nothing is lost when the status is written later, see observeUpdates. If other Stacks depend on this one,
// onlyStarted returns false, because they have to know at once.
func (r *Reconciler) onlyStarted(ctx context.Context, before, stack *pulumiv1.Stack) bool {
	was, is := before.Status.DeepCopy(), stack.Status.DeepCopy()
	if is.CurrentUpdate == nil || len(r.findStacks(ctx, dependencyIndex, client.ObjectKeyFromObject(stack).String())) > 0 {
		return false
	}
	for _, status := range []*pulumiv1.StackStatus{was, is} {
		status.CurrentUpdate, status.Conditions, status.Deployed = nil, nil, false
		status.ObservedGeneration, status.LastAttemptedRevision = 0, ""
		status.LastHandledReconcileAt, status.ObservedReconcileRequest, status.ObservedLastUpdateRequest = "", "", ""
	}
	return equality.Semantic.DeepEqual(was, is)
}

// ensureFinalizer adds the finalizer before anything is created that it has to clean up.
func (r *Reconciler) ensureFinalizer(ctx context.Context, stack *pulumiv1.Stack) error {
	if !stack.DeletionTimestamp.IsZero() || controllerutil.ContainsFinalizer(stack, pulumiv1.Finalizer) {
		return nil
	}
	before := stack.DeepCopy()
	controllerutil.AddFinalizer(stack, pulumiv1.Finalizer)
	if err := patch.Object(ctx, r.Client, before, stack); err != nil {
		return fmt.Errorf("add the finalizer: %w", err)
	}
	return nil
}

// write writes what the reconcile changed: first the annotation that has to outlive the status, and then the status. Both fail with a
// conflict when the Stack has changed since the decision. After the Stack was released, it may not exist any longer, which is not an error.
func (r *Reconciler) write(ctx context.Context, before, stack *pulumiv1.Stack) error {
	if err := r.annotateDeployed(ctx, before, stack); err != nil {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(patch.Status(ctx, r.Client, before, stack))
}

// annotateDeployed also records in an annotation that the Stack has deployed something, because a status can be lost: backups leave it out,
// and it can be edited. See restoreDeployed. While the first Update runs, that is the record.
func (r *Reconciler) annotateDeployed(ctx context.Context, before, stack *pulumiv1.Stack) error {
	deployed, known := stack.Annotations[pulumiv1.DeployedStackAnnotation]
	current := stack.Status.CurrentUpdate
	if !stack.Status.Deployed || stack.Status.LastUpdate == nil || current != nil && current.First || known && deployed == stack.Status.DeployedStack {
		return nil
	}
	annotated := before.DeepCopy()
	metav1.SetMetaDataAnnotation(&annotated.ObjectMeta, pulumiv1.DeployedStackAnnotation, stack.Status.DeployedStack)
	if err := patch.Object(ctx, r.Client, before, annotated); err != nil {
		return fmt.Errorf("annotate what is deployed: %w", err)
	}
	// Nothing else changed: the status that was decided on is still that of this object.
	for _, object := range []*pulumiv1.Stack{before, stack} {
		object.ResourceVersion = annotated.ResourceVersion
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, pulumiv1.DeployedStackAnnotation, stack.Status.DeployedStack)
	}
	return nil
}
