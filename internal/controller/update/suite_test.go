package update

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
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
		sources, err := controlplane.SourceCRDs(context.Background())
		if err != nil {
			return nil, err
		}
		return controlplane.Start(context.Background(), controlplane.Options{Log: os.Stderr, CRDs: []string{controlplane.ProductCRDs(), sources}})
	})
	clusterWanted atomic.Bool
)

func TestMain(m *testing.M) {
	// The managers have loggers of their own, which the tests read.
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

// fixture is a namespace of a real API server with agents and an artifact server. The controller is started by the test.
type fixture struct {
	*WithT
	t         *testing.T
	config    *controlplane.ControlPlane
	client    ctrlclient.Client
	namespace string
	agents    *agents
	sources   *sources
	storeDir  string
	// maxOperations is the limit of the controllers that are started from now on.
	maxOperations int
	// others are namespaces that the controller serves too.
	others []string
	// refuse is asked before an object is created, and before its status is written; nil refuses nothing.
	refuse func(ctrlclient.Object) error
	// log has all that the controller logged, at every level.
	log *logBuffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(poll)
	clusterWanted.Store(true)
	cluster, err := startCluster()
	g.Expect(err).NotTo(HaveOccurred())
	scheme := k8sruntime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
	g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
	g.Expect(sourcev1.AddToScheme(scheme)).To(Succeed())
	client, err := ctrlclient.New(cluster.Config(), ctrlclient.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "update-"}
	g.Expect(client.Create(t.Context(), namespace)).To(Succeed())
	return &fixture{
		WithT: g, t: t, config: cluster, client: client, namespace: namespace.Name,
		agents: newAgents(t), sources: newSources(t), storeDir: t.TempDir(), log: &logBuffer{},
	}
}

func (s *fixture) watchReferences(mgr ctrl.Manager) *references.Watcher {
	s.t.Helper()
	watcher, err := references.NewWatcher(s.t.Context(), references.Options{
		Config: mgr.GetConfig(), HTTPClient: mgr.GetHTTPClient(), Mapper: mgr.GetRESTMapper(), Scheme: mgr.GetScheme(),
		Selector: labels.SelectorFromSet(watchedLabels), Namespace: s.namespace, Log: mgr.GetLogger(),
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(mgr.Add(watcher)).To(Succeed())
	return watcher
}

// startController runs a manager with the controller, until the returned function is called or the test ends.
func (s *fixture) startController() (stop func()) {
	s.t.Helper()
	namespaces := map[string]cache.Config{s.namespace: {}}
	for _, other := range s.others {
		namespaces[other] = cache.Config{}
	}
	mgr, err := ctrl.NewManager(s.config.Config(), ctrl.Options{
		Scheme:  s.client.Scheme(),
		Logger:  zap.New(zap.WriteTo(s.log), zap.UseDevMode(true)),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: namespaces},
		// Every test has a controller of that name.
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	s.Expect(err).NotTo(HaveOccurred())
	store, err := artifact.NewStore(artifact.Options{Dir: s.storeDir})
	s.Expect(err).NotTo(HaveOccurred())
	fetcher := artifact.NewFetcher(store, 0)
	s.Expect(mgr.Add(fetcher)).To(Succeed())
	git := source.NewGit(source.GitOptions{APIReader: mgr.GetAPIReader(), AllowLocalAddresses: true, Dir: s.t.TempDir()})
	s.Expect(mgr.Add(git)).To(Succeed())
	repositories := git.NewSubscriber()
	s.Expect(informercache.AddIndexes(s.t.Context(), mgr.GetFieldIndexer())).To(Succeed())
	s.Expect(inputs.AddIndex(s.t.Context(), mgr.GetFieldIndexer())).To(Succeed())
	s.Expect((&Reconciler{
		Client:        refusingClient{mgr.GetClient(), s.refuse},
		APIReader:     mgr.GetAPIReader(),
		EventRecorder: mgr.GetEventRecorderFor("stack-controller"),
		Runtime:       s.agents,
		Store:         store,
		Artifacts:     fetcher,
		Git:           repositories,
		Sources: &source.Set{Sources: []source.Source{
			repositories,
			&source.Flux{APIReader: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper()},
			&source.Programs{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()},
		}},
		References:       s.watchReferences(mgr),
		RecentOutputs:    NewRecentOutputs(),
		MaxOperations:    s.maxOperations,
		ProgressInterval: 100 * time.Millisecond,
	}).SetupWithManager(s.t.Context(), mgr, fairqueue.ControllerOptions(4, controller.Options{}))).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		s.Eventually(done).Should(Receive(BeNil()))
	})
	s.t.Cleanup(func() {
		stop()
		if s.t.Failed() {
			s.t.Log(s.log.String())
		}
	})
	return stop
}

// refusingClient is a client of an API server that does not admit some objects.
type refusingClient struct {
	ctrlclient.Client
	refuse func(ctrlclient.Object) error
}

func (c refusingClient) Create(ctx context.Context, object ctrlclient.Object, options ...ctrlclient.CreateOption) error {
	if c.refuse != nil {
		if err := c.refuse(object); err != nil {
			return err
		}
	}
	return c.Client.Create(ctx, object, options...)
}

func (c refusingClient) Status() ctrlclient.SubResourceWriter {
	return refusingStatus{c.Client.Status(), c.refuse}
}

type refusingStatus struct {
	ctrlclient.SubResourceWriter
	refuse func(ctrlclient.Object) error
}

func (c refusingStatus) Patch(ctx context.Context, object ctrlclient.Object, patch ctrlclient.Patch, options ...ctrlclient.SubResourcePatchOption) error {
	if c.refuse != nil {
		if err := c.refuse(object); err != nil {
			return err
		}
	}
	return c.SubResourceWriter.Patch(ctx, object, patch, options...)
}

// logBuffer is a buffer that may be read while it is written.
type logBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
