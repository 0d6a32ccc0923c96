package source

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// publishedAt is when all sources of these tests changed last.
const publishedAt = "2026-01-01T00:00:00Z"

// bundles has a kind of source, Bundle of bundles.example.com, on a real API server.
type bundles struct {
	cluster *controlplane.ControlPlane
	client  client.Client
}

func TestFluxOnARealAPIServer(t *testing.T) {
	g := NewWithT(t)
	b := &bundles{}
	var err error
	b.cluster, err = controlplane.Start(t.Context(), controlplane.Options{Log: os.Stderr, CRDs: []string{}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(b.cluster.Stop()).To(Succeed()) })
	b.client, err = client.New(b.cluster.Config(), client.Options{Scheme: scheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	b.serve(t, "Bundle", "Namespaced", "v1beta1")
	t.Run("what may only be read is read again and again", b.pollsWhatMayNotBeWatched)
	t.Run("a watch that is refused is not trusted, and who relies on it asks", b.distrustsARefusedWatch)
	t.Run("a source in a namespace that is not watched is read all the same", b.readsElsewhere)
	t.Run("an object in no namespace is refused", b.refusesWhatIsInNoNamespace)
	t.Run("what does not fit into the cache is read all the same", b.readsWhatIsNotInTheCache)
	t.Run("an artifact that is older than the last update is looked at twice", b.looksTwiceAtWhatIsOld)
	t.Run("a version that goes away is replaced by the one that comes", b.followsTheServedVersion) // the last one: it changes the kind
}

// serve makes the API server serve the versions of a kind, of which the last one is stored.
func (b *bundles) serve(t *testing.T, kind, scope string, versions ...string) {
	t.Helper()
	g := NewWithT(t)
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	plural := strings.ToLower(kind) + "s"
	definition.SetName(plural + ".bundles.example.com")
	spec := map[string]any{
		"group": "bundles.example.com", "scope": scope,
		"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
	}
	var all []any
	for _, version := range []string{"v1beta1", "v1"} {
		served := false
		for _, wanted := range versions {
			served = served || wanted == version
		}
		all = append(all, map[string]any{
			"name": version, "served": served, "storage": version == versions[len(versions)-1],
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		})
	}
	if len(versions) == 1 && versions[0] == "v1beta1" {
		all = all[:1] // nobody has heard of v1 yet
	}
	spec["versions"] = all
	existing := definition.DeepCopy()
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(definition), existing); err == nil {
		existing.Object["spec"] = spec
		g.Expect(b.client.Update(t.Context(), existing)).To(Succeed())
		return
	}
	definition.Object["spec"] = spec
	g.Expect(b.client.Create(t.Context(), definition)).To(Succeed())
}

// publish makes the source offer an artifact with the revision, and returns the Stack that names the source.
func (b *bundles) publish(t *testing.T, version, namespace, name, revision string) *pulumiv1.Stack {
	t.Helper()
	g := NewWithT(t)
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("bundles.example.com/" + version)
	object.SetKind("Bundle")
	object.SetNamespace(namespace)
	object.SetName(name)
	status, err := json.Marshal(map[string]any{"status": map[string]any{
		"artifact": map[string]any{"url": "http://example.com/a.tar.gz", "digest": "sha256:" + revision, "revision": revision,
			"path": "a", "lastUpdateTime": publishedAt}}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { return client.IgnoreAlreadyExists(b.client.Create(t.Context(), object.DeepCopy())) }, patience).Should(Succeed())
	g.Expect(b.client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", status))).To(Succeed())
	stack := &pulumiv1.Stack{Namespace: "default", Name: "app"}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
		APIVersion: "bundles.example.com/v1beta1", Kind: "Bundle", Namespace: namespace, Name: name}}
	return stack
}

func (b *bundles) namespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{GenerateName: "bundles-"}
	NewWithT(t).Expect(b.client.Create(t.Context(), namespace)).To(Succeed())
	return namespace.Name
}

// allow sets what the user may do with sources.
func (b *bundles) allow(t *testing.T, user string, verbs ...string) {
	t.Helper()
	g := NewWithT(t)
	// The API server creates a role that does not exist at an update, too.
	g.Expect(b.client.Update(t.Context(), &rbacv1.ClusterRole{Name: user, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"bundles.example.com"}, Resources: []string{"bundles"}, Verbs: verbs},
	}})).To(Succeed())
	g.Expect(client.IgnoreAlreadyExists(b.client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		Name: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}))).To(Succeed())
}

// runningFlux is a Flux with a controller that has started.
type runningFlux struct {
	*Flux
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	mu    sync.Mutex
	open  []io.Closer // the watches
	// frozen holds back what the API server sends to watches.
	frozen atomic.Bool
}

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

// start runs a Flux as the user.
func (b *bundles) start(t *testing.T, user, namespace string) *runningFlux {
	t.Helper()
	g := NewWithT(t)
	f := &runningFlux{queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())}
	t.Cleanup(f.queue.ShutDown)
	config := b.cluster.Config()
	if user != "" {
		config = b.cluster.UserConfig(user)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && request.URL.Query().Has("watch") {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.open = append(f.open, response.Body)
				response.Body = freezer{response.Body, request.Context(), &f.frozen}
			}
			return response, err
		})
	})
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	newMapper := func() (apimeta.RESTMapper, error) { return apiutil.NewDynamicRESTMapper(config, httpClient) }
	mapper, err := newMapper()
	g.Expect(err).NotTo(HaveOccurred())
	live, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper})
	g.Expect(err).NotTo(HaveOccurred())
	f.Flux = &Flux{APIReader: live, Mapper: mapper, NewMapper: newMapper, Namespace: namespace, Scope: references.Scope{OtherNamespaces: true},
		NewCache: func(options cache.Options) (cache.Cache, error) {
			options.HTTPClient = httpClient
			return informercache.NewCache(config, options)
		}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	g.Expect(f.Watch(nil, func(_ context.Context, key string) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: key}}}
	}).Start(ctx, f.queue)).To(Succeed())
	return f
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// interrupt ends the watches that run.
func (f *runningFlux) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, watch := range f.open {
		_ = watch.Close()
	}
	f.open = nil
}

// woken returns the keys of the sources whose Stacks were woken since the last call.
func (f *runningFlux) woken() (keys []string) {
	for f.queue.Len() > 0 {
		request, _ := f.queue.Get()
		f.queue.Done(request)
		keys = append(keys, request.Name)
	}
	return keys
}

// offered is what a source offers.
type offered struct {
	Revision, APIVersion string
	Watched              bool
}

func (f *runningFlux) offers(t *testing.T, stack *pulumiv1.Stack) func() (offered, error) {
	return func() (offered, error) {
		found, err := (&Set{Sources: []Source{f.Flux}}).Resolve(t.Context(), stack)
		if err != nil {
			return offered{}, err
		}
		return offered{found.Revision, found.Origin.SourceRef.APIVersion, found.Watched}, nil
	}
}

func (b *bundles) pollsWhatMayNotBeWatched(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	b.allow(t, "getter", "get")
	namespace := b.namespace(t)
	stack := b.publish(t, "v1beta1", namespace, "a", "1")
	f := b.start(t, "getter", "")
	for _, revision := range []string{"1", "2", "3"} {
		b.publish(t, "v1beta1", namespace, "a", revision)
		g.Eventually(f.offers(t, stack)).Should(Equal(offered{revision, "bundles.example.com/v1beta1", false}))
	}
}

func (b *bundles) distrustsARefusedWatch(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	b.allow(t, "watcher", "get", "list", "watch")
	namespace := b.namespace(t)
	stack := b.publish(t, "v1beta1", namespace, "a", "1")
	missing := b.publish(t, "v1beta1", namespace, "b", "1")
	missing.Spec.FluxSource.SourceRef.Name = "missing"
	f := b.start(t, "watcher", "")
	g.Eventually(f.offers(t, stack)).Should(Equal(offered{"1", "bundles.example.com/v1beta1", true}))
	_, err := f.offers(t, missing)()
	g.Expect(problemIn(g, err).Watched).To(BeTrue())
	g.Eventually(f.woken).Should(ContainElement(f.Key(stack)), "of what is there")

	b.allow(t, "watcher", "get")
	g.Eventually(func() []string { f.interrupt(); return f.woken() }).Should(ContainElements(f.Key(stack), f.Key(missing)), "who relies on the watch is woken")
	b.publish(t, "v1beta1", namespace, "a", "2")
	g.Expect(f.offers(t, stack)()).To(Equal(offered{"2", "bundles.example.com/v1beta1", false}))
	_, err = f.offers(t, missing)()
	g.Expect(problemIn(g, err).Watched).To(BeFalse())
}

func (b *bundles) readsElsewhere(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	here, elsewhere := b.namespace(t), b.namespace(t)
	near, far := b.publish(t, "v1beta1", here, "a", "1"), b.publish(t, "v1beta1", elsewhere, "a", "1")
	f := b.start(t, "", here)
	g.Eventually(f.offers(t, near)).Should(Equal(offered{"1", "bundles.example.com/v1beta1", true}))
	for _, revision := range []string{"1", "2"} {
		b.publish(t, "v1beta1", elsewhere, "a", revision)
		g.Expect(f.offers(t, far)()).To(Equal(offered{revision, "bundles.example.com/v1beta1", false}))
	}
	far.Spec.FluxSource.SourceRef.Name = "missing"
	_, err := f.offers(t, far)()
	g.Expect(problemIn(g, err)).To(And(HaveField("Reason", pulumiv1.SourceNotFoundReason), HaveField("Watched", false)))
}

func (b *bundles) refusesWhatIsInNoNamespace(t *testing.T) {
	g := NewWithT(t)
	b.serve(t, "GlobalBundle", "Cluster", "v1beta1")
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("bundles.example.com/v1beta1")
	object.SetKind("GlobalBundle")
	object.SetName("a")
	g.Eventually(func() error { return b.client.Create(t.Context(), object.DeepCopy()) }, patience).Should(Succeed())
	stack := b.publish(t, "v1beta1", b.namespace(t), "a", "1")
	stack.Spec.FluxSource.SourceRef.Kind = "GlobalBundle"
	_, err := b.start(t, "", "").offers(t, stack)()
	g.Expect(err).To(And(HaveField("Reason", pulumiv1.SpecInvalidReason), HaveField("Permanent", true), HaveField("Message", ContainSubstring("in no namespace"))))
}

func (b *bundles) readsWhatIsNotInTheCache(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	namespace := b.namespace(t)
	stack := b.publish(t, "v1beta1", namespace, "a", "1")
	f := b.start(t, "", "")
	g.Eventually(f.offers(t, stack)).Should(Equal(offered{"1", "bundles.example.com/v1beta1", true}))
	g.Eventually(f.woken).Should(ContainElement(f.Key(stack)), "of what is there")
	for _, digit := range []string{"2", "3"} {
		long := strings.Repeat(digit, 40<<10)
		b.publish(t, "v1beta1", namespace, "a", long)
		g.Eventually(f.woken).Should(ContainElement(f.Key(stack)))
		g.Expect(f.offers(t, stack)()).To(Equal(offered{long, "bundles.example.com/v1beta1", true}))
		f.woken()
	}
	many := make([]any, 400_000) // which take much memory
	for i := range many {
		many[i] = map[string]any{}
	}
	large, err := json.Marshal(map[string]any{"spec": map[string]any{"many": many}})
	g.Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "bundles.example.com", Version: "v1beta1", Kind: "Bundle"})
	object.SetNamespace(namespace)
	object.SetName("a")
	g.Expect(b.client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", large))).To(Succeed())
	b.publish(t, "v1beta1", namespace, "a", "4")
	g.Eventually(func() error { _, err := f.offers(t, stack)(); return err }).Should(And(
		HaveField("Reason", pulumiv1.SourceNotReadyReason), HaveField("Message", ContainSubstring("make it smaller"))))
}

func (b *bundles) looksTwiceAtWhatIsOld(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	namespace := b.namespace(t)
	stack := b.publish(t, "v1beta1", namespace, "a", "1")
	f := b.start(t, "", "")
	g.Eventually(f.offers(t, stack)).Should(Equal(offered{"1", "bundles.example.com/v1beta1", true}))
	f.frozen.Store(true) // the cache is behind
	b.publish(t, "v1beta1", namespace, "a", "2")
	g.Expect(f.offers(t, stack)()).To(HaveField("Revision", "1"))

	published, err := time.Parse(time.RFC3339, publishedAt)
	g.Expect(err).NotTo(HaveOccurred())
	ended := metav1.NewTime(published.Add(time.Minute))
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:2", LastResyncTime: ended}
	g.Expect(f.offers(t, stack)()).To(HaveField("Revision", "2"), "the Stack is not rolled back")
	older := metav1.NewTime(published.Add(-time.Minute))
	for status, change := range map[string]func(*pulumiv1.Stack){
		"another one waits to run": func(s *pulumiv1.Stack) {
			s.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Commit: "sha256:2"}
		},
		"another one waits to run first": func(s *pulumiv1.Stack) {
			s.Status.CurrentUpdate, s.Status.LastUpdate = &pulumiv1.CurrentStackUpdate{Commit: "sha256:2"}, nil
		},
		"it has run, and another one waits to run": func(s *pulumiv1.Stack) {
			s.Status.CurrentUpdate, s.Status.LastUpdate.LastAttemptedCommit = &pulumiv1.CurrentStackUpdate{Commit: "sha256:2"}, "sha256:1"
		},
		"there is a plan of another one": func(s *pulumiv1.Stack) {
			s.Spec.Approval, s.Status.Plan = &pulumiv1.ApprovalPolicy{}, &pulumiv1.PlanStatus{Commit: "sha256:2", State: pulumiv1.PlanApproved}
		},
	} {
		asks := stack.DeepCopy()
		asks.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:0", LastResyncTime: older}
		change(asks)
		g.Expect(f.offers(t, asks)()).To(HaveField("Revision", "2"), status)
	}
	for status, change := range map[string]func(*pulumiv1.StackStatus){
		"an earlier plan was carried out": func(s *pulumiv1.StackStatus) {
			s.LastUpdate.LastResyncTime, s.Plan = older, &pulumiv1.PlanStatus{Commit: "sha256:2", State: pulumiv1.PlanApplied}
		},
		"it has run":      func(s *pulumiv1.StackStatus) { s.LastUpdate.LastAttemptedCommit = "sha256:1" },
		"it is running":   func(s *pulumiv1.StackStatus) { s.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Commit: "sha256:1"} },
		"there is a plan": func(s *pulumiv1.StackStatus) { s.Plan = &pulumiv1.PlanStatus{Commit: "sha256:1"} },
		"it is a new one": func(s *pulumiv1.StackStatus) { s.LastUpdate.LastResyncTime.Time = published.Add(-time.Minute) },
		"nothing has run": func(s *pulumiv1.StackStatus) { s.LastUpdate = nil },
	} {
		asks := stack.DeepCopy()
		asks.Spec.Approval = &pulumiv1.ApprovalPolicy{}
		change(&asks.Status)
		g.Expect(f.offers(t, asks)()).To(HaveField("Revision", "1"), status)
	}
}

func (b *bundles) followsTheServedVersion(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	namespace := b.namespace(t)
	stack := b.publish(t, "v1beta1", namespace, "a", "1")
	f := b.start(t, "", "")
	g.Eventually(f.offers(t, stack)).Should(Equal(offered{"1", "bundles.example.com/v1beta1", true}))
	g.Eventually(f.woken).Should(ContainElement(f.Key(stack)), "of what is there")

	b.serve(t, "Bundle", "Namespaced", "v1")
	g.Eventually(f.woken).Should(ContainElement(f.Key(stack)), "who relies on the watch is woken")
	g.Eventually(f.offers(t, stack)).Should(Equal(offered{"1", "bundles.example.com/v1", true}))
	f.woken()
	b.publish(t, "v1", namespace, "a", "2")
	g.Eventually(func() (offered, error) { // the new watch may still wake it because of what is there
		g.Eventually(f.woken).Should(ContainElement(f.Key(stack)), "changes are noticed again")
		return f.offers(t, stack)()
	}).Should(Equal(offered{"2", "bundles.example.com/v1", true}))
}

func TestNamespaceLeavesRoomForSourcesOfOthersThatDoNotExist(t *testing.T) {
	g := NewWithT(t)
	watches, in := &fluxWatches{}, &fluxWatch{absent: sets.New[types.NamespacedName](), absentIn: map[string]int{}}
	note := func(namespace string, i int, absent bool) bool {
		return watches.noteAbsent(in, types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}, absent)
	}
	for i := range 2 * maxAbsent {
		note("evil", i, true)
	}
	g.Expect(in.absent.Len()).To(Equal(maxAbsent / 2))
	g.Expect(note("evil", 0, true)).To(BeTrue(), "it is noted already")
	g.Expect(note("team", 0, true)).To(BeTrue())
	for i := range 2 * maxAbsent {
		g.Expect(note("evil", i, false)).To(BeTrue())
		g.Expect(note("team", i, false)).To(BeTrue())
	}
	g.Expect(in.absent).To(BeEmpty())
	g.Expect(in.absentIn).To(BeEmpty())
}
