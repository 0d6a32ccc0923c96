package informercache

import (
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

const patience = time.Minute

// numbersInObjects is the value of a configuration key: 100,000 numbers in 900 objects, one in the other.
func numbersInObjects() apiextensionsv1.JSON {
	return apiextensionsv1.JSON{Raw: []byte(strings.Repeat(`{"a":`, 900) + "[" + strings.Repeat("0,", 100_000) + "0]" + strings.Repeat("}", 900))}
}

func TestCacheOfARealAPIServerHasTheSmallFieldsOfLargeObjects(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{Log: os.Stderr, CRDs: []string{controlplane.ProductCRDs()}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cluster.Stop()).To(Succeed()) })
	scheme := clientgoscheme.Scheme
	g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
	g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
	live, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	const namespace = "default"
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }

	stack := &pulumiv1.Stack{ObjectMeta: meta("large"), Spec: pulumiv1.StackSpec{Stack: "dev", Suspend: true}}
	stack.Spec.Config = map[string]apiextensionsv1.JSON{"a": numbersInObjects()}
	g.Expect(live.Create(t.Context(), stack)).To(Succeed())
	small := &pulumiv1.Stack{ObjectMeta: meta("small"), Spec: pulumiv1.StackSpec{Stack: "dev", Config: map[string]apiextensionsv1.JSON{"a": {Raw: []byte(`"b"`)}}}}
	small.Annotations = map[string]string{"informercache.pulumi.com/shortened": tooLarge}
	g.Expect(live.Create(t.Context(), small)).To(Succeed())
	small.Annotations[ShortenedAnnotation] = shortened
	g.Expect(live.Update(t.Context(), small)).To(MatchError(ContainSubstring("metadata.annotations")), "nobody can write the mark")
	secret := &corev1.Secret{ObjectMeta: meta("large"), StringData: map[string]string{"a": "b"}}
	secret.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10), "b": "c"}
	g.Expect(live.Create(t.Context(), secret)).To(Succeed())

	objects, err := NewCache(cluster.Config(), cache.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	done := make(chan error, 1)
	go func() { done <- objects.Start(t.Context()) }()
	t.Cleanup(func() { g.Eventually(done).Should(Receive(BeNil())) })
	g.Expect(objects.WaitForCacheSync(t.Context())).To(BeTrue())
	get := func(name string, object client.Object) client.Object {
		g.Expect(objects.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)).To(Succeed())
		return object
	}
	kept := get("large", &pulumiv1.Stack{}).(*pulumiv1.Stack)
	g.Expect([]any{kept.UID, kept.ResourceVersion, kept.Generation, kept.Spec.Stack, kept.Spec.Suspend}).
		To(Equal([]any{stack.UID, stack.ResourceVersion, stack.Generation, "dev", true}))
	g.Expect(IsShortened(kept)).To(BeTrue())
	g.Expect(IsTooLarge(kept)).To(BeFalse())
	whole := get("small", &pulumiv1.Stack{}).(*pulumiv1.Stack)
	g.Expect(whole.Spec.Config).To(HaveLen(1))
	g.Expect(IsShortened(whole)).To(BeFalse())

	// Sources are read as unstructured objects, Secrets as metadata, and pods would be read as protobuf.
	generic := &unstructured.Unstructured{}
	generic.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))
	g.Expect(get("large", generic).(*unstructured.Unstructured).Object["spec"]).To(HaveKeyWithValue("stack", "dev"))
	g.Expect(IsShortened(generic)).To(BeTrue())
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	g.Expect(get("large", metadata).GetAnnotations()).To(Equal(map[string]string{"b": "c", ShortenedAnnotation: shortened}))
	typed := get("large", &corev1.Secret{}).(*corev1.Secret)
	g.Expect(typed.Annotations).To(HaveLen(2))
	g.Expect(typed.Data).To(HaveKey("a"))

	// An edit makes it whole again, or too large.
	change := func(change func()) {
		g.Expect(live.Get(t.Context(), client.ObjectKeyFromObject(stack), stack)).To(Succeed())
		change()
		g.Expect(live.Update(t.Context(), stack)).To(Succeed())
		g.Eventually(func() string { return get("large", &pulumiv1.Stack{}).GetResourceVersion() }).Should(Equal(stack.ResourceVersion))
	}
	change(func() { stack.Spec.Config = nil })
	g.Expect(IsShortened(get("large", &pulumiv1.Stack{}))).To(BeFalse())
	change(func() {
		stack.Spec.Config = map[string]apiextensionsv1.JSON{"a": {Raw: []byte("[" + strings.Repeat("0,", 300_000) + "0]")}}
	})
	g.Expect(IsTooLarge(get("large", &pulumiv1.Stack{}))).To(BeTrue())

	// An API server without streaming lists answers with all objects at once.
	http, err := rest.HTTPClientFor(cluster.Config())
	g.Expect(err).NotTo(HaveOccurred())
	http.Transport = NewTransport(http.Transport)
	lists, err := client.New(cluster.Config(), client.Options{Scheme: scheme, HTTPClient: http})
	g.Expect(err).NotTo(HaveOccurred())
	list := &pulumiv1.StackList{}
	g.Expect(lists.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(2))
	for i := range list.Items {
		g.Expect(IsTooLarge(&list.Items[i])).To(Equal(list.Items[i].Name == "large"))
	}
}
