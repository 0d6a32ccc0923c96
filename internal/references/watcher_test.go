package references

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

const (
	patience = 30 * time.Second
	poll     = 20 * time.Millisecond
)

// journal is a list of lines: the objects that a Watcher announced, or what it logged.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) read() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string{}, j.lines...)
}

// watch runs a Watcher with the configuration until the test ends.
func watch(t *testing.T, g *WithT, config *rest.Config, in string) (w *Watcher, told, logged *journal, watches *controlplane.Watches) {
	t.Helper()
	watches = &controlplane.Watches{}
	watches.Of(config)
	http, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	mapper, err := apiutil.NewDynamicRESTMapper(config, http)
	g.Expect(err).NotTo(HaveOccurred())
	told, logged = &journal{}, &journal{}
	w, err = NewWatcher(t.Context(), Options{
		Config: config, HTTPClient: http, Mapper: mapper, Scheme: scheme.Scheme, Namespace: in,
		Selector: labels.SelectorFromSet(labels.Set{"watch": "me"}),
		Log:      funcr.New(func(_, line string) { logged.add(line) }, funcr.Options{}),
	})
	g.Expect(err).NotTo(HaveOccurred())
	w.Notify(func(key Key) { told.add(key.String()) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Eventually(done).WithTimeout(patience).Should(Receive(BeNil()))
	})
	return w, told, logged, watches
}

func TestWatcherOnARealAPIServer(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(poll)
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{Log: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cluster.Stop()).To(Succeed()) })
	c, err := client.New(cluster.Config(), client.Options{Scheme: scheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	create := func(object client.Object) { g.Expect(c.Create(t.Context(), object)).To(Succeed()) }
	selected := func(in, name string, watched map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: in, Name: name, Labels: watched, Annotations: map[string]string{"copy": "of a value"}}
	}
	label := map[string]string{"watch": "me"}
	for _, in := range []string{namespace, "other"} {
		create(&corev1.Namespace{Name: in})
		create(&corev1.Secret{ObjectMeta: selected(in, "a", label), StringData: map[string]string{"k": "value"}})
		create(&corev1.Secret{ObjectMeta: selected(in, "unlabelled", nil)})
		create(&corev1.ConfigMap{ObjectMeta: selected(in, "a", label)})
	}

	t.Run("tells of what is selected and keeps nothing but versions", func(t *testing.T) {
		g := NewWithT(t)
		w, told, _, _ := watch(t, g, cluster.Config(), namespace)
		g.Eventually(told.read).WithTimeout(patience).Should(ConsistOf("Secret/team/a", "ConfigMap/team/a"))
		keys := []Key{secret("a"), secret("unlabelled"), secret("missing"), configMap("a")}
		before, err := w.Versions(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(before).To(HaveLen(2))
		object := metadataOf(Secret)
		g.Expect(w.cache.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "a"}, object)).To(Succeed())
		g.Expect(object.ObjectMeta).To(Equal(metav1.ObjectMeta{Namespace: namespace, Name: "a", UID: object.UID, ResourceVersion: object.ResourceVersion}))

		changed := &corev1.Secret{ObjectMeta: selected(namespace, "a", label), StringData: map[string]string{"k": "other"}}
		g.Expect(c.Update(t.Context(), changed)).To(Succeed())
		g.Eventually(told.read).WithTimeout(patience).Should(HaveLen(3))
		after, err := w.Versions(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(NotIn(after, Digest(before))).To(Equal([]Version{VersionOf(Secret, changed)}))
		g.Expect(w.Watches(changed)).To(BeTrue())

		// An object that loses the label counts as gone.
		changed.Labels = nil
		g.Expect(c.Update(t.Context(), changed)).To(Succeed())
		g.Eventually(told.read).WithTimeout(patience).Should(HaveLen(4))
		g.Expect(w.Versions(t.Context(), keys[:1])).To(BeEmpty())
		g.Expect(w.Watches(changed)).To(BeFalse())
	})

	t.Run("without the right to watch it watches nothing and says so, until it gets it", func(t *testing.T) {
		g := NewWithT(t)
		const account = "watcher"
		create(&corev1.ServiceAccount{Namespace: namespace, Name: account})
		config, err := cluster.ServiceAccountConfig(t.Context(), namespace, account)
		g.Expect(err).NotTo(HaveOccurred())
		w, told, logged, watches := watch(t, g, config, "other")
		g.Eventually(logged.read).WithTimeout(patience).Should(ContainElement(ContainSubstring("allow list and watch, or set --watch-configs-label-selector=none")))
		key := Key{Kind: Secret, Namespace: "other", Name: "a"}
		g.Expect(w.Versions(t.Context(), []Key{key})).To(BeEmpty())

		create(&rbacv1.ClusterRole{Name: account, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: []string{"list", "watch"}},
		}})
		binding := &rbacv1.ClusterRoleBinding{
			Name:     account,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
		}
		create(binding)
		g.Eventually(told.read).WithTimeout(2 * patience).Should(ConsistOf("Secret/other/a", "ConfigMap/other/a"))
		g.Expect(w.Versions(t.Context(), []Key{key})).To(HaveLen(1))

		// What was known before does not count when the right is withdrawn.
		g.Expect(c.Delete(t.Context(), binding)).To(Succeed())
		g.Eventually(func() ([]Version, error) { watches.Interrupt(); return w.Versions(t.Context(), []Key{key}) }).WithTimeout(patience).Should(BeEmpty())
		known, _, err := w.Version(t.Context(), key, label)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(known).To(BeFalse())
	})
}

func TestNobodyWatches(t *testing.T) {
	g := NewWithT(t)
	var w *Watcher
	w.Notify(func(Key) {})
	g.Expect(w.Versions(t.Context(), []Key{secret("a")})).To(BeEmpty())
	g.Expect(w.Watches(&metav1.ObjectMeta{})).To(BeFalse())
	g.Expect(w.Source(nil).Start(t.Context(), nil)).To(Succeed())
}
