package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/provider/install"
)

// inReverse is a Stack that is destroyed after those that depend on it.
func inReverse(s *pulumiv1.Stack) {
	s.Spec.DestroyOnFinalize, s.Spec.DestroyAfterDependents = true, true
}

// needs makes the Stack depend on another one, in another namespace.
func needs(name string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Spec.DependsOn = []meta.DependencyReference{{Name: name}} }
}

// layer adds a Stack with the name to the namespace, and waits until it is Ready. All of them share the source, which is named like the
// namespace.
func layer(t *testing.T, g *WithT, namespace, name string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	t.Helper()
	stack := artifactStack(namespace)
	stack.Name, stack.Spec.Stack = name, name
	for _, edit := range changes {
		edit(stack)
	}
	g.Expect(system.Client.Create(t.Context(), stack)).To(Succeed())
	return stack
}

// awaitLayer waits until the Stack in the namespace is as asked.
func awaitLayer(t *testing.T, g *WithT, key types.NamespacedName, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	t.Helper()
	stack := &pulumiv1.Stack{}
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), key, stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v", stack.Status.Conditions)
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	lint(t.Context(), g, stack)
	return stack
}

// awaitLayersGone waits until the namespace has no Stack any more but those.
func awaitLayersGone(t *testing.T, g *WithT, namespace string, but ...string) {
	t.Helper()
	g.Eventually(func(g Gomega) {
		var list pulumiv1.StackList
		g.Expect(system.Client.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
		names := []string{}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		g.Expect(names).To(ConsistOf(but))
	}).WithTimeout(2 * patience).WithPolling(pollInterval).Should(Succeed())
}

// destroys returns the names of the Stacks of the namespace in the order in which their destroys began.
func destroys(g *WithT, namespace string, names ...string) []string {
	var order []string
	for _, call := range pulumi.calls(g) {
		for _, name := range names {
			if strings.HasPrefix(call, directoryOfLayer(namespace, name)) && strings.Contains(call, " destroy ") {
				order = append(order, name)
			}
		}
	}
	return order
}

// directoryOfLayer is where the process runtime keeps the workspace of the Stack.
func directoryOfLayer(namespace, name string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + name))
	return filepath.Join(filepath.Dir(directoryOf(name)), hex.EncodeToString(sum[:])[:12])
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-layers"
	dir, manifests := t.TempDir(), t.TempDir()
	journal := filepath.Join(dir, "journal")
	startInNamespace(t, g, name, &sourcev1.ExternalArtifact{ObjectMeta: objectMeta(name, name)})
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	// The names sort in the order in which the Stacks must not go.
	layers := []string{"a-network", "b-database", "c-web"}
	for i, layered := range layers {
		changes := []func(*pulumiv1.Stack){inReverse}
		if i > 0 {
			changes = append(changes, needs(layers[i-1]))
		}
		stack := layer(t, g, name, layered, changes...)
		awaitLayer(t, g, client.ObjectKeyFromObject(stack), ready(artifact.Digest))
		g.Expect(install.Install(t.Context(), filepath.Join(directoryOfLayer(name, layered), "state", "home", ".pulumi"))).To(Succeed())
		content, err := yaml.Marshal(map[string]any{
			"apiVersion": pulumiv1.GroupVersion.String(), "kind": pulumiv1.StackKind, "metadata": map[string]string{"namespace": name, "name": layered},
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(manifests, layered+".yaml"), content, 0o600)).To(Succeed())
	}
	artifact = artifacts.put("v2", packed(yamlProgram(name, "resources:", "  thing:", "    type: test:index:Sleep",
		fmt.Sprintf("    properties: {seconds: 0, deleteSeconds: 1, journal: %s}", journal), "    options: {version: 0.1.0}")))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	for _, layered := range layers {
		awaitLayer(t, g, types.NamespacedName{Namespace: name, Name: layered}, ready(artifact.Digest))
	}

	_, err := system.ControlPlane.Kubectl(t.Context(), "delete", "--filename="+manifests, "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	awaitLayer(t, g, types.NamespacedName{Namespace: name, Name: layers[0]}, func(s *pulumiv1.Stack) bool {
		return says(pulumiv1.DependentsExistReason)(s) && strings.Contains(readyMessage(s), name+"/b-database (is being deleted)")
	})
	awaitLayersGone(t, g, name)
	reversed := slices.Clone(layers)
	slices.Reverse(reversed)
	g.Expect(destroys(g, name, layers...)).To(Equal(reversed))
	content, err := os.ReadFile(journal)
	g.Expect(err).NotTo(HaveOccurred())
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	g.Expect(lines[len(lines)-6:]).To(Equal([]string{"delete start", "delete end", "delete start", "delete end", "delete start", "delete end"}),
		"each one ended before the next one began")
}

func TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-needed"
	base, _ := deployed(t, g, name, inReverse)
	for i := range 7 {
		layer(t, g, name, fmt.Sprint("user-", i), needs(name), func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	}
	g.Expect(system.Client.Delete(t.Context(), base)).To(Succeed())
	waiting := await(t.Context(), g, name, says(pulumiv1.DependentsExistReason))
	g.Expect(readyMessage(waiting)).To(And(ContainSubstring("user-0, "+name+"/user-1"), ContainSubstring("user-4, 2 more;"), ContainSubstring("destroyAfterDependents to false")))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1), "nothing is destroyed")

	// One after the other they go, or do not depend on it any more.
	for i := range 6 {
		g.Expect(system.Client.Delete(t.Context(), &pulumiv1.Stack{ObjectMeta: objectMeta(name, fmt.Sprint("user-", i))})).To(Succeed())
	}
	awaitLayersGone(t, g, name, name, "user-6")
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyOf(name), waiting)).To(Succeed())
		g.Expect(readyMessage(waiting)).To(ContainSubstring("any more: " + name + "/user-6;"))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	last := &pulumiv1.Stack{ObjectMeta: objectMeta(name, "user-6")}
	g.Expect(system.Client.Patch(t.Context(), last, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"dependsOn":null}}`)))).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}

func TestNobodyWaitsForDependentsInACycleOrWithoutAReason(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "deleted-cycle"
	deployed(t, g, name, inReverse)
	layer(t, g, name, "other", inReverse, needs(name), func(s *pulumiv1.Stack) { s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: name}} })
	awaitLayer(t, g, types.NamespacedName{Namespace: name, Name: "other"}, ready(""))
	change(t.Context(), g, name, needs("other"))
	await(t.Context(), g, name, notReady(pulumiv1.DependencyCycleReason))
	for _, each := range []string{name, "other"} {
		g.Expect(system.Client.Delete(t.Context(), &pulumiv1.Stack{ObjectMeta: objectMeta(name, each)})).To(Succeed())
	}
	awaitLayersGone(t, g, name)
	g.Expect(destroys(g, name, name, "other")).To(ConsistOf(name, "other"))

	for left, edit := range map[string]func(*pulumiv1.Stack){
		"deleted-needed-orphan": orphan,
		"deleted-needed-kept":   func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = false },
		"deleted-needed-option": func(s *pulumiv1.Stack) { s.Spec.DestroyAfterDependents = false },
	} {
		base, _ := deployed(t, g, left, inReverse)
		layer(t, g, left, "user", needs(left), func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
		g.Expect(system.Client.Delete(t.Context(), base)).To(Succeed())
		await(t.Context(), g, left, says(pulumiv1.DependentsExistReason))
		change(t.Context(), g, left, edit)
		awaitGone(t.Context(), g, left)
		g.Expect(resources(g, left) == 0).To(Equal(left == "deleted-needed-option"))
	}
}

// TestDependentsOfAnotherShardAreWaitedFor runs alone: it restarts the controller.
func TestDependentsOfAnotherShardAreWaitedFor(t *testing.T) {
	g := NewWithT(t)
	const name = "deleted-sharded"
	base, _ := deployed(t, g, name, inReverse, func(s *pulumiv1.Stack) { s.Labels = map[string]string{"shard": "one"} })
	stopController(t, g)
	g.Expect(system.StartController(t.Context(), "--watch-label-selector=shard=one")).To(Succeed())
	defer func() {
		stopController(t, g)
		g.Expect(system.StartController(t.Context())).To(Succeed())
	}()
	user := layer(t, g, name, "user", needs(name))
	g.Expect(system.Client.Delete(t.Context(), base)).To(Succeed())
	waiting := await(t.Context(), g, name, says(pulumiv1.DependentsExistReason))
	g.Expect(readyMessage(waiting)).To(ContainSubstring(name + "/user;"))
	g.Expect(system.Client.Delete(t.Context(), user)).To(Succeed())
	awaitGone(t.Context(), g, name)
	g.Expect(resources(g, name)).To(BeZero())
}
