package program_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/program"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

const (
	// patience is how long tests wait for what takes milliseconds on a quiet machine.
	patience = 30 * time.Second
	poll     = 20 * time.Millisecond
)

var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(controlplane.RunTests(m, controlplane.Options{CRDs: []string{controlplane.ProductCRDs()}}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}

// fixture is a namespace of a real API server in which the Program controller runs.
type fixture struct {
	*WithT
	t         *testing.T
	client    client.WithWatch
	namespace string
	programs  *source.Programs
	logged    *synced
	// metrics are the metrics of the controller that was started last.
	metrics *prometheus.Registry
}

// synced is a buffer for several goroutines.
type synced struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (s *synced) write(prefix, args string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content.WriteString(prefix + args + "\n")
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.String()
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(poll)
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{clientgoscheme.AddToScheme, pulumiv1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	s := &fixture{WithT: g, t: t, logged: &synced{}}
	var err error
	s.client, err = client.NewWithWatch(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "program-"}
	g.Expect(s.client.Create(t.Context(), namespace)).To(Succeed())
	s.namespace = namespace.Name
	return s
}

// startController runs a manager with the controller, until the returned function is called or the test ends.
func (s *fixture) startController(selector labels.Selector, also ...func(ctrl.Manager)) (stop func()) {
	s.t.Helper()
	mgr, err := ctrl.NewManager(cluster.Config(), ctrl.Options{
		Scheme: s.client.Scheme(),
		// More than --log-level=trace shows, and less than the level at which client-go writes down whole objects.
		Logger:  funcr.New(s.logged.write, funcr.Options{Verbosity: 4}),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{s.namespace: {}},
			ByObject:          map[client.Object]cache.ByObject{&pulumiv1.Program{}: {Transform: source.ProgramCacheTransform}},
		},
		Controller: config.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)}, // every test has a controller of that name
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.programs = &source.Programs{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()}
	s.metrics = prometheus.NewRegistry()
	counted, err := metrics.NewPrograms(s.metrics)
	s.Expect(err).NotTo(HaveOccurred())
	reconciler := &program.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), EventRecorder: mgr.GetEventRecorderFor("stack-controller"), Selector: selector, Metrics: counted,
	}
	s.Expect(reconciler.SetupWithManager(mgr, controller.Options{})).To(Succeed())
	for _, setup := range also {
		setup(mgr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.Expect(mgr.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
	stop = sync.OnceFunc(func() {
		cancel()
		s.Eventually(done).Should(Receive(BeNil()))
	})
	s.t.Cleanup(stop)
	return stop
}

// apply writes a Program like a client that does not know its fields and does not request strict validation.
func (s *fixture) apply(name, body string, labels ...string) {
	s.t.Helper()
	content := map[string]any{}
	s.Expect(yaml.Unmarshal([]byte(body), &content)).To(Succeed())
	object := &unstructured.Unstructured{Object: map[string]any{"program": content}}
	object.SetAPIVersion(pulumiv1.GroupVersion.String())
	object.SetKind(pulumiv1.ProgramKind)
	object.SetNamespace(s.namespace)
	object.SetName(name)
	for _, label := range labels {
		object.SetLabels(map[string]string{"shard": label})
	}
	err := s.client.Create(s.t.Context(), object.DeepCopy(), client.FieldValidation("Ignore"))
	if !apierrors.IsAlreadyExists(err) {
		s.Expect(err).NotTo(HaveOccurred())
		return
	}
	s.Expect(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object.SetResourceVersion(s.get(name).ResourceVersion)
		return s.client.Update(s.t.Context(), object.DeepCopy(), client.FieldValidation("Ignore"))
	})).To(Succeed())
}

func (s *fixture) get(name string) *pulumiv1.Program {
	found := &pulumiv1.Program{}
	s.Expect(s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, found)).To(Succeed())
	return found
}

// await returns the Program once the controller has reconciled its last generation.
func (s *fixture) await(name string) *pulumiv1.Program {
	s.t.Helper()
	var found *pulumiv1.Program
	s.Eventually(func() bool {
		found = s.get(name)
		return found.Status.ObservedGeneration == found.Generation
	}).Should(BeTrue())
	s.Expect(statuscheck.Lint(s.t.Context(), found)).To(Succeed())
	return found
}

// expectCounted waits until the metric counts that many Programs.
func (s *fixture) expectCounted(count int) {
	s.t.Helper()
	want := fmt.Sprintf("# HELP programs_active Number of Programs that this controller looks after.\n# TYPE programs_active gauge\nprograms_active %d\n", count)
	s.Eventually(func() error { return testutil.GatherAndCompare(s.metrics, strings.NewReader(want)) }).Should(Succeed())
}

// events returns the messages of the events about the Program with the reason.
func (s *fixture) events(name, reason string) []string {
	list := &corev1.EventList{}
	s.Expect(s.client.List(s.t.Context(), list, client.InNamespace(s.namespace))).To(Succeed())
	var messages []string
	for _, event := range list.Items {
		if event.InvolvedObject.Name == name && event.Reason == reason {
			messages = append(messages, event.Message)
		}
	}
	return messages
}

func (s *fixture) expectReady(found *pulumiv1.Program) {
	s.t.Helper()
	s.Expect(conditions.IsReady(found)).To(BeTrue(), "%v", found.Status.Conditions)
	s.Expect(conditions.GetReason(found, meta.ReadyCondition)).To(Equal(meta.SucceededReason))
	s.Expect(conditions.Has(found, meta.StalledCondition)).To(BeFalse())
	s.Expect(conditions.Has(found, meta.ReconcilingCondition)).To(BeFalse())
}
