// Package workspace is the controller of Workspaces: it keeps an agent for each of them and shows in the status whether operations can run
// there.
package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// infoTimeout bounds how long a worker waits for the agent, which answers from memory.
const infoTimeout = 5 * time.Second

// outdatedInterval is the time to the next reconcile of a Workspace that has changed since it was read. The cache gets its latest version
// meanwhile.
const outdatedInterval = 500 * time.Millisecond

// eventIgnored is the reason of the event about fields of the spec that have no effect.
const eventIgnored = "PodTemplateIgnored"

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates,verbs=get;list;watch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconciler reconciles Workspaces.
type Reconciler struct {
	ctrlclient.Client
	record.EventRecorder
	// Runtime runs the agents. If it also implements ignorer, it reports which fields have no effect.
	Runtime agentruntime.Runtime
	// IdleTimeout is how long a Workspace without an idle timeout of its own may have nothing to do before its agent ends; zero means forever.
	IdleTimeout time.Duration
}

// showAfter is how long a new Workspace may be starting before its status shows that.
const showAfter = 2 * time.Second

// ignorer is a Runtime for which some fields of a Workspace have no effect.
type ignorer interface {
	// Ignores lists the names of the fields in spec that are set and have no effect.
	Ignores(workspace *autov1alpha1.Workspace) []string
}

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		For(&autov1alpha1.Workspace{}, builder.WithPredicates(
			predicate.Or[ctrlclient.Object](predicate.GenerationChangedPredicate{}, shownChanged))).
		Watches(&autov1alpha1.Update{}, handler.EnqueueRequestsFromMapFunc(r.requestsForUpdate), builder.WithPredicates(updateCameOrEnded)).
		WatchesRawSource(source.Channel(r.Runtime.Events(), &handler.EnqueueRequestForObject{})).
		WithOptions(options).
		Complete(informercache.ShowingTooLarge(r, r.Client, r.EventRecorder, &autov1alpha1.Workspace{},
			metav1.Condition{Type: autov1alpha1.WorkspaceReady, Status: metav1.ConditionFalse, Reason: autov1alpha1.PodTemplateInvalidReason},
			metav1.Condition{Type: autov1alpha1.WorkspaceStalled, Status: metav1.ConditionTrue, Reason: autov1alpha1.PodTemplateInvalidReason}))
	if err != nil {
		return fmt.Errorf("build the Workspace controller: %w", err)
	}
	return nil
}

// Reconcile ensures that there is an agent, decides what to show of it, and writes the status at most once. It does not wait: a change of
// the agent wakes the Workspace. Where the runtime cannot notice a change, it returns the time to the next reconcile.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	workspace := &autov1alpha1.Workspace{}
	err := r.Get(ctx, request.NamespacedName, workspace)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.remove(ctx, request)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read the workspace: %w", err)
	}
	observed := r.ensureAgent(ctx, workspace)
	if ctx.Err() != nil {
		// The manager and the runtime are stopping, so the error is not about the agent.
		return ctrl.Result{}, nil
	}
	decided := decide(observed)
	if left := decided.hiddenFor(workspace, time.Now()); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	before := workspace.DeepCopy()
	decided.apply(workspace)
	err = patch.Status(ctx, r.Client, before, workspace)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: outdatedInterval}, nil
	}
	if ctrlclient.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	r.announce(before, decided)
	return ctrl.Result{RequeueAfter: decided.after}, decided.retry
}

// hiddenFor returns for how much longer the status of a new Workspace may leave out that the agent is starting. It is shorter if the
// runtime asks for an earlier reconcile.
func (d decision) hiddenFor(workspace *autov1alpha1.Workspace, now time.Time) time.Duration {
	if d.state != stateStarting || len(workspace.Status.Conditions) > 0 {
		return 0
	}
	left := backoff.Left(showAfter, workspace.CreationTimestamp.Time, now)
	if d.after > 0 {
		return min(left, d.after)
	}
	return left
}

// works reports whether the status is that of an agent that is ready for operations, as the last edit asks for it.
func works(workspace *autov1alpha1.Workspace) bool {
	return conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady) && !isIdle(workspace) && workspace.Status.ObservedGeneration == workspace.Generation
}

// ensureAgent ensures that there is an agent, and asks for its state.
func (r *Reconciler) ensureAgent(ctx context.Context, workspace *autov1alpha1.Workspace) observation {
	o := observation{deleting: !workspace.DeletionTimestamp.IsZero(), pulumiVersion: workspace.Status.PulumiVersion,
		structured: structured(workspace), idle: isIdle(workspace), ready: conditions.IsTrue(workspace, autov1alpha1.WorkspaceReady), works: works(workspace)}
	if o.deleting {
		// The agent ends when the object is gone: until then an operation may still run to its end.
		return o
	}
	updates, err := r.historyOf(ctx, workspace)
	if err != nil {
		o.err = err
		return o
	}
	left, mayIdle := idleIn(workspace, updates, r.idleTimeout(workspace), time.Now())
	mayIdle = mayIdle && left == 0
	o.idle = o.idle && mayIdle
	o.agent, o.err = r.Runtime.Ensure(ctx, workspace, mayIdle)
	if o.err != nil || !o.agent.Ready {
		return o
	}
	o.last, o.idleIn = failureOfUpdate(updates.last), left
	if o.agent.Resting && o.pulumiVersion != "" && cli.Problem(o.pulumiVersion, o.structured) == "" {
		// A call would start the agent, and its version is known.
		return o
	}
	o.idle = false // its version has to be known
	version, err := r.askVersion(ctx, workspace)
	if o.err = err; err == nil {
		o.pulumiVersion = version
	}
	return o
}

// askVersion returns the version of the pulumi CLI, which also proves that the agent answers.
func (r *Reconciler) askVersion(ctx context.Context, workspace *autov1alpha1.Workspace) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	agent, err := r.Runtime.Wake(ctx, workspace)
	if err != nil {
		return "", err
	}
	info, err := agent.GetInfo(ctx)
	if err != nil {
		return "", err
	}
	return info.GetPulumiVersion(), nil
}

// structured reports whether the Workspace has configuration values that are not text.
func structured(workspace *autov1alpha1.Workspace) bool {
	return slices.ContainsFunc(workspace.Spec.Stacks, func(stack autov1alpha1.WorkspaceStack) bool {
		return slices.ContainsFunc(stack.Config, func(item autov1alpha1.ConfigItem) bool {
			if item.Value != nil {
				return !bytes.HasPrefix(bytes.TrimSpace(item.Value.Raw), []byte(`"`))
			}
			return item.ValueFrom != nil && item.ValueFrom.JSON
		})
	})
}

// remove ends the agent of a Workspace that no longer exists. While the agent is ending, there is nothing to do: an event follows.
func (r *Reconciler) remove(ctx context.Context, request ctrl.Request) error {
	err := r.Runtime.Delete(ctx, request.NamespacedName)
	if errors.Is(err, agentruntime.ErrEnding) || ctx.Err() != nil {
		return nil
	}
	return err
}

// apply changes the status according to the decision.
func (d decision) apply(workspace *autov1alpha1.Workspace) {
	switch d.state {
	case stateUnchanged:
		return
	case stateReady:
		conditions.Delete(workspace, autov1alpha1.WorkspaceReconciling)
		conditions.Delete(workspace, autov1alpha1.WorkspaceStalled)
	case stateStalled:
		conditions.MarkStalled(workspace, d.reason, "%s", d.message)
	case stateFailing:
		conditions.MarkReconciling(workspace, meta.ProgressingWithRetryReason, "%s", d.message)
	case stateStarting, stateDeleting:
		conditions.MarkReconciling(workspace, meta.ProgressingReason, "%s", d.message)
	}
	if d.state == stateReady {
		conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	} else {
		conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, d.reason, "%s", d.message)
	}
	if d.state == stateDeleting {
		return
	}
	workspace.Status.Address = d.address
	workspace.Status.PulumiVersion = d.pulumiVersion
	workspace.Status.FailedUpdate = d.failedUpdate
	if d.state == stateReady || d.state == stateStalled {
		// Only a final state counts as observed.
		workspace.Status.ObservedGeneration = workspace.Generation
	}
}

// announce records the events: a failure when it begins, and, once for each generation, that fields have no effect. It is called after the
// status is written, with the Workspace as it was before: a write that fails is repeated, but an event must not be.
func (r *Reconciler) announce(workspace *autov1alpha1.Workspace, d decision) {
	// The failure of an operation is reported for its Update.
	if d.failedUpdate == "" && (d.state == stateFailing || d.state == stateStalled) {
		if conditions.GetReason(workspace, autov1alpha1.WorkspaceReady) != d.reason {
			r.Event(workspace, corev1.EventTypeWarning, d.reason, d.message)
		}
	}
	runtime, ok := r.Runtime.(ignorer)
	if !ok || d.state != stateReady || workspace.Status.ObservedGeneration == workspace.Generation {
		return
	}
	if fields := runtime.Ignores(workspace); len(fields) > 0 {
		r.Eventf(workspace, corev1.EventTypeNormal, eventIgnored,
			"fields of spec that have no effect: %s; programs run as processes of the controller, not in pods", strings.Join(fields, ", "))
	}
}
