package namespaces

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

const patience = 90 * time.Second // an informer that was refused tries again after up to a minute

var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(started *controlplane.ControlPlane) error {
		cluster = started
		return nil
	}))
}

// heard are the names that a Watcher has told.
type heard struct {
	mu    sync.Mutex
	names []string
	// watches are those of the Watcher.
	watches controlplane.Watches
}

func (h *heard) read() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.names...)
}

// start runs a Watcher as the user, and returns it with what it tells.
func start(t *testing.T, user string) (*Watcher, *heard) {
	t.Helper()
	g := NewWithT(t)
	config := rest.CopyConfig(cluster.Config())
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	h := &heard{}
	h.watches.Of(config)
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	w := New(Options{Config: config, HTTPClient: httpClient, Mapper: mapper, Scheme: scheme.Scheme, Log: logr.Discard()})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(queue.ShutDown)
	g.Expect(w.Source(func(_ context.Context, namespace string) []reconcile.Request {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.names = append(h.names, namespace)
		return nil
	}).Start(t.Context(), queue)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Eventually(done).WithTimeout(patience).Should(Receive(BeNil()))
	})
	return w, h
}

func TestLabelsAreKnownOnceSomebodyAsks(t *testing.T) {
	g := NewWithT(t)
	admin, err := client.New(cluster.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	namespace := &corev1.Namespace{Name: "labelled", Labels: map[string]string{"env": "test"}}
	g.Expect(admin.Create(t.Context(), namespace)).To(Succeed())
	w, h := start(t, "")
	g.Consistently(h.read, "200ms").Should(BeEmpty(), "nobody has asked")
	_, err = w.Labels("labelled")
	g.Expect(err).To(MatchError(ErrNotYet))
	env := func() (string, error) {
		labels, err := w.Labels("labelled")
		return labels["env"], err
	}
	g.Eventually(env).WithTimeout(patience).Should(Equal("test"))
	g.Eventually(h.read).Should(Equal([]string{""}), "all are known")
	g.Expect(w.Labels("missing")).To(BeEmpty())

	namespace.Labels["env"] = "production"
	g.Expect(admin.Update(t.Context(), namespace)).To(Succeed())
	g.Eventually(env).Should(Equal("production"))
	namespace.Annotations = map[string]string{"some": "other change"}
	g.Expect(admin.Update(t.Context(), namespace)).To(Succeed())
	g.Expect(admin.Create(t.Context(), &corev1.Namespace{Name: "later"})).To(Succeed())
	g.Eventually(h.read).Should(Equal([]string{"", "labelled", "later"}))
}

func TestLabelsThatMayNotBeReadAreUnknownUntilTheyMay(t *testing.T) {
	g := NewWithT(t)
	w, h := start(t, "nobody")
	problem := func() error {
		_, err := w.Labels("default")
		return err
	}
	g.Eventually(problem).WithTimeout(patience).Should(MatchError("the controller may not list and watch Namespaces"))
	g.Eventually(h.read).Should(Equal([]string{""}), "whoever waits hears of it")
	admin, err := client.New(cluster.Config(), client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Create(t.Context(), &rbacv1.ClusterRole{Name: "namespaces", Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}},
	}})).To(Succeed())
	binding := &rbacv1.ClusterRoleBinding{Name: "namespaces", Subjects: []rbacv1.Subject{
		{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: "nobody"},
	}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "namespaces"}}
	g.Expect(admin.Create(t.Context(), binding)).To(Succeed())
	g.Eventually(problem).WithTimeout(patience).Should(Succeed())
	g.Eventually(h.read).Should(Equal([]string{"", ""}))

	w.retry, w.patience = 10*time.Millisecond, 3*time.Second
	g.Expect(admin.Delete(t.Context(), binding)).To(Succeed())
	g.Eventually(func() bool { h.watches.Interrupt(); return w.state.IsRefused() }).WithTimeout(patience).Should(BeTrue())
	g.Expect(problem()).To(Succeed(), "the API server may have been started just now")
	g.Eventually(problem).WithTimeout(patience).Should(MatchError(errRefused), "old labels do not count")
	g.Eventually(h.read).Should(Equal([]string{"", "", ""}), "nobody waits for an event that does not come")
	binding.ResourceVersion, binding.UID = "", ""
	g.Expect(admin.Create(t.Context(), binding)).To(Succeed())
	g.Eventually(problem).WithTimeout(patience).Should(Succeed(), "the next answer ends it")
	g.Eventually(h.read).Should(Equal([]string{"", "", "", ""}), "no event may say that it is over")
}

func TestControllerOfOneNamespaceKnowsNoLabels(t *testing.T) {
	g := NewWithT(t)
	var none *Watcher
	_, err := none.Labels("default")
	g.Expect(err).To(MatchError("the controller watches one namespace, and reads the labels of none"))
	g.Expect(none.Source(nil).Start(t.Context(), nil)).To(Succeed())
}

// failingMapper fails until it has been asked often enough.
type failingMapper struct {
	apimeta.RESTMapper
	failures atomic.Int32
}

func (m *failingMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*apimeta.RESTMapping, error) {
	if m.failures.Add(-1) >= 0 {
		return nil, errors.New("the API server does not answer")
	}
	return m.RESTMapper.RESTMapping(kind, versions...)
}

func TestWatchThatCannotBeginIsTriedAgain(t *testing.T) {
	g := NewWithT(t)
	w, h := start(t, "")
	failing := &failingMapper{RESTMapper: w.Mapper}
	failing.failures.Store(3)
	w.Mapper, w.retry = failing, 10*time.Millisecond
	labels := func() error {
		_, err := w.Labels("default")
		return err
	}
	g.Expect(labels()).To(MatchError(ErrNotYet))
	g.Eventually(labels).WithTimeout(patience).Should(Succeed())
	g.Eventually(h.read).Should(Equal([]string{""}), "whoever waits hears of it once")
}
