package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
	gotkmetrics "github.com/fluxcd/pkg/runtime/metrics"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod"
	"github.com/stack-controller/stack-controller/internal/agentruntime/process"
	"github.com/stack-controller/stack-controller/internal/controller/approval"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/controller/program"
	"github.com/stack-controller/stack-controller/internal/controller/rollout"
	"github.com/stack-controller/stack-controller/internal/controller/stack"
	"github.com/stack-controller/stack-controller/internal/controller/update"
	"github.com/stack-controller/stack-controller/internal/controller/workspace"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/namespaces"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// agentName is the file name of the workspace agent's executable.
const agentName = "agent"

// inheritedVariables are the environment variables of the controller that are passed on to the programs: proxies and trusted certificates.
var inheritedVariables = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// sharedDependencies are what the controllers share.
type sharedDependencies struct {
	recorder      record.EventRecorder
	agents        agentRuntime
	store         *artifact.Store
	contents      *artifact.Contents
	git           *source.Git
	sources       []source.Source     // all but git; each controller has its own git subscriber
	watcher       *references.Watcher // nil when no Secrets and ConfigMaps are watched
	namespaces    *namespaces.Watcher // nil when one namespace is watched
	recentOutputs *update.RecentOutputs
	// storedOutputs are read by all updates that use them, and by the Stacks of these.
	storedOutputs *inputs.Stored
}

// addControllers adds the controllers, and everything that they share, to the manager. All of it runs in the leader only.
func addControllers(ctx context.Context, mgr ctrl.Manager, recorder record.EventRecorder, fetching http.RoundTripper, observers []metrics.Observer, o *options) error {
	if err := errors.Join(informercache.AddIndexes(ctx, mgr.GetFieldIndexer()), inputs.AddIndex(ctx, mgr.GetFieldIndexer())); err != nil {
		return err
	}
	shared, err := newSharedDependencies(ctx, mgr, recorder, fetching, o)
	if err != nil {
		return err
	}
	// Two controllers fetch artifacts, and each fetcher wakes the objects of its own controller. When both ask for the same artifact, the
	// store downloads it once.
	forStacks, forUpdates := artifact.NewFetcher(shared.store, o.concurrent), artifact.NewFetcher(shared.store, o.concurrent)
	for _, runnable := range []manager.Runnable{shared.agents, shared.git, shared.contents, forStacks, forUpdates} {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("add %T: %w", runnable, err)
		}
	}
	if err := addStackController(ctx, mgr, shared, forStacks, o); err != nil {
		return err
	}
	workspaces := &workspace.Reconciler{Client: mgr.GetClient(), EventRecorder: recorder, Runtime: shared.agents}
	if o.workspace.runtime == runtimePod {
		workspaces.IdleTimeout = o.workspace.idleTimeout
	}
	if err := workspaces.SetupWithManager(mgr, controllerOptions(o)); err != nil {
		return err
	}
	counted, err := metrics.NewPrograms(ctrlmetrics.Registry)
	if err != nil {
		return err
	}
	// The cache has all Programs, because the Stacks of a shard may use any of them. This instance writes only to the Programs that the
	// selector matches.
	programs := &program.Reconciler{Client: mgr.GetClient(), APIReader: liveReader(mgr), EventRecorder: recorder, Selector: o.selector, Metrics: counted}
	if err := programs.SetupWithManager(mgr, controllerOptions(o)); err != nil {
		return err
	}
	approvals := &approval.Reconciler{Client: mgr.GetClient(), EventRecorder: recorder, APIReader: liveReader(mgr), Shard: shard.New(o.selector)}
	if err := approvals.SetupWithManager(mgr, controllerOptions(o)); err != nil {
		return err
	}
	waves, err := metrics.NewRollouts(ctrlmetrics.Registry)
	if err != nil {
		return err
	}
	rollouts := &rollout.Reconciler{Client: mgr.GetClient(), EventRecorder: recorder, APIReader: liveReader(mgr), Sources: &source.Set{Sources: shared.sources},
		Namespaces: shared.namespaces, Store: shared.store, Metrics: waves, Shard: shard.New(o.selector)}
	if o.selector != nil && !o.selector.Empty() {
		if rollouts.AllStacks, err = newStacksOfAllShards(mgr, o); err != nil {
			return err
		}
	}
	if err := rollouts.SetupWithManager(ctx, mgr, controllerOptions(o)); err != nil {
		return err
	}
	updates, err := metrics.NewUpdates(ctrlmetrics.Registry, observers...)
	if err != nil {
		return err
	}
	sources, git := shared.sourceSet(o)
	return (&update.Reconciler{
		Client:        mgr.GetClient(),
		APIReader:     liveReader(mgr),
		EventRecorder: recorder,
		Runtime:       shared.agents,
		Store:         shared.store,
		Artifacts:     forUpdates,
		Sources:       sources,
		Git:           git,
		Pods:          o.workspace.runtime == runtimePod,
		References:    shared.watcher,
		RecentOutputs: shared.recentOutputs,
		StoredOutputs: shared.storedOutputs,
		MaxOperations: maxOperations(o),
		Scope:         scopeOf(o),
		Shard:         shard.New(o.selector),
		Metrics:       updates,
	}).SetupWithManager(ctx, mgr, controllerOptions(o))
}

const (
	// operationsPerProcessor is how many operations run for each processor in the process runtime. An operation mostly waits for the APIs
	// of clouds.
	operationsPerProcessor = 4
	// operationMemory is the least memory that an operation takes in the process runtime, and controllerMemory is what is left for
	// everything else, in bytes.
	operationMemory, controllerMemory = 150 << 20, 256 << 20
)

// agentsPerOperation is how many agents the process runtime keeps for each operation that may run: most Stacks that have worked work again
// soon, and an agent takes a fifteenth of the memory of an operation.
const agentsPerOperation = 4

// maxOperations returns how many operations may run at the same time, 0 for any number.
func maxOperations(o *options) int {
	if o.maxOperations > 0 || o.workspace.runtime == runtimePod {
		return o.maxOperations
	}
	room := (debug.SetMemoryLimit(-1) - controllerMemory) / operationMemory
	return int(max(min(operationsPerProcessor*int64(goruntime.GOMAXPROCS(0)), room), 1))
}

func newSharedDependencies(ctx context.Context, mgr ctrl.Manager, recorder record.EventRecorder, fetching http.RoundTripper, o *options) (shared *sharedDependencies, err error) {
	shared = &sharedDependencies{
		recorder: recorder,
		git: source.NewGit(source.GitOptions{
			KnownHosts:          o.git.knownHosts,
			Timeout:             o.git.timeout,
			CheckoutTimeout:     o.git.checkoutTimeout,
			Limits:              artifactLimits(o.artifacts),
			AllowLocalAddresses: o.git.allowLocal,
			APIReader:           liveReader(mgr),
			Jitter:              float64(o.jitter.Percentage) / 100,
			StoreDir:            o.artifacts.storagePath,
			Log:                 ctrl.Log.WithName("git"),
		}),
		sources:       newSources(mgr, o),
		recentOutputs: update.NewRecentOutputs(),
		storedOutputs: &inputs.Stored{},
	}
	if shared.store, err = newStore(o.artifacts, o.workspace.runtime == runtimePod, fetching); err != nil {
		return nil, err
	}
	shared.contents = artifact.NewContents(shared.store)
	if shared.agents, err = newRuntime(ctx, mgr, o); err != nil {
		return nil, fmt.Errorf("prepare the workspace runtime: %w", err)
	}
	if err = metrics.RegisterAgents(ctrlmetrics.Registry, o.workspace.runtime, shared.agents.Agents); err != nil {
		return nil, err
	}
	if shared.watcher, err = newReferencesWatcher(ctx, mgr, o); err != nil {
		return nil, err
	}
	shared.watcher.Notify(shared.git.ReferencesChanged)
	shared.namespaces, err = newNamespaces(mgr, o)
	return shared, err
}

// newSources returns all kinds of sources except git, in their order of precedence. Each kind is registered here.
func newSources(mgr ctrl.Manager, o *options) []source.Source {
	watched := ""
	if !o.watch.AllNamespaces {
		watched = o.runtimeNamespace
	}
	return []source.Source{
		&source.Flux{
			APIReader: liveReader(mgr),
			Mapper:    mgr.GetRESTMapper(),
			NewMapper: func() (apimeta.RESTMapper, error) {
				return apiutil.NewDynamicRESTMapper(mgr.GetConfig(), mgr.GetHTTPClient())
			},
			NewCache: func(options cache.Options) (cache.Cache, error) {
				options.Scheme, options.HTTPClient = mgr.GetScheme(), mgr.GetHTTPClient()
				return informercache.NewCache(mgr.GetConfig(), options)
			},
			Namespace:               watched,
			Log:                     ctrl.Log.WithName("sources"),
			Scope:                   scopeOf(o),
			DisableExternalArtifact: !o.externalArtifact,
			// With the process runtime, everything runs on one machine and has one owner.
			CheckLocations: o.workspace.runtime == runtimePod,
		},
		&source.Programs{Client: mgr.GetClient(), APIReader: liveReader(mgr)},
	}
}

// sourceSet returns the sources for one controller, and the controller's subscriber to git repositories.
func (p *sharedDependencies) sourceSet(o *options) (*source.Set, *source.GitSubscriber) {
	git := p.git.NewSubscriber()
	return &source.Set{Sources: append([]source.Source{git}, p.sources...), RequireVerified: o.requireVerified}, git
}

// scopeOf returns which namespaces objects may refer to.
func scopeOf(o *options) references.Scope {
	return references.Scope{OtherNamespaces: !o.acl.NoCrossNamespaceRefs}
}

func addStackController(ctx context.Context, mgr ctrl.Manager, shared *sharedDependencies, artifacts *artifact.Fetcher, o *options) error {
	stacks, err := metrics.NewStacks(ctrlmetrics.Registry)
	if err != nil {
		return err
	}
	// These are the metrics that all of Flux's controllers have.
	durations := gotkmetrics.NewRecorder()
	for _, collector := range durations.Collectors() {
		if err := ctrlmetrics.Registry.Register(collector); err != nil {
			return fmt.Errorf("register the metrics about reconciles: %w", err)
		}
	}
	outputs, err := outputobject.NewWriter(mgr.GetConfig(), mgr.GetHTTPClient(), liveReader(mgr))
	if err != nil {
		return err
	}
	objects, err := newObjectsWatcher(mgr, o)
	if err != nil {
		return err
	}
	sources, _ := shared.sourceSet(o)
	reconciler := &stack.Reconciler{
		Client:                mgr.GetClient(),
		EventRecorder:         shared.recorder,
		Metrics:               runtimectrl.NewMetrics(mgr, durations, pulumiv1.Finalizer),
		APIReader:             liveReader(mgr),
		Sources:               sources,
		DefaultServiceAccount: o.workspace.defaultServiceAccount,
		Pods:                  o.workspace.runtime == runtimePod,
		Scope:                 scopeOf(o),
		Artifacts:             artifacts,
		Contents:              shared.contents,
		RecentOutputs:         shared.recentOutputs,
		StoredOutputs:         shared.storedOutputs,
		References:            shared.watcher,
		Outputs:               outputs,
		Namespaces:            shared.namespaces,
		Objects:               objects,
		WaitInterval:          o.requeueDependency,
		ShowAfter:             stack.DefaultShowAfter,
		Traced:                o.tracing,
		Jitter:                float64(o.jitter.Percentage) / 100,
		Stacks:                stacks,
		Shard:                 shard.New(o.selector),
	}
	if o.workspace.runtime == runtimeProcess {
		reconciler.Reaches = knowsOperation(shared.agents)
	}
	return reconciler.SetupWithManager(ctx, mgr, controllerOptions(o))
}

// knowsOperation returns a function that reports whether the agent that this controller finds for a Workspace knows the operation of the
// Update. Another controller may have started the operation in its own agent, on another machine.
func knowsOperation(agents agentruntime.Runtime) func(context.Context, *autov1alpha1.Workspace, *autov1alpha1.Update) bool {
	return func(ctx context.Context, workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) bool {
		agent, err := agents.Wake(ctx, workspace)
		if err == nil {
			_, err = agent.GetOperation(ctx, string(update.UID))
		}
		return err == nil
	}
}

// controllerOptions returns the options for one controller. Each controller has its own rate limiter, so that it counts only its own
// failures.
func controllerOptions(o *options) controller.Options {
	return fairqueue.ControllerOptions(o.concurrent, controller.Options{RateLimiter: runtimectrl.GetRateLimiter(o.rateLimiter)})
}

func newStore(o artifactOptions, untrusted bool, transport http.RoundTripper) (*artifact.Store, error) {
	retries := o.httpRetries
	if retries == 0 {
		retries = -1 // never, where 0 means the default
	}
	artifacts, err := metrics.NewArtifacts(ctrlmetrics.Registry)
	if err != nil {
		return nil, err
	}
	store, err := artifact.NewStore(artifact.Options{
		Dir:          filepath.Join(o.storagePath, "artifacts"),
		Limits:       artifactLimits(o),
		MaxStoreSize: o.maxStoreSize.Value(),
		Metrics:      artifacts,
		HTTPRetries:  retries,
		HTTPTimeout:  o.httpTimeout,
		Untrusted:    untrusted,
		Transport:    transport,
		Log:          ctrl.Log.WithName("artifacts"),
	})
	if err != nil {
		return nil, err
	}
	return store, metrics.RegisterStoreSize(ctrlmetrics.Registry, store.Size)
}

func artifactLimits(o artifactOptions) artifact.Limits {
	return artifact.Limits{MaxDownloadSize: o.maxSize.Value(), MaxUnpackedSize: o.maxUnpackedSize.Value(), MaxEntries: o.maxEntries}
}

// agentRuntime is a runtime that can be added to the manager.
type agentRuntime interface {
	agentruntime.Runtime
	manager.Runnable
	// Agents returns how many agents run. It does not block.
	Agents() int
}

// newRuntime builds the runtime that --workspace-runtime names.
func newRuntime(ctx context.Context, mgr ctrl.Manager, o *options) (agentRuntime, error) {
	log := ctrl.Log.WithName("runtime")
	// Agents have the same limits as the store.
	limits := []string{
		"--max-source-size=" + strconv.FormatInt(o.artifacts.maxSize.Value(), 10),
		"--max-unpacked-size=" + strconv.FormatInt(o.artifacts.maxUnpackedSize.Value(), 10),
		"--max-entries=" + strconv.Itoa(o.artifacts.maxEntries),
	}
	if o.workspace.runtime == runtimePod {
		return pod.New(ctx, pod.Options{
			Client:                mgr.GetClient(),
			APIReader:             liveReader(mgr),
			Cache:                 mgr.GetCache(),
			Config:                mgr.GetConfig(),
			AgentImage:            o.workspace.agentImage,
			AgentImagePullPolicy:  corev1.PullPolicy(o.workspace.agentPullPolicy),
			AgentDelivery:         pod.AgentDelivery(o.workspace.agentVolume),
			AgentArgs:             limits,
			DefaultServiceAccount: o.workspace.defaultServiceAccount,
			ClusterDomain:         o.workspace.clusterDomain,
			Log:                   log,
		})
	}
	log.Info("warning: " + process.IdentityWarning)
	var moved func(context.Context, types.NamespacedName) (bool, error)
	if shard.New(o.selector) != nil {
		moved = workspaceMoved(liveReader(mgr))
	}
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the directory of the controller: %w", err)
	}
	return process.New(process.Options{
		Dir:         filepath.Join(o.artifacts.storagePath, "workspaces"),
		AgentPath:   cmp.Or(o.workspace.agentPath, filepath.Join(filepath.Dir(own), agentName)),
		PulumiPath:  o.workspace.pulumiPath,
		AgentArgs:   limits,
		Environ:     inheritedVariables,
		IdleTimeout: o.workspace.idleTimeout,
		MaxAgents:   agentsPerOperation * maxOperations(o),
		Exists:      workspaceExists(mgr.GetClient(), liveReader(mgr)),
		Moved:       moved,
		Log:         log,
	})
}

// workspaceExists returns a function that reports whether the Workspace of a directory that was found at the start still exists. When the
// cache does not have the Workspace, the function asks the API server: removing the directory because the cache lags would lose the state
// of an operation.
func workspaceExists(cached, live client.Reader) func(context.Context, types.NamespacedName, types.UID) (bool, error) {
	return func(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
		known := &autov1alpha1.Workspace{}
		if err := cached.Get(ctx, key, known); err == nil && known.UID == uid {
			return true, nil
		}
		present, err := workspaceUID(ctx, live, key)
		return present == uid, err
	}
}

// workspaceMoved returns a function that reports whether a Workspace that is no longer in the cache still exists, with other labels.
func workspaceMoved(live client.Reader) func(context.Context, types.NamespacedName) (bool, error) {
	return func(ctx context.Context, key types.NamespacedName) (bool, error) {
		present, err := workspaceUID(ctx, live, key)
		return present != "", err
	}
}

// workspaceUID returns the UID of the Workspace from the API server; empty when there is none.
func workspaceUID(ctx context.Context, live client.Reader, key types.NamespacedName) (types.UID, error) {
	workspace := &metav1.PartialObjectMetadata{}
	workspace.SetGroupVersionKind(autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind))
	if err := live.Get(ctx, key, workspace); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read the workspace %s: %w", key, err)
	}
	return workspace.UID, nil
}

// liveReader returns a reader of the API server that rejects objects that take too much memory.
func liveReader(mgr ctrl.Manager) client.Reader { return informercache.NewReader(mgr.GetAPIReader()) }
