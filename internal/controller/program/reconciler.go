// Package program is the controller of Programs: it reports whether a Program can be rendered, and describes it as an artifact that Stacks
// use like any other.
package program

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source/render"
)

// eventNewArtifact is the reason of the event about a new artifact, as in Flux sources.
const eventNewArtifact = "NewArtifact"

// conflictInterval is the time until a Program is reconciled again whose status could not be written because the Program had changed.
const conflictInterval = 500 * time.Millisecond

// +kubebuilder:rbac:groups=pulumi.com,resources=programs,verbs=get;list;watch
// +kubebuilder:rbac:groups=pulumi.com,resources=programs/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Programs. It keeps nothing of a Program outside of the object, except metrics, so a deletion needs no finalizer.
type Reconciler struct {
	client.Client
	record.EventRecorder
	// APIReader reads Programs from the API server, because the cache does not keep the programs themselves.
	APIReader client.Reader
	// Selector picks the Programs whose status this controller writes; nil means all of them. The cache also has the other Programs,
	// because a Stack may use a Program with any labels.
	Selector labels.Selector
	// Metrics counts the Programs; nil counts nothing.
	Metrics *metrics.Programs
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	err := ctrl.NewControllerManagedBy(mgr).
		For(&pulumiv1.Program{}, builder.WithPredicates(predicate.And(r.selected(), changed))).
		WithOptions(options).
		Complete(informercache.ShowingTooLarge(r, r.Client, r.EventRecorder, &pulumiv1.Program{},
			metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: pulumiv1.ProgramInvalidReason},
			metav1.Condition{Type: meta.StalledCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.ProgramInvalidReason}))
	if err != nil {
		return fmt.Errorf("build the Program controller: %w", err)
	}
	return nil
}

// selected lets events of the Programs of this controller pass, including an update after which the Selector does not select the Program
// any longer.
func (r *Reconciler) selected() predicate.Predicate {
	selected := predicate.NewPredicateFuncs(r.selects)
	selected.UpdateFunc = func(e event.UpdateEvent) bool { return r.selects(e.ObjectOld) || r.selects(e.ObjectNew) }
	return selected
}

func (r *Reconciler) selects(object client.Object) bool {
	return r.Selector == nil || r.Selector.Matches(labels.Set(object.GetLabels()))
}

// Reconcile renders the Program, and writes its status if it has changed. The status depends only on the Program, so only a change of the
// Program causes a reconcile.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	program := &pulumiv1.Program{}
	if err := r.APIReader.Get(ctx, request.NamespacedName, program); apierrors.IsNotFound(err) {
		r.Metrics.Forget(request.NamespacedName)
		return ctrl.Result{}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !r.selects(program) {
		r.Metrics.Forget(request.NamespacedName)
		return ctrl.Result{}, nil
	}
	r.Metrics.Observe(request.NamespacedName)
	if !program.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := program.DeepCopy()
	tarball, err := render.Program(program)
	if invalid, ok := errors.AsType[*render.InvalidError](err); ok {
		markInvalid(program, invalid)
	} else if err != nil {
		return ctrl.Result{}, err
	} else {
		markReady(program, digest.FromBytes(tarball), int64(len(tarball)), time.Now())
	}
	// A Program that was deleted needs no status. A Program that changed meanwhile is reconciled again.
	if err := client.IgnoreNotFound(patch.Status(ctx, r.Client, before, program)); apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.announce(before, program)
	return ctrl.Result{}, nil
}

// markReady sets the status of a Program that can be rendered, with the artifact.
func markReady(program *pulumiv1.Program, packed digest.Digest, size int64, now time.Time) {
	revision := strconv.FormatInt(program.Generation, 10)
	path := fmt.Sprintf("%s/%s/%s", program.Namespace, program.Name, revision)
	artifact := &meta.Artifact{
		Path: path,
		// No server has this URL: the controller renders the Program when a Stack needs it, and pushes it to the agent.
		URL:            "program://" + path,
		Revision:       revision,
		Digest:         packed.String(),
		LastUpdateTime: metav1.NewTime(now.Truncate(time.Second)),
		Size:           &size,
	}
	if last := program.Status.Artifact; last != nil && last.Revision == revision && last.Digest == artifact.Digest {
		artifact.LastUpdateTime = last.LastUpdateTime
	}
	program.Status.Artifact = artifact
	program.Status.ObservedGeneration = program.Generation
	conditions.Delete(program, meta.ReconcilingCondition)
	conditions.Delete(program, meta.StalledCondition)
	conditions.MarkTrue(program, meta.ReadyCondition, meta.SucceededReason, "the program can be run, revision %s", revision)
}

// markInvalid sets the status of a Program that cannot be rendered. It removes the artifact, because that of an earlier generation cannot
// be made any longer.
func markInvalid(program *pulumiv1.Program, invalid *render.InvalidError) {
	program.Status.Artifact = nil
	program.Status.ObservedGeneration = program.Generation
	conditions.Delete(program, meta.ReconcilingCondition)
	conditions.MarkStalled(program, pulumiv1.ProgramInvalidReason, "%s", invalid.Error())
	conditions.MarkFalse(program, meta.ReadyCondition, pulumiv1.ProgramInvalidReason, "%s", invalid.Error())
}

// announce records an event about a new artifact, and about each edit that leaves or makes the program invalid. It is called after the
// status is written; before is the Program as it was read.
func (r *Reconciler) announce(before, program *pulumiv1.Program) {
	was, is := before.Status.Artifact, program.Status.Artifact
	switch {
	case is == nil && before.Status.ObservedGeneration != program.Generation:
		r.Event(program, corev1.EventTypeWarning, pulumiv1.ProgramInvalidReason, conditions.GetMessage(program, meta.ReadyCondition))
	case is != nil && (was == nil || was.Revision != is.Revision || was.Digest != is.Digest):
		metadata := map[string]string{
			pulumiv1.GroupVersion.Group + "/" + eventv1.MetaRevisionKey: is.Revision,
			pulumiv1.GroupVersion.Group + "/" + eventv1.MetaDigestKey:   is.Digest,
		}
		r.AnnotatedEventf(program, metadata, corev1.EventTypeNormal, eventNewArtifact, "revision %s, %s", is.Revision, is.Digest)
	}
}
