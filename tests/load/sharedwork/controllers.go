package sharedwork

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	gotkmetrics "github.com/fluxcd/pkg/runtime/metrics"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/controller/approval"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/controller/program"
	"github.com/stack-controller/stack-controller/internal/controller/stack"
	"github.com/stack-controller/stack-controller/internal/controller/update"
	"github.com/stack-controller/stack-controller/internal/controller/workspace"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/worstobjects"
)

// newScheme returns the scheme of the controller, and a mapper that knows the kinds of the worst objects.
func newScheme() (*runtime.Scheme, apimeta.RESTMapper, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), pulumiv1.AddToScheme(scheme), autov1alpha1.AddToScheme(scheme))
	var versions []schema.GroupVersion
	for _, kind := range worstobjects.Kinds {
		versions = append(versions, kind.GroupVersion())
	}
	mapper := apimeta.NewDefaultRESTMapper(versions)
	for _, kind := range worstobjects.Kinds {
		mapper.Add(kind, apimeta.RESTScopeNamespace)
	}
	return scheme, mapper, err
}

// controllers starts all controllers with a cache that records what they do with events, until ctx ends. They get no objects from it, and
// reach no API server. dir is for their files.
func controllers(ctx context.Context, dir string) (*recorder, error) {
	scheme, mapper, err := newScheme()
	if err != nil {
		return nil, err
	}
	recorded := &recorder{scheme: scheme, kinds: map[schema.GroupVersionKind]*informer{}}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{
		Scheme:         scheme,
		Logger:         logr.Discard(),
		Metrics:        metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (apimeta.RESTMapper, error) { return mapper, nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return recorded, nil },
		NewClient:      informercache.NewClient,
		Controller:     config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: time.Hour},
	})
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	flux := &source.Flux{APIReader: recorded, Mapper: mapper, NewCache: func(cache.Options) (cache.Cache, error) { return recorded, nil }}
	if err := add(ctx, mgr, flux, dir); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	watched := &pulumiv1.Stack{Namespace: worstobjects.Namespace, Spec: pulumiv1.StackSpec{
		FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.GitRepositoryKind, Name: worstobjects.Name}}}}
	for len(recorded.missing()) > 0 {
		// The first Stack with a source of this kind starts the watch of the kind. The source has no artifact.
		if _, err := flux.Resolve(ctx, watched, false); err == nil {
			return nil, errors.New("a source without an artifact has one")
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("run the controllers: %w", err)
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the handlers of %v: %w", recorded.missing(), ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return recorded, nil
}

// add adds all controllers to the manager.
func add(ctx context.Context, mgr ctrl.Manager, flux *source.Flux, dir string) error {
	c, events, registry := mgr.GetClient(), mgr.GetEventRecorderFor("sharedwork"), prometheus.NewRegistry()
	store, err := artifact.NewStore(artifact.Options{Dir: dir})
	if err != nil {
		return err
	}
	stacks, err := metrics.NewStacks(registry)
	if err != nil {
		return err
	}
	agents, err := pod.New(ctx, pod.Options{AgentImage: "agent", Client: c, APIReader: c, Cache: mgr.GetCache(), Config: mgr.GetConfig()})
	if err != nil {
		return err
	}
	git := source.NewGit(source.GitOptions{APIReader: c})
	sources := func() (*source.Set, *source.GitSubscriber) {
		repositories := git.NewSubscriber()
		return &source.Set{Sources: []source.Source{repositories, flux, &source.Programs{Client: c, APIReader: c}}}, repositories
	}
	ofStacks, _ := sources()
	ofUpdates, repositories := sources()
	options := fairqueue.ControllerOptions(1, controller.Options{})
	return errors.Join(
		informercache.AddIndexes(ctx, mgr.GetFieldIndexer()),
		inputs.AddIndex(ctx, mgr.GetFieldIndexer()),
		(&stack.Reconciler{Client: c, EventRecorder: events, APIReader: c, Sources: ofStacks, Stacks: stacks,
			Metrics:   runtimectrl.NewMetrics(mgr, gotkmetrics.NewRecorder(), pulumiv1.Finalizer),
			Artifacts: artifact.NewFetcher(store, 1), Contents: artifact.NewContents(store), RecentOutputs: update.NewRecentOutputs(),
		}).SetupWithManager(ctx, mgr, options),
		(&update.Reconciler{Client: c, EventRecorder: events, APIReader: c, Runtime: agents, Store: store, Artifacts: artifact.NewFetcher(store, 1),
			Sources: ofUpdates, Git: repositories, Pods: true, RecentOutputs: update.NewRecentOutputs(),
		}).SetupWithManager(ctx, mgr, options),
		(&workspace.Reconciler{Client: c, EventRecorder: events, Runtime: agents}).SetupWithManager(mgr, options),
		(&program.Reconciler{Client: c, EventRecorder: events, APIReader: c}).SetupWithManager(mgr, options),
		(&approval.Reconciler{Client: c, EventRecorder: events, APIReader: c}).SetupWithManager(mgr, options),
		mgr.Add(agents),
	)
}
