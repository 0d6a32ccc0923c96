package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// patience is longer than the longest interval after which anything is tried again.
const patience = 2 * maxInterval

// controllerAccount is the ServiceAccount of the controller, with the rights that the manifests give it.
var controllerAccount = ctrlclient.ObjectKey{Namespace: "flux-system", Name: "stack-controller"}

var (
	cluster *controlplane.ControlPlane
	// account is the configuration with which the controller connects to the API server.
	account *rest.Config
)

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{
		CRDs: []string{controlplane.ProductCRDs()}, WithControllerManager: true,
		MoreControllers: []string{"statefulset-controller", "resourcequota-controller"},
	}, func(cp *controlplane.ControlPlane) (err error) {
		cluster = cp
		account, err = createAccount(context.Background())
		return err
	}))
}

func createAccount(ctx context.Context) (*rest.Config, error) {
	if _, err := cluster.Kubectl(ctx, "apply", "--filename="+filepath.Join(tools.RepositoryRoot(), "config", "rbac", "role.yaml")); err != nil {
		return nil, err
	}
	client, err := newClient()
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Namespace: controllerAccount.Namespace, Name: controllerAccount.Name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: meta.Name}}
	for _, object := range []ctrlclient.Object{
		&corev1.Namespace{Name: meta.Namespace},
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.ClusterRoleBinding{Name: meta.Name, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{meta.Name}, Verbs: []string{"create"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}},
	} {
		if err := client.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("create %T: %w", object, err)
		}
	}
	return cluster.ServiceAccountConfig(ctx, meta.Namespace, meta.Name)
}

func newClient() (ctrlclient.Client, error) {
	scheme := k8sruntime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := autov1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return ctrlclient.New(cluster.Config(), ctrlclient.Options{Scheme: scheme})
}

// fixture is a namespace of a real cluster without nodes. The test acts as the kubelet.
type fixture struct {
	*WithT
	t         *testing.T
	client    ctrlclient.Client
	namespace string
	image     string
	delivery  AgentDelivery
	runtime   *Runtime
	// stop ends the controller.
	stop func()

	mu       sync.Mutex
	statuses map[ctrlclient.ObjectKey]agentruntime.Status
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	client, err := newClient()
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{GenerateName: "pods-"}
	g.Expect(client.Create(t.Context(), namespace)).To(Succeed())
	s := &fixture{WithT: g, t: t, client: client, namespace: namespace.Name, image: "agent:v1", delivery: ByInitContainer, statuses: map[ctrlclient.ObjectKey]agentruntime.Status{}}
	// Without this ServiceAccount, the API server refuses pods.
	s.Eventually(func() error {
		return client.Get(t.Context(), ctrlclient.ObjectKey{Namespace: s.namespace, Name: "default"}, &corev1.ServiceAccount{})
	}).Should(Succeed())
	return s
}

// startFixture returns a fixture with a controller.
func startFixture(t *testing.T) *fixture {
	t.Helper()
	s := newFixture(t)
	s.startController()
	return s
}

// startReady returns a fixture with a controller, a Workspace, and its pod and agent.
func startReady(t *testing.T) (*fixture, *autov1alpha1.Workspace, *corev1.Pod, *fakeAgent) {
	t.Helper()
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod, agent := s.makeReady(workspace)
	return s, workspace, pod, agent
}

// startController runs a manager that only calls the runtime, until stop is called or the test ends.
func (s *fixture) startController() {
	s.t.Helper()
	mgr, err := ctrl.NewManager(account, ctrl.Options{
		Scheme:     s.client.Scheme(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}, ByObject: CachedObjects()},
		Controller: config.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)},
		Client:     ctrlclient.Options{Cache: &ctrlclient.CacheOptions{DisableFor: []ctrlclient.Object{&corev1.Secret{}}}},
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.runtime, err = New(s.t.Context(), Options{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Cache: mgr.GetCache(), Config: mgr.GetConfig(), AgentImage: s.image, AgentDelivery: s.delivery,
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(mgr.Add(s.runtime)).To(Succeed())
	s.Expect(ctrl.NewControllerManagedBy(mgr).
		For(&autov1alpha1.Workspace{}).
		WatchesRawSource(source.Channel(s.runtime.Events(), &handler.EnqueueRequestForObject{})).
		Complete(reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
			return s.reconcile(ctx, mgr.GetClient(), request)
		}))).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		s.Eventually(done).Should(Receive(BeNil()))
	})
	s.t.Cleanup(s.stop)
}

func (s *fixture) reconcile(ctx context.Context, client ctrlclient.Client, request ctrl.Request) (ctrl.Result, error) {
	workspace := &autov1alpha1.Workspace{}
	err := client.Get(ctx, request.NamespacedName, workspace)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, ctrlclient.IgnoreNotFound(s.runtime.Delete(ctx, request.NamespacedName))
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	status, err := s.runtime.Ensure(ctx, workspace, false)
	if err != nil {
		return ctrl.Result{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[request.NamespacedName] = status
	return ctrl.Result{RequeueAfter: status.RetryAfter}, nil
}

// create creates a Workspace.
func (s *fixture) create(name string, spec autov1alpha1.WorkspaceSpec) *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := &autov1alpha1.Workspace{Namespace: s.namespace, Name: name, Spec: spec}
	s.Expect(s.client.Create(s.t.Context(), workspace)).To(Succeed())
	return workspace
}

// change edits the Workspace.
func (s *fixture) change(workspace *autov1alpha1.Workspace, edit func(*autov1alpha1.WorkspaceSpec)) {
	s.t.Helper()
	before := workspace.DeepCopy()
	edit(&workspace.Spec)
	s.Expect(s.client.Patch(s.t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
}

// status returns a function for the status that the runtime returned last for the Workspace.
func (s *fixture) status(workspace *autov1alpha1.Workspace) func() agentruntime.Status {
	return func() agentruntime.Status {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.statuses[ctrlclient.ObjectKeyFromObject(workspace)]
	}
}

// beReady and beUnready match statuses.
func beReady() types.GomegaMatcher { return HaveField("Ready", true) }

func beUnready(reason string) types.GomegaMatcher {
	return And(HaveField("Ready", false), HaveField("Reason", reason))
}

// get reads an object of the Workspace.
func (s *fixture) get(name string, into ctrlclient.Object) error {
	return s.client.Get(s.t.Context(), ctrlclient.ObjectKey{Namespace: s.namespace, Name: name}, into)
}
