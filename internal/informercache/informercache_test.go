package informercache

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

var transform = Transform(func(object any) (any, error) { return object, nil })

func transformed[T client.Object](g *WithT, object T) T {
	kept, err := transform(object)
	g.Expect(err).NotTo(HaveOccurred())
	return kept.(T)
}

func sizeInJSON(g *WithT, object any) int {
	encoded, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	return len(encoded)
}

func largeText() string { return strings.Repeat("x", 1<<20) }

func namedStack() *pulumiv1.Stack {
	return &pulumiv1.Stack{
		Name: "app", Namespace: "team", UID: "1", ResourceVersion: "7", Generation: 3,
		Finalizers: []string{pulumiv1.Finalizer}, Labels: map[string]string{"shard": "a"},
		Spec: pulumiv1.StackSpec{
			Stack:      "dev",
			FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: "GitRepository", Name: "app"}},
		},
		Status: pulumiv1.StackStatus{ObservedGeneration: 3},
	}
}

func TestSmallObjectIsKeptAsItIs(t *testing.T) {
	g := NewWithT(t)
	stack := namedStack()
	g.Expect(transformed(g, stack)).To(BeIdenticalTo(stack))
	g.Expect(IsShortened(stack)).To(BeFalse())
}

func TestSmallFieldsOfALargeObjectAreKept(t *testing.T) {
	for name, enlarge := range map[string]func(*pulumiv1.Stack){
		"one value": func(stack *pulumiv1.Stack) {
			stack.Spec.Config = map[string]apiextensionsv1.JSON{"policy": {Raw: []byte(`"` + largeText() + `"`)}}
		},
		"many values": func(stack *pulumiv1.Stack) {
			for i := range 100_000 {
				stack.Spec.Targets = append(stack.Spec.Targets, fmt.Sprint("urn:", i))
			}
		},
		"metadata": func(stack *pulumiv1.Stack) {
			stack.Annotations = map[string]string{"note": largeText()}
			for i := range 10_000 {
				stack.Labels[fmt.Sprintf("label-%d", i)] = "value"
			}
		},
		"status": func(stack *pulumiv1.Stack) {
			for i := range 1000 {
				stack.Status.Conditions = append(stack.Status.Conditions, metav1.Condition{Type: fmt.Sprint(i), Message: strings.Repeat("x", 1000)})
			}
		},
		"everything": func(stack *pulumiv1.Stack) {
			stack.Spec.Secrets = map[string]string{"a": largeText()}
			stack.Annotations = map[string]string{"note": largeText()}
			stack.Status.Conditions = []metav1.Condition{{Type: "Ready", Message: largeText()}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := namedStack()
			enlarge(stack)
			kept := transformed(g, stack)
			g.Expect(IsShortened(kept)).To(BeTrue())
			g.Expect(sizeInJSON(g, kept)).To(BeNumerically("<=", MaxSize))
			want := namedStack()
			g.Expect(kept.Spec.FluxSource).To(Equal(want.Spec.FluxSource))
			g.Expect(kept.Spec.Stack).To(Equal(want.Spec.Stack))
			g.Expect(kept.Finalizers).To(Equal(want.Finalizers))
			g.Expect(kept.Status.ObservedGeneration).To(Equal(want.Status.ObservedGeneration))
			g.Expect([]any{kept.Name, kept.Namespace, kept.UID, kept.ResourceVersion, kept.Generation}).
				To(Equal([]any{want.Name, want.Namespace, want.UID, want.ResourceVersion, want.Generation}))
			g.Expect(transformed(g, kept)).To(BeIdenticalTo(kept), "it may be called again with what it left")
		})
	}
}

func TestNoNameBecomesAnotherOne(t *testing.T) {
	g := NewWithT(t)
	stack := namedStack()
	stack.Spec.FluxSource.SourceRef.Name = largeText()
	g.Expect(transformed(g, stack).Spec.FluxSource.SourceRef.Name).To(BeEmpty())
}

func TestObjectsOfEveryShapeAreShortened(t *testing.T) {
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		pod := &autov1alpha1.EmbeddedPodSpec{}
		for i := range 1 + random.IntN(50) {
			pod.Containers = append(pod.Containers, corev1.Container{
				Name: fmt.Sprint(i), Image: strings.Repeat("i", random.IntN(2000)),
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
				Env:       []corev1.EnvVar{{Name: "A", Value: strings.Repeat("v", random.IntN(100_000))}},
			})
		}
		workspace := &autov1alpha1.Workspace{Name: "w", CreationTimestamp: metav1.Now()}
		workspace.Spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: pod}
		g.Expect(sizeInJSON(g, transformed(g, workspace))).To(BeNumerically("<=", MaxSize))
	}
}

// tolerating returns a Stack with the given number of items, each of which is three bytes of JSON.
func tolerating(items int) *pulumiv1.Stack {
	stack := namedStack()
	pod := &autov1alpha1.EmbeddedPodSpec{Tolerations: make([]corev1.Toleration, items)}
	stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
		PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: pod}}}
	return stack
}

func TestManySmallPartsCountAsTheMemoryThatTheyTake(t *testing.T) {
	g := NewWithT(t)
	stack := tolerating(20_000)
	g.Expect(sizeInJSON(g, stack)).To(BeNumerically("<", MaxSize), "is small on the wire")
	kept := transformed(g, stack)
	g.Expect(IsShortened(kept)).To(BeTrue())
	g.Expect(memoryOf(kept, MaxMemory)).To(BeNumerically("<=", MaxSize))
	g.Expect(kept.Spec.FluxSource).To(Equal(stack.Spec.FluxSource))
}

func TestObjectThatTakesTooMuchMemoryIsKeptByItsNameOnly(t *testing.T) {
	for name, stack := range map[string]*pulumiv1.Stack{
		"items":  tolerating(460_000),
		"values": {Spec: pulumiv1.StackSpec{Config: map[string]apiextensionsv1.JSON{"a": {Raw: []byte("[" + strings.Repeat("{},", 400_000) + "{}]")}}}},
		"labels": {ObjectMeta: metav1.ObjectMeta{Labels: manyLabels(100_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			deleted := metav1.Now()
			stack.Name, stack.Generation, stack.DeletionTimestamp = "app", 3, &deleted
			stack.OwnerReferences = []metav1.OwnerReference{{Kind: "Stack", Name: "parent", UID: "2"}}
			kept := transformed(g, stack)
			g.Expect(kept.OwnerReferences).To(Equal(stack.OwnerReferences))
			g.Expect(kept.DeletionTimestamp).To(Equal(&deleted))
			if name == "items" {
				g.Expect(kept.Labels).To(Equal(stack.Labels), "by which the shards are told apart")
			}
			g.Expect(kept.Annotations).To(HaveKeyWithValue(ShortenedAnnotation, tooLarge))
			g.Expect(memoryOf(kept, MaxMemory)).To(BeNumerically("<", 8<<10))
			g.Expect(refuse(kept)).To(MatchError(ContainSubstring("more than 4 MiB")))
		})
	}
}

func TestMapTakesRoomForEntriesThatItDoesNotHave(t *testing.T) {
	g := NewWithT(t)
	for _, entries := range []int{1, 8, 9, 14, 15, 1000} {
		value := map[string]string{}
		for i := range entries {
			value[fmt.Sprint(i)] = ""
		}
		measured := memoryOf(value, MaxMemory)
		const clones = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range clones {
			cloned = maps.Clone(value)
		}
		runtime.ReadMemStats(&after)
		taken := (after.TotalAlloc - before.TotalAlloc) / clones
		g.Expect(measured).To(And(BeNumerically(">", taken*2/3), BeNumerically("<", taken*2)), "%d entries: %d of %d", entries, measured, taken)
	}
}

// cloned is a package variable so that the compiler does not optimize the copies away.
var cloned map[string]string

// A time points to the time zone of the process. memoryOf must not follow the pointer: another goroutine may be loading the zone for the
// first time.
func TestTimeTakesNoMoreThanItself(t *testing.T) {
	g := NewWithT(t)
	zone := time.FixedZone(largeText(), 3600)
	g.Expect(memoryOf(metav1.Time{Time: time.Now().In(zone)}, MaxMemory)).To(BeZero())
	when := metav1.NewTime(time.Now().In(zone))
	g.Expect(memoryOf(&when, MaxMemory)).To(BeEquivalentTo(reflect.TypeFor[time.Time]().Size()))
}

func manyLabels(count int) map[string]string {
	labels := make(map[string]string, count)
	for i := range count {
		labels[fmt.Sprint(i)] = ""
	}
	return labels
}
