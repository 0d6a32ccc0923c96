// Package update is the controller of Updates. An Update is one operation of pulumi: the controller starts it at the agent of
// its Workspace with all that it needs, watches it, records its result, and never waits for it: the agent owns the operation,
// so a controller that is replaced meanwhile changes nothing for it.
package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	watched "github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/runtime"
	"github.com/stack-controller/stack-controller/internal/source"
)

const (
	// defaultProgressInterval is how often progress is written at most; the end of an operation is written at once.
	defaultProgressInterval = 2 * time.Second
	// conflictInterval is when an Update is looked at again that was changed while it was decided on.
	conflictInterval = 100 * time.Millisecond
	// notFoundInterval is when an Update is looked at again after something disappeared while it was acted on.
	notFoundInterval = time.Second
)

// Options are what the controller needs.
type Options struct {
	// Client reads Updates and Workspaces from the cache, and writes.
	Client ctrlclient.Client
	// APIReader reads from the API server. Secrets and ConfigMaps are never cached.
	APIReader ctrlclient.Reader
	// Runtime knows the agents.
	Runtime runtime.Runtime
	// Store has the artifacts.
	Store *artifact.Store
	// Artifacts fetches into the store. It is this controller's own: its events wake Updates. The caller runs it.
	Artifacts *artifact.Fetcher
	// Git finds and checks out commits, and Programs renders Programs. The caller runs Git.
	Git      *source.Git
	Programs *source.Programs
	// Recorder records events.
	Recorder record.EventRecorder
	// ProgressInterval is how often the progress of a running operation is written at most; 2 seconds when zero.
	ProgressInterval time.Duration
	// Pods says that agents run in pods of their own. Then the image or an init container may bring the program along, and a
	// variable may have a value that only its container knows.
	Pods bool
	// References watches Secrets and ConfigMaps; nil when nobody does. One that appears wakes the Updates that may wait for it.
	References *watched.Watcher
	// Controller are the options of the controller, for example the number of workers.
	Controller controller.Options
}

// Reconciler reconciles Updates.
type Reconciler struct {
	client    ctrlclient.Client
	live      ctrlclient.Reader
	runtime   runtime.Runtime
	store     *artifact.Store
	artifacts *artifact.Fetcher
	// commits follows the repositories that Workspaces name, as long as an Update waits for a commit of them.
	commits      *source.GitSubscription
	repositories *source.Git
	programs     *source.Programs
	recorder     record.EventRecorder
	log          logr.Logger

	progressInterval time.Duration
	jobs             *jobs
	deliveries       *deliveries
	endings          *endings
	pods             bool
	watcher          *watched.Watcher
}

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates/status,verbs=patch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates/finalizers,verbs=update
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=workspaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager adds the controller to the manager.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	r := &Reconciler{
		client:           options.Client,
		live:             options.APIReader,
		runtime:          options.Runtime,
		store:            options.Store,
		artifacts:        options.Artifacts,
		commits:          options.Git.Subscribe(),
		repositories:     options.Git,
		programs:         options.Programs,
		recorder:         options.Recorder,
		log:              mgr.GetLogger().WithName("update"),
		progressInterval: options.ProgressInterval,
		jobs:             newJobs(),
		deliveries:       newDeliveries(),
		endings:          newEndings(),
		pods:             options.Pods,
		watcher:          options.References,
	}
	if r.progressInterval == 0 {
		r.progressInterval = defaultProgressInterval
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &autov1alpha1.Update{}, workspaceNameIndex, indexByWorkspace); err != nil {
		return fmt.Errorf("index updates by their workspace: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &autov1alpha1.Update{}, waitingIndex, indexWaiting); err != nil {
		return fmt.Errorf("index updates that have not started: %w", err)
	}
	if err := mgr.Add(r.jobs); err != nil {
		return fmt.Errorf("add the observers of updates: %w", err)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("update").
		// Its own writes do not wake an Update; a deletion and an edit change the generation.
		For(&autov1alpha1.Update{}, builder.WithPredicates(predicate.Or[ctrlclient.Object](predicate.GenerationChangedPredicate{}, cancelAsked))).
		Watches(&autov1alpha1.Update{}, handler.EnqueueRequestsFromMapFunc(r.updatesBehind), builder.WithPredicates(madeRoom)).
		Watches(&autov1alpha1.Workspace{}, handler.EnqueueRequestsFromMapFunc(r.updatesOf), builder.WithPredicates(workspaceChanged)).
		WatchesRawSource(ctrlsource.Channel(r.jobs.signals, handler.TypedFuncs[signal, reconcile.Request]{GenericFunc: r.enqueue})).
		WatchesRawSource(ctrlsource.Channel(r.artifacts.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(ctrlsource.Channel(r.commits.Events(), &handler.EnqueueRequestForObject{})).
		WatchesRawSource(r.watcher.Source(r.updatesWaiting)).
		WithOptions(options.Controller).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the update controller: %w", err)
	}
	return nil
}

// Reconcile observes, decides and acts.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	update := &autov1alpha1.Update{}
	if err := r.client.Get(ctx, request.NamespacedName, update); err != nil {
		if apierrors.IsNotFound(err) {
			r.jobs.stop(request.NamespacedName)
			r.deliveries.drop(request.NamespacedName)
			r.endings.drop(request.NamespacedName)
			r.commits.Forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read the update: %w", err)
	}
	observed, err := r.observe(ctx, update)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(observed)
	log.V(1).Info("decided", "action", d.action, "reason", d.reason, "message", d.message, "wake", d.wake, "after", d.after.String())
	result, err := r.act(ctx, observed, d)
	switch {
	case ctx.Err() != nil:
		// The manager stops; the next one starts from what the API server and the agents know.
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err) || errors.Is(err, errStale):
		// The cache was behind. What it missed may be a change that wakes nobody.
		log.V(1).Info("the update changed meanwhile, looking again")
		return ctrl.Result{RequeueAfter: conflictInterval}, nil
	case apierrors.IsNotFound(err):
		// Most likely the Update was deleted meanwhile, which the cache will know; if not, something else has to be looked for again.
		return ctrl.Result{RequeueAfter: notFoundInterval}, nil
	}
	return result, err
}

// enqueue takes the signals of the jobs. Progress waits a little, together with what follows it, so that a busy operation does
// not become a stream of writes.
func (r *Reconciler) enqueue(
	_ context.Context, e signalEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	request := reconcile.Request{NamespacedName: e.Object.key}
	if e.Object.urgent {
		queue.Add(request)
		return
	}
	queue.AddAfter(request, r.progressInterval)
}
