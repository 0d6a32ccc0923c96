package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/process"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// patience is how long tests wait for what takes milliseconds on a quiet machine.
const patience = 30 * time.Second

var (
	cluster *controlplane.ControlPlane
	// agentPath and pulumiPath are the real programs.
	agentPath, pulumiPath string
)

func TestMain(m *testing.M) {
	bin, err := os.MkdirTemp("", "workspace-bin-")
	if err != nil {
		panic(err)
	}
	code := controlplane.RunTests(m, controlplane.Options{CRDs: []string{controlplane.ProductCRDs()}}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		agentPath = filepath.Join(bin, "agent")
		if err := programs.Put(context.Background(), programs.Agent, agentPath); err != nil {
			return err
		}
		pulumiPath, err = tools.Path(context.Background(), "pulumi", nil)
		return err
	})
	if left := agentsIn(bin); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "the tests left agents:", left)
		code = 1
	}
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

// agentsIn returns the processes with the text in their command line, which is the path of their executable, their socket or their
// directory.
func agentsIn(text string) []int {
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		panic(err)
	}
	var found []int
	for _, entry := range entries {
		content, err := os.ReadFile(entry)
		if arguments := strings.Split(string(content), "\x00"); err == nil && len(arguments) > 1 && arguments[1] == "serve" && strings.Contains(string(content), text) {
			var pid int
			if _, err := fmt.Sscanf(entry, "/proc/%d/", &pid); err != nil {
				panic(err)
			}
			found = append(found, pid)
		}
	}
	return found
}

// fixture is a namespace of a real API server, and a directory for agents.
type fixture struct {
	*WithT
	t         *testing.T
	client    ctrlclient.Client
	namespace string
	options   process.Options
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	scheme := k8sruntime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
	client, err := ctrlclient.New(cluster.Config(), ctrlclient.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "workspace-"}
	g.Expect(client.Create(t.Context(), namespace)).To(Succeed())
	dir, err := os.MkdirTemp("", "workspaces-")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		for _, pid := range agentsIn(dir) {
			g.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		}
		g.Eventually(func() []int { return agentsIn(dir) }).Should(BeEmpty())
		g.Expect(os.RemoveAll(dir)).To(Succeed())
	})
	return &fixture{WithT: g, t: t, client: client, namespace: namespace.Name,
		options: process.Options{Dir: dir, AgentPath: agentPath, PulumiPath: pulumiPath}}
}

// startController runs a manager with the controller, until the returned function is called or the test ends.
func (s *fixture) startController() (stop func()) {
	s.t.Helper()
	agents, err := process.New(s.options)
	s.Expect(err).NotTo(HaveOccurred())
	return s.startControllerOf(agents)
}

// startControllerOf is startController with another runtime.
func (s *fixture) startControllerOf(agents agentruntime.Runtime) (stop func()) {
	s.t.Helper()
	mgr, err := ctrl.NewManager(cluster.Config(), ctrl.Options{
		Scheme:  s.client.Scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}},
		// Every test has a controller of that name.
		Controller: config.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)},
	})
	s.Expect(err).NotTo(HaveOccurred())
	if runnable, ok := agents.(manager.Runnable); ok {
		s.Expect(mgr.Add(runnable)).To(Succeed())
	}
	s.Expect(informercache.AddIndexes(s.t.Context(), mgr.GetFieldIndexer())).To(Succeed())
	s.Expect((&Reconciler{
		Client:        mgr.GetClient(),
		EventRecorder: mgr.GetEventRecorderFor("stack-controller"),
		Runtime:       agents,
	}).SetupWithManager(mgr, controller.Options{MaxConcurrentReconciles: 4})).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		s.Eventually(done).Should(Receive(BeNil()))
	}
	s.t.Cleanup(stop)
	return stop
}

// create creates a Workspace.
func (s *fixture) create(name string, spec autov1alpha1.WorkspaceSpec) *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := &autov1alpha1.Workspace{Namespace: s.namespace, Name: name, Spec: spec}
	s.Expect(s.client.Create(s.t.Context(), workspace)).To(Succeed())
	return workspace
}

// await reads the Workspace until it matches, and checks the rules for statuses.
func (s *fixture) await(workspace *autov1alpha1.Workspace, matcher types.GomegaMatcher) {
	s.t.Helper()
	s.Eventually(func() (*autov1alpha1.Workspace, error) {
		return workspace, s.client.Get(s.t.Context(), ctrlclient.ObjectKeyFromObject(workspace), workspace)
	}).Should(matcher)
	lint(s.WithT, workspace)
}

// beReady matches a Workspace that is ready.
func beReady() types.GomegaMatcher {
	return And(
		WithTransform(func(w *autov1alpha1.Workspace) bool { return conditions.IsReady(w) }, BeTrue()),
		WithTransform(func(w *autov1alpha1.Workspace) bool { return w.Status.ObservedGeneration == w.Generation }, BeTrue()),
	)
}

// beUnready matches a Workspace that is not ready, for the reason.
func beUnready(reason string) types.GomegaMatcher {
	return WithTransform(func(w *autov1alpha1.Workspace) *metav1.Condition {
		return conditions.Get(w, autov1alpha1.WorkspaceReady)
	}, And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
}

// agent returns the process id of the only agent of this fixture, 0 when there is none.
func (s *fixture) agent() int {
	agents := agentsIn(s.options.Dir)
	s.Expect(len(agents)).To(BeNumerically("<=", 1))
	if len(agents) == 0 {
		return 0
	}
	return agents[0]
}

// directories returns the names in the directory of the agents.
func (s *fixture) directories() []string {
	entries, err := os.ReadDir(s.options.Dir)
	s.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// events lists the messages of the events about the Workspace with that reason.
func (s *fixture) events(workspace *autov1alpha1.Workspace, reason string) func() ([]string, error) {
	return func() ([]string, error) {
		var list corev1.EventList
		err := s.client.List(s.t.Context(), &list, ctrlclient.InNamespace(s.namespace))
		var messages []string
		for _, event := range list.Items {
			if event.InvolvedObject.UID == workspace.UID && event.Reason == reason {
				messages = append(messages, fmt.Sprint(event.Message, " x", max(event.Count, 1)))
			}
		}
		return messages, errors.Join(err, s.t.Context().Err())
	}
}
