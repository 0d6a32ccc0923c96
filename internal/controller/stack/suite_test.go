package stack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	runtimecontroller "github.com/fluxcd/pkg/runtime/controller"
	gotkmetrics "github.com/fluxcd/pkg/runtime/metrics"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/controller/update"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/objectwatch"
	"github.com/stack-controller/stack-controller/internal/outputobject"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

const (
	// patience is how long tests wait for what takes milliseconds on a quiet machine.
	patience = 30 * time.Second
	poll     = 20 * time.Millisecond
)

var (
	// startCluster starts the control plane when the first test needs it.
	startCluster = sync.OnceValues(func() (*controlplane.ControlPlane, error) {
		return controlplane.Start(context.Background(), controlplane.Options{Log: os.Stderr, CRDs: []string{controlplane.ProductCRDs()}})
	})
	clusterWanted atomic.Bool
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if clusterWanted.Load() {
		if cluster, err := startCluster(); err == nil {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// fixture is a namespace of a real API server in which only the Stack controller runs. The test plays the other controllers.
type fixture struct {
	*WithT
	t         *testing.T
	client    client.Client
	namespace string
	requests  requestLog
	// references is the Watcher of the controller.
	references *references.Watcher
	// conflicting makes the API server answer that a Stack changed meanwhile, each time its status is written.
	conflicting atomic.Bool
}

// objectsRead returns the requests in which the controller read Kustomizations and Widgets, or lists or watches of them.
func (s *fixture) objectsRead() []string {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return slices.Clone(*s.requests.objects)
}

// valuesRead returns the requests in which the controller read or wrote the content of Secrets and ConfigMaps.
func (s *fixture) valuesRead() []string {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return slices.Clone(*s.requests.read)
}

func newFixture(t *testing.T, changes ...func(*Reconciler)) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(poll)
	clusterWanted.Store(true)
	cluster, err := startCluster()
	g.Expect(err).NotTo(HaveOccurred())
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{clientgoscheme.AddToScheme, autov1alpha1.AddToScheme, pulumiv1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	s := &fixture{WithT: g, t: t, requests: requestLog{mu: &sync.Mutex{}, read: &[]string{}, objects: &[]string{}, looked: &atomic.Int32{}}}
	s.client, err = client.New(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "stack-"}
	g.Expect(s.client.Create(t.Context(), namespace)).To(Succeed())
	s.namespace = namespace.Name
	s.startController(cluster, scheme, changes)
	return s
}

func (s *fixture) watchReferences(mgr ctrl.Manager) *references.Watcher {
	s.t.Helper()
	watcher, err := references.NewWatcher(s.t.Context(), references.Options{
		Config: mgr.GetConfig(), HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper(), Scheme: mgr.GetScheme(),
		Selector: labels.SelectorFromSet(watchedLabels), Namespace: s.namespace, Log: logr.Discard(),
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(mgr.Add(watcher)).To(Succeed())
	s.references = watcher
	return watcher
}

// watchObjects returns the Watcher of the kinds that the tests use.
func (s *fixture) watchObjects(mgr ctrl.Manager) *objectwatch.Watcher {
	s.t.Helper()
	watcher := objectwatch.New(objectwatch.Options{
		Kinds:  []schema.GroupKind{kustomizations.GroupKind(), widgets.GroupKind()},
		Config: mgr.GetConfig(), HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper(), Scheme: mgr.GetScheme(),
		APIReader: informercache.NewReader(mgr.GetAPIReader()), Namespace: s.namespace, Log: logr.Discard(),
	})
	s.Expect(mgr.Add(watcher)).To(Succeed())
	return watcher
}

func (s *fixture) startController(cluster *controlplane.ControlPlane, scheme *k8sruntime.Scheme, changes []func(*Reconciler)) {
	s.t.Helper()
	config := rest.CopyConfig(cluster.Config())
	config.Wrap(func(transport http.RoundTripper) http.RoundTripper {
		return conflicts{RoundTripper: requestLog{RoundTripper: transport, mu: s.requests.mu, read: s.requests.read, objects: s.requests.objects, looked: s.requests.looked}, on: &s.conflicting}
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Logger:  logr.Discard(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}, ByObject: map[client.Object]cache.ByObject{
			&pulumiv1.Stack{}:         {Transform: informercache.Transform(source.CacheTransform)},
			&autov1alpha1.Workspace{}: {Transform: informercache.Transform(source.CacheTransform)},
		}},
		NewClient: informercache.NewClient,
		// Every test has a controller of that name.
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	s.Expect(err).NotTo(HaveOccurred())
	store, err := artifact.NewStore(artifact.Options{Dir: s.t.TempDir()})
	s.Expect(err).NotTo(HaveOccurred())
	fetcher := artifact.NewFetcher(store, 0)
	s.Expect(mgr.Add(fetcher)).To(Succeed())
	git := source.NewGit(source.GitOptions{APIReader: mgr.GetAPIReader(), AllowLocalAddresses: true, Dir: s.t.TempDir()})
	s.Expect(mgr.Add(git)).To(Succeed())
	contents := artifact.NewContents(store)
	s.Expect(mgr.Add(contents)).To(Succeed())
	stacks, err := metrics.NewStacks(prometheus.NewRegistry())
	s.Expect(err).NotTo(HaveOccurred())
	outputs, err := outputobject.NewWriter(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetAPIReader())
	s.Expect(err).NotTo(HaveOccurred())
	reconciler := &Reconciler{
		Objects:       s.watchObjects(mgr),
		Outputs:       outputs,
		Client:        mgr.GetClient(),
		EventRecorder: mgr.GetEventRecorderFor("stack-controller"),
		Metrics:       runtimecontroller.NewMetrics(mgr, gotkmetrics.NewRecorder(), pulumiv1.Finalizer),
		APIReader:     mgr.GetAPIReader(),
		Sources: &source.Set{Sources: []source.Source{
			git.NewSubscriber(),
			&source.Flux{APIReader: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper(), Namespace: s.namespace,
				NewCache: func(o cache.Options) (cache.Cache, error) { return informercache.NewCache(mgr.GetConfig(), o) }},
			&source.Programs{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()},
		}},
		RecentOutputs: update.NewRecentOutputs(),
		Artifacts:     fetcher,
		Contents:      contents,
		References:    s.watchReferences(mgr),
		WaitInterval:  time.Hour, // only watches wake a Stack here
		Stacks:        stacks,
	}
	for _, change := range changes {
		change(reconciler)
	}
	s.Expect(informercache.AddIndexes(s.t.Context(), mgr.GetFieldIndexer())).To(Succeed())
	s.Expect(inputs.AddIndex(s.t.Context(), mgr.GetFieldIndexer())).To(Succeed())
	s.Expect(reconciler.SetupWithManager(s.t.Context(), mgr, fairqueue.ControllerOptions(4, controller.Options{}))).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		s.Eventually(done).Should(Receive(BeNil()))
	})
}

// requestLog records the requests of a client for the content of Secrets and ConfigMaps, as opposed to their metadata, and for the objects of other kinds
// that Stacks depend on.
type requestLog struct {
	http.RoundTripper
	mu            *sync.Mutex
	read, objects *[]string
	// looked counts the requests for the metadata of Secrets with outputs.
	looked *atomic.Int32
}

// RoundTrip implements http.RoundTripper.
func (l requestLog) RoundTrip(request *http.Request) (*http.Response, error) {
	path := request.URL.Path
	if (strings.Contains(path, "/secrets") || strings.Contains(path, "/configmaps")) && !strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata") {
		l.mu.Lock()
		*l.read = append(*l.read, request.Method+" "+request.URL.String())
		l.mu.Unlock()
	}
	if strings.HasSuffix(path, autov1alpha1.OutputsSecretSuffix) && strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata") {
		l.looked.Add(1)
	}
	if strings.Contains(path, "/kustomizations") || strings.Contains(path, "/widgets") {
		l.mu.Lock()
		*l.objects = append(*l.objects, request.Method+" "+path)
		l.mu.Unlock()
	}
	return l.RoundTripper.RoundTrip(request)
}

func TestNobodyMakesTheControllerReadSecretsByNamingOneAsASource(t *testing.T) {
	s := newFixture(t)
	s.newSecret("payload", nil)
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{
		Stack:      "dev",
		FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{APIVersion: "v1", Kind: "Secret", Name: "payload"}},
	}}
	withImage("one")(stack)
	s.Expect(s.client.Create(t.Context(), stack)).To(Succeed())
	refused := s.await(stack, reasonIs(meta.StalledCondition, pulumiv1.SpecInvalidReason))
	s.Expect(conditions.GetMessage(refused, meta.ReadyCondition)).To(ContainSubstring("spec.fluxSource.sourceRef: Secret"))
	s.Consistently(s.valuesRead, "1s").Should(BeEmpty())

	before := refused.DeepCopy()
	refused.Spec.FluxSource = nil
	s.Expect(s.client.Patch(t.Context(), refused, client.MergeFrom(before))).To(Succeed())
	s.await(stack, func(stack *pulumiv1.Stack) bool {
		return !conditions.IsStalled(stack) && stack.Status.CurrentUpdate != nil
	})
	s.Expect(s.valuesRead()).To(BeEmpty())
}
