package main

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	gotkmetrics "github.com/fluxcd/pkg/runtime/metrics"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/features"
	"github.com/stack-controller/stack-controller/internal/metrics"
	"github.com/stack-controller/stack-controller/internal/program"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/stack"
	"github.com/stack-controller/stack-controller/internal/update"
	"github.com/stack-controller/stack-controller/internal/workspace"
)

// parts are what the controllers share.
type parts struct {
	recorder record.EventRecorder
	store    *artifact.Store
	contents *artifact.Contents
	git      *source.Git
	programs *source.Programs
	agents   agentRuntime
	watcher  *references.Watcher // nil when no Secrets and ConfigMaps are watched
}

// addControllers adds the controllers, and what they work with, to the manager. All of it runs in the leader only.
func addControllers(ctx context.Context, mgr ctrl.Manager, recorder record.EventRecorder, o *options) error {
	store, err := newStore(o.artifacts)
	if err != nil {
		return err
	}
	agents, err := newRuntime(ctx, mgr, o)
	if err != nil {
		return err
	}
	if err := mgr.Add(agents); err != nil {
		return fmt.Errorf("add the workspace runtime: %w", err)
	}
	watcher, err := newReferencesWatcher(ctx, mgr, o)
	if err != nil {
		return err
	}
	git, err := addGit(mgr, o)
	if err != nil {
		return err
	}
	watcher.Notify(git.ReferencesChanged)
	shared := &parts{
		recorder: recorder, store: store, agents: agents, watcher: watcher, git: git, contents: artifact.NewContents(store),
		programs: &source.Programs{Client: mgr.GetClient(), Live: mgr.GetAPIReader()},
	}
	if err := mgr.Add(shared.contents); err != nil {
		return fmt.Errorf("add the reading of artifacts: %w", err)
	}
	if err := addStackController(ctx, mgr, shared, o); err != nil {
		return err
	}
	if err := addWorkspaceController(mgr, shared, o); err != nil {
		return err
	}
	if err := addProgramController(mgr, shared, o); err != nil {
		return err
	}
	return addUpdateController(ctx, mgr, shared, o)
}

func addWorkspaceController(mgr ctrl.Manager, shared *parts, o *options) error {
	return (&workspace.Reconciler{
		Client:        mgr.GetClient(),
		EventRecorder: shared.recorder,
		Runtime:       shared.agents,
	}).SetupWithManager(mgr, controllerOptions(o))
}

// addProgramController adds the controller of Programs. The cache has all of them, because the Stacks of a shard may use any; only
// those that the selector matches are this instance's to write to.
func addProgramController(mgr ctrl.Manager, shared *parts, o *options) error {
	return (&program.Reconciler{
		Client:        mgr.GetClient(),
		EventRecorder: shared.recorder,
		Selector:      o.watch.selector,
	}).SetupWithManager(mgr, controllerOptions(o))
}

// newFetcher returns a fetcher that the manager runs. Each controller has its own, whose events wake its objects; the store
// makes one download of what several ask for.
func newFetcher(mgr ctrl.Manager, store *artifact.Store, o *options) (*artifact.Fetcher, error) {
	fetcher := artifact.NewFetcher(store, o.concurrent)
	if err := mgr.Add(fetcher); err != nil {
		return nil, fmt.Errorf("add the artifact fetcher: %w", err)
	}
	return fetcher, nil
}

func addUpdateController(ctx context.Context, mgr ctrl.Manager, shared *parts, o *options) error {
	fetcher, err := newFetcher(mgr, shared.store, o)
	if err != nil {
		return err
	}
	return update.SetupWithManager(ctx, mgr, update.Options{
		Client:     mgr.GetClient(),
		APIReader:  mgr.GetAPIReader(),
		Runtime:    shared.agents,
		Store:      shared.store,
		Artifacts:  fetcher,
		Git:        shared.git,
		Programs:   shared.programs,
		Recorder:   shared.recorder,
		Pods:       o.workspace.runtime == runtimePod,
		References: shared.watcher,
		Controller: controllerOptions(o),
	})
}

func addStackController(ctx context.Context, mgr ctrl.Manager, shared *parts, o *options) error {
	fetcher, err := newFetcher(mgr, shared.store, o)
	if err != nil {
		return err
	}
	stacks, err := metrics.NewStacks(ctrlmetrics.Registry)
	if err != nil {
		return err
	}
	durations, err := newReconcileMetrics(mgr)
	if err != nil {
		return err
	}
	return (&stack.Reconciler{
		Client:        mgr.GetClient(),
		EventRecorder: shared.recorder,
		Metrics:       durations,
		Live:          mgr.GetAPIReader(),
		Sources: &source.Set{
			Flux: &source.Flux{
				Live:                    mgr.GetAPIReader(),
				Mapper:                  mgr.GetRESTMapper(),
				AllowCrossNamespaceRefs: !o.acl.NoCrossNamespaceRefs,
				DisableExternalArtifact: !o.features.Enabled(features.ExternalArtifact),
			},
			Git:      shared.git.Subscribe(),
			Programs: shared.programs,
		},
		AllowCrossNamespaceRefs: !o.acl.NoCrossNamespaceRefs,
		Artifacts:               fetcher,
		Contents:                shared.contents,
		References:              shared.watcher,
		WaitInterval:            o.requeueDependency,
		Jitter:                  float64(o.jitter.Percentage) / 100,
		Stacks:                  stacks,
	}).SetupWithManager(ctx, mgr, controllerOptions(o))
}

// controllerOptions returns options for one controller: each has its own record of failures.
func controllerOptions(o *options) controller.Options {
	return controller.Options{RateLimiter: runtimectrl.GetRateLimiter(o.rateLimiter)}
}

// newReconcileMetrics registers the metrics that all of Flux's controllers have.
func newReconcileMetrics(mgr ctrl.Manager) (runtimectrl.Metrics, error) {
	durations := gotkmetrics.NewRecorder()
	for _, collector := range durations.Collectors() {
		if err := ctrlmetrics.Registry.Register(collector); err != nil {
			return runtimectrl.Metrics{}, fmt.Errorf("register the metrics about reconciles: %w", err)
		}
	}
	return runtimectrl.NewMetrics(mgr, durations, pulumiv1.Finalizer), nil
}

func newStore(o artifactOptions) (*artifact.Store, error) {
	retries := o.httpRetries
	if retries == 0 {
		retries = -1 // never, where 0 means the default
	}
	return artifact.NewStore(artifact.Options{
		Dir:          filepath.Join(o.storagePath, "artifacts"),
		Limits:       artifactLimits(o),
		MaxStoreSize: o.maxStoreSize.Value(),
		HTTPRetries:  retries,
		HTTPTimeout:  o.httpTimeout,
		Log:          ctrl.Log.WithName("artifacts"),
	})
}
