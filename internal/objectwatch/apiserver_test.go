package objectwatch

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

const patience = 30 * time.Second

var (
	widgets = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	planets = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Planet"}
)

// system is an API server with a Watcher.
type system struct {
	cluster *controlplane.ControlPlane
	client  client.Client
}

// watcher is a Watcher that runs, with what it did.
type watcher struct {
	*Watcher
	// gets and all count the requests for Widgets: for single ones, and of any kind. frozen holds back what the API server sends to watches.
	gets, all atomic.Int64
	frozen    atomic.Bool
	mu        sync.Mutex
	told      []string
	logged    []string
}

func (w *watcher) read() (told, logged []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.told...), append([]string{}, w.logged...)
}

// start runs a Watcher as the user, with the changes of its options.
func (s *system) start(t *testing.T, user string, change func(*Options)) *watcher {
	t.Helper()
	g := NewWithT(t)
	w := &watcher{}
	config := rest.CopyConfig(s.cluster.Config())
	if user != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if strings.Contains(request.URL.Path, "/widgets/") {
				w.gets.Add(1)
			}
			if strings.Contains(request.URL.Path, "/widgets") {
				w.all.Add(1)
			}
			response, err := next.RoundTrip(request)
			if err == nil && request.URL.Query().Get("watch") != "" {
				response.Body = freezer{response.Body, request.Context(), &w.frozen}
			}
			return response, err
		})
	})
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	live, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper})
	g.Expect(err).NotTo(HaveOccurred())
	options := Options{
		Kinds: []schema.GroupKind{widgets.GroupKind(), planets.GroupKind()}, Config: config, HTTPClient: httpClient, Mapper: mapper, Scheme: scheme.Scheme,
		APIReader: informercache.NewReader(live),
		Log: funcr.New(func(_, line string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.logged = append(w.logged, line)
		}, funcr.Options{}),
	}
	if change != nil {
		change(&options)
	}
	w.Watcher = New(options)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	g.Expect(w.Source(func(_ context.Context, name Name) []reconcile.Request {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, name.String())
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: name.Namespace, Name: name.Name}}}
	}).Start(t.Context(), queue)).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Eventually(done).WithTimeout(patience).Should(Receive(BeNil()))
	})
	g.Eventually(func() bool {
		w.Watcher.mu.Lock()
		defer w.Watcher.mu.Unlock()
		return w.running != nil
	}).Should(BeTrue())
	return w
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// freezer is the body of a response that ends to deliver when it is frozen.
type freezer struct {
	io.ReadCloser
	ctx    context.Context
	frozen *atomic.Bool
}

func (f freezer) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if f.frozen.Load() {
		<-f.ctx.Done()
		return 0, f.ctx.Err()
	}
	return n, err
}

func (s *system) namespace(t *testing.T) string {
	namespace := &corev1.Namespace{GenerateName: "objects-"}
	NewWithT(t).Expect(s.client.Create(t.Context(), namespace)).To(Succeed())
	return namespace.Name
}

func (s *system) create(t *testing.T, namespace, name string) *unstructured.Unstructured {
	widget := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"a": "b"}}}
	widget.SetGroupVersionKind(widgets)
	widget.SetNamespace(namespace)
	widget.SetName(name)
	NewWithT(t).Expect(s.client.Create(t.Context(), widget)).To(Succeed())
	return widget
}

func (s *system) setReady(t *testing.T, widget *unstructured.Unstructured, status string) {
	widget.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}
	NewWithT(t).Expect(s.client.Status().Update(t.Context(), widget)).To(Succeed())
}

func keyOf(widget *unstructured.Unstructured) Key {
	return Key{widgets, widget.GetNamespace(), widget.GetName()}
}

func TestWatcherOnARealAPIServer(t *testing.T) {
	s := &system{}
	g := NewWithT(t)
	var err error
	s.cluster, err = controlplane.Start(t.Context(), controlplane.Options{Log: os.Stderr, CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(s.cluster.Stop()).To(Succeed()) })
	s.client, err = client.New(s.cluster.Config(), client.Options{Scheme: scheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("a kind that the cluster does not have yet", s.findsAKindThatComesLater) // the others need the kind
	t.Run("with the kind", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"all who ask within a second share a request":                          s.sharesRequests,
			"an object that has not changed is not read again":                     s.readsOnlyWhatChanged,
			"a kind that nobody asks for is not watched any longer":                s.stopsWhenIdle,
			"what may not be watched is polled, what may not be read is a problem": s.saysWhichRightsAreMissing,
			"a namespace that is not watched is read all the same":                 s.readsElsewhere,
			"objects that are in no namespace cannot be named from one":            s.refusesClusterScope,
			"a watch that says nothing costs one request per question":             s.survivesASilentWatch,
			"of a hostile object little is kept, or none of it is read":            s.boundsWhatItKeeps,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("a kind that the cluster no longer has is asked for rarely", s.noticesThatAKindIsGone) // the last one, without the kind
}

func (s *system) findsAKindThatComesLater(t *testing.T) {
	g := NewWithT(t)
	w := s.start(t, "", nil)
	read := func() error {
		_, err := w.Read(t.Context(), "default", Key{widgets, "default", "a"})
		return err
	}
	g.Expect(read()).To(MatchError(&Problem{Message: "cannot be read: the cluster has no kind Widget in example.com/v1; install its CustomResourceDefinition"}))
	g.Expect(w.Watched()).To(BeEmpty())
	g.Expect(s.cluster.InstallCRDs(filepath.Join("testdata", "widgets.yaml"), filepath.Join("testdata", "planets.yaml"))).To(Succeed())
	g.Eventually(read).WithTimeout(patience).Should(Succeed())
	g.Expect(w.Watched()).To(Equal([]schema.GroupKind{widgets.GroupKind()}))
}

func (s *system) sharesRequests(t *testing.T) {
	g := NewWithT(t)
	w := s.start(t, "", nil)
	widget := s.create(t, s.namespace(t), "a")
	begin := time.Now()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			answer, err := w.Read(t.Context(), "default", keyOf(widget))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(answer.Object.UID).To(Equal(widget.GetUID()))
		})
	}
	all.Wait()
	g.Expect(w.gets.Load()).To(BeNumerically("<=", 1+time.Since(begin)/shareFor))
}

func (s *system) readsOnlyWhatChanged(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	w := s.start(t, "", nil)
	widget := s.create(t, s.namespace(t), "a")
	read := func() Answer {
		answer, err := w.Read(t.Context(), "default", keyOf(widget))
		g.Expect(err).NotTo(HaveOccurred())
		return answer
	}
	g.Eventually(func() bool { return read().Watched }).Should(BeTrue())
	g.Expect(read().Object.Unready()).To(ContainSubstring("no condition"))
	told := func() []string { told, _ := w.read(); return told }
	g.Eventually(told).Should(ContainElement(name(widget)), "also what was there before")
	before := w.gets.Load()
	g.Consistently(func() int64 { read(); return w.gets.Load() }, "2s").Should(Equal(before), "nothing has changed")

	s.setReady(t, widget, "True")
	g.Eventually(func() int { return strings.Count(strings.Join(told(), " ")+" ", name(widget)+" ") }).Should(Equal(2))
	g.Eventually(func() string { return read().Object.Unready() }).Should(BeEmpty())
	g.Expect(w.gets.Load()).To(Equal(before + 1))
	// Two changes within a second are two versions, of which the second one has to wait.
	s.setReady(t, widget, "False")
	g.Eventually(func() Answer { return read() }).Should(Or(
		HaveField("Outdated", BeTrue()), HaveField("Object.IsReady", BeFalse())))
	g.Eventually(func() bool { return read().Object.IsReady }).Should(BeFalse())
	// The same object in another version.
	key := keyOf(widget)
	key.Version = "v2"
	other, err := w.Read(t.Context(), "default", key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(other.Object.APIVersion).To(Equal("example.com/v2"))
	g.Expect(other.Watched).To(BeTrue())
	g.Expect(w.Watched()).To(HaveLen(1))

	g.Expect(s.client.Delete(t.Context(), widget)).To(Succeed())
	g.Eventually(func() *Object { return read().Object }).Should(BeNil())
	before = w.gets.Load()
	g.Consistently(func() int64 { read(); return w.gets.Load() }, "2s").Should(Equal(before), "it still does not exist")
	s.create(t, widget.GetNamespace(), "a")
	g.Eventually(func() *Object { return read().Object }).ShouldNot(BeNil())
}

func (s *system) stopsWhenIdle(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	w := s.start(t, "", func(o *Options) { o.Idle = 3 * time.Second })
	widget := s.create(t, s.namespace(t), "a")
	g.Expect(w.Watched()).To(BeEmpty(), "nobody asked yet")
	read := func() Answer {
		answer, err := w.Read(t.Context(), "default", keyOf(widget))
		g.Expect(err).NotTo(HaveOccurred())
		return answer
	}
	for range 2 {
		g.Eventually(func() bool { return read().Watched }).Should(BeTrue())
		g.Eventually(w.Watched).Should(BeEmpty())
	}
	g.Eventually(func() int { told, _ := w.read(); return len(told) }).Should(BeNumerically(">=", 2), "what is there is reported each time")
}

func (s *system) saysWhichRightsAreMissing(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	w := s.start(t, "reader", nil)
	widget := s.create(t, s.namespace(t), "a")
	read := func() (Answer, error) { return w.Read(t.Context(), "default", keyOf(widget)) }
	_, err := read()
	g.Expect(err).To(MatchError(&Problem{Denied: true, Message: "cannot be read: this controller may not; " +
		`allow it with the rule {apiGroups: ["example.com"], resources: ["widgets"], verbs: ["get", "list", "watch"]}`}))
	allow := func(role string, verbs ...string) {
		g.Expect(s.client.Create(t.Context(), &rbacv1.ClusterRole{Name: role, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"example.com"}, Resources: []string{"widgets"}, Verbs: verbs},
		}})).To(Succeed())
		g.Expect(s.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			Name: role, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "reader"}},
		})).To(Succeed())
	}
	allow("get", "get")
	g.Eventually(func() error { _, err := read(); return err }).Should(Succeed())
	g.Eventually(func() []string { _, logged := w.read(); return logged }).Should(
		ContainElement(ContainSubstring("cannot watch the objects of a kind, so they are polled: allow list and watch")))
	answer, err := read()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Watched).To(BeFalse())
	allow("watch", "list", "watch")
	g.Eventually(func() []string { told, _ := w.read(); return told }).WithTimeout(2 * patience).Should(ContainElement(name(widget)))
	_, logged := w.read()
	g.Expect(logged).To(HaveLen(1), "it is said once")
}

func (s *system) readsElsewhere(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	here, elsewhere := s.create(t, s.namespace(t), "a"), s.create(t, s.namespace(t), "a")
	w := s.start(t, "", func(o *Options) { o.Namespace = here.GetNamespace() })
	read := func(widget *unstructured.Unstructured) Answer {
		answer, err := w.Read(t.Context(), "default", keyOf(widget))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Object.UID).To(Equal(widget.GetUID()))
		return answer
	}
	g.Eventually(func() bool { return read(here).Watched }).Should(BeTrue())
	g.Expect(read(elsewhere).Watched).To(BeFalse())
	g.Expect(read(elsewhere).Outdated).To(BeFalse())
	g.Eventually(func() []string { told, _ := w.read(); return told }).Should(ConsistOf(name(here)), "the API server sends no others")
}

// If two versions differ for long, an answer that is outdated at once would let a Stack ask again and again.
func (s *system) survivesASilentWatch(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	w := s.start(t, "", nil)
	widget := s.create(t, s.namespace(t), "a")
	read := func(key Key) Answer {
		answer, err := w.Read(t.Context(), "default", key)
		g.Expect(err).NotTo(HaveOccurred())
		return answer
	}
	g.Eventually(func() bool { return read(keyOf(widget)).Watched }).Should(BeTrue())
	w.frozen.Store(true)
	s.setReady(t, widget, "True")
	other := keyOf(widget)
	other.Version = "v2"
	answer := read(other)
	g.Expect(answer.Object.IsReady).To(BeTrue())
	g.Expect(answer.Outdated).To(BeFalse(), "nothing newer is known than what the API server has just answered")
}

func (s *system) boundsWhatItKeeps(t *testing.T) {
	w, namespace := s.start(t, "", nil), s.namespace(t)
	read := func(name, status string) (Answer, error) {
		g := NewWithT(t)
		widget := s.create(t, namespace, name)
		var decoded any
		g.Expect(json.Unmarshal([]byte(status), &decoded)).To(Succeed())
		widget.Object["status"] = decoded
		g.Expect(s.client.Status().Update(t.Context(), widget)).To(Succeed())
		return w.Read(t.Context(), "default", keyOf(widget))
	}
	g := NewWithT(t)
	_, err := read("parts", `{"a": [`+strings.Repeat(`{},`, 300_000)+`{}]}`)
	g.Expect(err).To(MatchError(&Problem{Message: "cannot be read: it takes more than 4 MiB of memory"}))
	for name, status := range map[string]string{
		"deep": `{"a": ` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `, "conditions": [{"type": "Ready", "status": "True"}]}`,
		"deep-conditions": `{"conditions": [{"type": ` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) +
			`}, {"type": "Ready", "status": "True"}]}`,
		"many":  `{"conditions": [` + strings.Repeat(`{"type": "A"},`, 5000) + `{"type": "Ready", "status": "True"}]}`,
		"large": `{"a": "` + strings.Repeat("x", 1<<20) + `", "conditions": [{"type": "Ready", "status": "True"}]}`,
	} {
		answer, err := read(name, status)
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(answer.Object.Unready()).To(BeEmpty(), name)
		g.Expect(answer.Object.size()).To(BeNumerically("<", 4<<10), name)
	}
}

func (s *system) noticesThatAKindIsGone(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	w := s.start(t, "", nil)
	widget := s.create(t, s.namespace(t), "a")
	read := func() error {
		_, err := w.Read(t.Context(), "default", keyOf(widget))
		return err
	}
	g.Eventually(func() bool {
		answer, err := w.Read(t.Context(), "default", keyOf(widget))
		return err == nil && answer.Watched
	}).Should(BeTrue())
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	definition.SetName("widgets.example.com")
	g.Expect(s.client.Delete(t.Context(), definition)).To(Succeed())
	g.Eventually(read).Should(MatchError(noKind(keyOf(widget))))
	g.Eventually(w.Watched).Should(BeEmpty(), "there is nothing to watch")
	begin, before := time.Now(), w.all.Load()
	g.Consistently(read, "5s", "1ms").Should(MatchError(noKind(keyOf(widget))), "all the time, in the same words")
	asked := time.Since(begin)/missingFor + 1
	g.Expect(w.all.Load()-before).To(BeNumerically("<=", 4*asked), "one question, and one attempt to watch")
	g.Expect(s.cluster.InstallCRDs(filepath.Join("testdata", "widgets.yaml"))).To(Succeed())
	g.Eventually(read).Should(Succeed())
	g.Eventually(w.Watched).Should(HaveLen(1))
}

func (s *system) refusesClusterScope(t *testing.T) {
	_, err := s.start(t, "", nil).Read(t.Context(), "default", Key{planets, "default", "a"})
	NewWithT(t).Expect(err).To(MatchError(&Problem{Denied: true,
		Message: "cannot be a dependency: objects of its kind are in no namespace, so none may be named from one"}))
}

func name(widget *unstructured.Unstructured) string { return keyOf(widget).name().String() }
