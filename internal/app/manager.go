package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fluxcd/cli-utils/pkg/flowcontrol"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/controller/rollout"
	"github.com/stack-controller/stack-controller/internal/controller/update"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact/download"
	"github.com/stack-controller/stack-controller/internal/source/netguard"
	"github.com/stack-controller/stack-controller/internal/spiffe"
)

// continueAfterPanics makes informers skip an event whose handler, predicate or index function panicked: by default the process would end,
// for all tenants. Reconciles and work in the background also continue after a panic. The value of a panic can contain anything, so only
// the stack is logged.
func continueAfterPanics() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = []func(context.Context, any){func(ctx context.Context, _ any) {
		ctrl.LoggerFrom(ctx).Error(errPanicked, "a panic was caught", "stack", string(debug.Stack()))
	}}
}

var errPanicked = errors.New("an internal error")

// newManager builds the manager with its caches, probes and metrics endpoint, but without controllers.
func newManager(ctx context.Context, o *options) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	restConfig, err := newRESTConfig(ctx, o.client)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(restConfig, managerOptions(o, scheme))
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the health check: %w", err)
	}
	return mgr, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	return scheme, nil
}

// newRESTConfig returns the configuration for the API server: from $KUBECONFIG, else from the cluster that the controller runs in, else
// from ~/.kube/config. The client limits its own rate only when the server does not limit rates.
func newRESTConfig(ctx context.Context, o clientOptions) (*rest.Config, error) {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API server: %w", err)
	}
	restConfig.QPS, restConfig.Burst = o.qps, o.burst
	// At each write, the API server warns about the name of the finalizer. The name cannot change, because existing objects have it.
	restConfig.WarningHandler = rest.NoWarnings{}
	if enabled, err := flowcontrol.IsEnabled(ctx, restConfig); err == nil && enabled {
		restConfig.QPS, restConfig.Burst = -1, -1
	}
	return restConfig, nil
}

// managerOptions returns the options of the manager. A controller that loses its lease ends at once, without the graceful shutdown. The
// operations that it started go on in their agents, and the new leader finds each of them by the UID of its Update
// (internal/controller/update.Reconciler.askAgent); with the process runtime, the new leader has to run on the same machine.
func managerOptions(o *options, scheme *runtime.Scheme) ctrl.Options {
	return ctrl.Options{
		Scheme:                        scheme,
		Logger:                        ctrl.Log,
		HealthProbeBindAddress:        o.healthAddr,
		LeaderElection:                o.leaderElection.Enable,
		LeaderElectionReleaseOnCancel: o.leaderElection.ReleaseOnCancel,
		LeaderElectionID:              shard.Lease(o.watch.LabelSelector),
		LeaderElectionNamespace:       o.runtimeNamespace,
		LeaseDuration:                 &o.leaderElection.LeaseDuration,
		RenewDeadline:                 &o.leaderElection.RenewDeadline,
		RetryPeriod:                   &o.leaderElection.RetryPeriod,
		GracefulShutdownTimeout:       &o.gracefulShutdownTimeout,
		Cache:                         cacheOptions(o),
		NewCache:                      informercache.NewCache,
		NewClient:                     informercache.NewClient,
		// Reads that wait for the cache to have all writes (EnableReadYourWritesConsistency) would replace none of the places that look behind the
		// cache: these also notice writes of another shard, an earlier leader, or a user. Measured with make scale: as many requests, a tenth to a
		// quarter more processor time. It is experimental, and wrong where several namespaces are watched.
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
		Metrics:          metricsserver.Options{BindAddress: o.metricsAddr},
		PprofBindAddress: o.pprofAddr,
		Controller: config.Controller{
			RecoverPanic: new(true),
		},
	}
}

// cacheOptions limit the caches to the objects of this controller, and sources to the fields that the controller reads. The Workspaces and
// Updates of a Stack have its labels, so that a shard never works on those of another shard. A Program belongs to no Stack, and Stacks of
// any shard may use it, so all Programs are cached.
func cacheOptions(o *options) cache.Options {
	selected := cache.ByObject{Label: o.selector, Transform: informercache.Transform(source.CacheTransform)}
	options := cache.Options{
		DefaultTransform: source.CacheTransform,
		ByObject: map[client.Object]cache.ByObject{
			&pulumiv1.Stack{}:         selected,
			&autov1alpha1.Workspace{}: selected,
			&autov1alpha1.Update{}:    {Label: o.selector, Transform: informercache.Transform(update.CacheTransform)},
			&autov1alpha1.Approval{}:  {Transform: informercache.Transform(source.CacheTransform)},
			// The Stacks of a shard may name any of them.
			&autov1alpha1.StackRollout{}: {Transform: informercache.Transform(source.CacheTransform)},
			&pulumiv1.Program{}:          {Transform: informercache.Transform(source.ProgramCacheTransform)},
		},
	}
	if o.workspace.runtime == runtimePod {
		maps.Copy(options.ByObject, pod.CachedObjects())
	}
	if !o.watch.AllNamespaces {
		options.DefaultNamespaces = map[string]cache.Config{o.runtimeNamespace: {}}
	}
	return options
}

// newStacksOfAllShards returns a cache of the Stacks of all shards, for the StackRollouts of this one.
func newStacksOfAllShards(mgr ctrl.Manager, o *options) (cache.Cache, error) {
	options := cacheOptions(o)
	options.Scheme, options.Mapper, options.HTTPClient = mgr.GetScheme(), mgr.GetRESTMapper(), mgr.GetHTTPClient()
	options.ByObject = map[client.Object]cache.ByObject{&pulumiv1.Stack{}: {Transform: informercache.Transform(rollout.CacheTransform)}}
	stacks, err := informercache.NewCache(mgr.GetConfig(), options)
	if err != nil {
		return nil, fmt.Errorf("create the cache of the stacks of all shards: %w", err)
	}
	if err := mgr.Add(stacks); err != nil {
		return nil, fmt.Errorf("add the cache of the stacks of all shards: %w", err)
	}
	return stacks, nil
}

// newNamespaces returns the labels of all Namespaces; nil if the controller watches one namespace.
func newNamespaces(mgr ctrl.Manager, o *options) (*namespaces.Watcher, error) {
	if !o.watch.AllNamespaces {
		return nil, nil
	}
	watcher := namespaces.New(namespaces.Options{
		Config: mgr.GetConfig(), HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper(), Scheme: mgr.GetScheme(),
		Log: ctrl.Log.WithName("namespaces"),
	})
	if err := mgr.Add(watcher); err != nil {
		return nil, fmt.Errorf("add the watcher of Namespaces: %w", err)
	}
	return watcher, nil
}

// newReferencesWatcher returns the watcher of the Secrets and ConfigMaps that Stacks may use, or nil when the flags turn it off. The
// watcher has a cache of its own, because no other cache may hold these objects.
func newReferencesWatcher(ctx context.Context, mgr ctrl.Manager, o *options) (*references.Watcher, error) {
	if o.configs == nil {
		return nil, nil
	}
	options := references.Options{
		Config:     mgr.GetConfig(),
		HTTPClient: mgr.GetHTTPClient(),
		Mapper:     mgr.GetRESTMapper(),
		Scheme:     mgr.GetScheme(),
		Selector:   o.configs,
		Log:        ctrl.Log.WithName("references"),
	}
	if !o.watch.AllNamespaces {
		options.Namespace = o.runtimeNamespace
	}
	watcher, err := references.NewWatcher(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(watcher); err != nil {
		return nil, fmt.Errorf("add the watches of Secrets and ConfigMaps: %w", err)
	}
	return watcher, nil
}

// newObjectsWatcher returns the watcher of the objects of other kinds that Stacks may depend on. It reads and watches nothing until a Stack
// waits for one.
func newObjectsWatcher(mgr ctrl.Manager, o *options) (*objectwatch.Watcher, error) {
	options := objectwatch.Options{
		Kinds:      o.dependencyKinds,
		Config:     mgr.GetConfig(),
		HTTPClient: mgr.GetHTTPClient(),
		Mapper:     mgr.GetRESTMapper(),
		Scheme:     mgr.GetScheme(),
		APIReader:  liveReader(mgr),
		// A Stack that waits asks again after this interval, so that the watch lasts as long as somebody waits.
		Idle: max(objectwatch.DefaultIdle, 2*o.requeueDependency),
		Log:  ctrl.Log.WithName("dependencies"),
	}
	if !o.watch.AllNamespaces {
		options.Namespace = o.runtimeNamespace
	}
	watcher := objectwatch.New(options)
	if err := mgr.Add(watcher); err != nil {
		return nil, fmt.Errorf("add the watches of objects that Stacks depend on: %w", err)
	}
	return watcher, nil
}

// connectTimeout bounds how long a connection for mutual TLS takes.
const connectTimeout = 30 * time.Second

// transports send requests to Flux's controllers. They are nil where the flags ask for no mutual TLS.
type transports struct{ artifacts, events http.RoundTripper }

// newTransports returns the transports. If one needs an identity, the manager keeps it up to date, and is ready while there is one.
func newTransports(mgr ctrl.Manager, o *options) (t transports, err error) {
	if !o.mtls.enabled() {
		return t, nil
	}
	identity, err := spiffe.New(spiffe.Options{Address: o.mtls.workloadAPI, Log: ctrl.Log.WithName("spiffe"), Registerer: ctrlmetrics.Registry})
	if err != nil {
		return t, err
	}
	if err := mgr.Add(identity); err != nil {
		return t, fmt.Errorf("add the SPIFFE identity: %w", err)
	}
	if err := mgr.AddReadyzCheck("spiffe", identity.Ready); err != nil {
		return t, fmt.Errorf("add the readiness check of the SPIFFE identity: %w", err)
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	if !o.mtls.artifactServers.Empty() {
		t.artifacts = identity.Transport(o.mtls.artifactServers, spiffe.ArtifactServer, guarded(dialer, o).DialContext)
	}
	if !o.mtls.eventServers.Empty() {
		t.events = identity.Transport(o.mtls.eventServers, spiffe.EventServer, dialer.DialContext)
	}
	return t, nil
}

// guarded returns a dialer for artifacts, whose URLs tenants may have written. The package download refuses the same addresses, but it only
// ends the request, and not the connection that is being made.
func guarded(dialer net.Dialer, o *options) *net.Dialer {
	return netguard.Dialer(dialer, o.workspace.runtime != runtimePod || os.Getenv(download.HostOverrideVariable) != "")
}

func newRecorder(mgr ctrl.Manager, transport http.RoundTripper, o *options) (*events.Recorder, error) {
	recorder, err := events.NewRecorder(events.Options{
		Scheme:     mgr.GetScheme(),
		Kubernetes: mgr.GetEventRecorderFor(controllerName), // the type that Flux's recorder has
		Address:    o.eventsAddr,
		Transport:  transport,
		Controller: controllerName,
		Action:     actionOf,
		Related:    relatedOf,
		Log:        ctrl.Log.WithName("events"),
		Registerer: ctrlmetrics.Registry,
	})
	if err != nil {
		return nil, &usageError{fmt.Errorf("--events-addr: %w", err)}
	}
	return recorder, nil
}

// startManager runs the manager until the context ends. The recorder runs a little longer, because controllers that stop send the last
// events.
func startManager(ctx context.Context, mgr ctrl.Manager, recorder *events.Recorder) error {
	recorderCtx, stopRecorder := context.WithCancel(context.WithoutCancel(ctx))
	recorderEnded := make(chan error, 1)
	go func() { recorderEnded <- recorder.Start(recorderCtx) }()

	err := mgr.Start(ctx)
	stopRecorder()
	if recorderErr := <-recorderEnded; err == nil {
		err = recorderErr
	}
	if err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}
