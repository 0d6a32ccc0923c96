package stack

import (
	"fmt"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// This test ends at the time limit of all tests if each item is compared with each other one, which takes an hour.
func TestObjectsToEmptyAreFoundInLongLists(t *testing.T) {
	g := NewWithT(t)
	const many = 150_000
	wanted, present := make([]any, many), make([]any, many)
	for i := range many {
		name := strconv.Itoa(i)
		wanted[i] = map[string]any{"name": name, "resources": map[string]any{}}
		present[many-1-i] = map[string]any{"name": name, "resources": map[string]any{}}
	}
	present[0].(map[string]any)["resources"] = map[string]any{"limits": "x"}
	unnamed := make([]any, many)
	paths := objectsToEmpty(
		map[string]any{"containers": wanted, "others": unnamed}, map[string]any{"containers": present, "others": unnamed}, "/spec")
	g.Expect(paths).To(Equal([]string{"/spec/containers/0/resources"}))
}

func TestOneMoreThanAStackMayHaveIsNotRead(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	stack.Namespace = "team"
	for i := range 200 {
		stack.Spec.Prerequisites = append(stack.Spec.Prerequisites, pulumiv1.PrerequisiteRef{Name: fmt.Sprint("p", i)})
		stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: fmt.Sprint("d", i)})
	}
	names := namedDependencies(stack)
	g.Expect(names).To(HaveLen(maxDependencies))
	g.Expect(names[maxDependencies-1].name).To(Equal(types.NamespacedName{Namespace: "team", Name: "d55"}))
	r := &Reconciler{}
	g.Expect(r.checkDependencies(stack, names).message).To(Equal("a Stack may have 256 prerequisites, dependencies and Stacks in inputs, and this one has 400"))
	stack.Spec.DependsOn = stack.Spec.DependsOn[:56]
	g.Expect(r.checkDependencies(stack, namedDependencies(stack))).To(BeNil())

	secret := &corev1.Secret{Data: map[string][]byte{}}
	for i := range maxShownOutputs + 1 {
		secret.Data[strconv.FormatInt(int64(i), 36)] = []byte("1")
	}
	g.Expect(shownOutputs(secret)).To(HaveLen(maxShownOutputs))
}
