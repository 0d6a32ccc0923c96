package tenancy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// maxObject is about the size of the largest object that the API server takes.
const maxObject = 1 << 20

// sizeAttacks are as large as the API server lets them be.
var sizeAttacks = []attack{
	{
		name: "variables-from-one-secret", promise: "sizes",
		does: "refers to a value of 100 KiB from a thousand environment variables",
		sees: "`ConfigInvalid`: the values of an operation have a total limit.",
		run: func(a *attacker) {
			a.newProgram()
			update := a.newOperation(func(spec *autov1alpha1.WorkspaceSpec) {
				spec.Env = append(spec.Env, corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: a.name}, Key: "key",
				}}})
				for i := range 1000 {
					spec.Env = append(spec.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "$(V)"})
				}
			})
			a.awaitAgent(attackerName)
			a.create(&corev1.Secret{ObjectMeta: a.meta(), Data: map[string][]byte{"key": []byte(strings.Repeat("x", 100<<10))}})
			a.expectOperationRefused(update, "more than 8 MiB")
		},
	},
	{
		name: "one-secret-many-times", promise: "sizes",
		does: "uses a Secret of 1 MiB a thousand times as a configuration value",
		sees: "`ConfigInvalid`: the values of an operation have a total limit.",
		run: func(a *attacker) {
			a.newProgram()
			a.create(&corev1.Secret{ObjectMeta: a.meta(), Data: map[string][]byte{"key": []byte(strings.Repeat("x", maxObject-200))}})
			a.expectOperationRefused(a.newOperation(func(spec *autov1alpha1.WorkspaceSpec) {
				for i := range 1000 {
					spec.Stacks[0].Config = append(spec.Stacks[0].Config, autov1alpha1.ConfigItem{Key: fmt.Sprint("c", i),
						ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: a.name, Key: "key"}}})
				}
			}), "more than 8 MiB")
		},
	},
	{
		name: "annotations-at-their-limit", promise: "sizes", in: crowdName,
		does: "creates 25 Stacks, Programs and Services each, with 250 KiB of annotations and the controller's labels",
		sees: "Nothing. The controller does not keep fields that it does not read.",
		run: func(a *attacker) {
			large := map[string]string{"example.com/large": strings.Repeat("x", 250<<10)}
			for i := range 25 {
				meta := a.meta()
				meta.Name += fmt.Sprint("-", i)
				meta.Annotations, meta.Labels = large, map[string]string{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace}
				stack := a.newStack(fromProgram("none"))
				stack.ObjectMeta = meta
				for _, object := range []client.Object{
					stack, &pulumiv1.Program{ObjectMeta: meta}, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}},
				} {
					object.SetResourceVersion("")
					a.create(object)
				}
			}
		},
	},
	{
		name: "program-at-its-limit", promise: "sizes", in: crowdName,
		does: "writes a Program of 1 MiB, and a Program that is nested a hundred levels deep",
		sees: "Each is rendered or rejected in a short time.",
		run: func(a *attacker) {
			large := &pulumiv1.Program{ObjectMeta: a.meta()}
			large.Program.Outputs = jsonValues(map[string]any{"x": strings.Repeat("x", maxObject-10<<10)})
			a.create(large)
			deep := &pulumiv1.Program{ObjectMeta: a.meta()}
			deep.Name += "-deep"
			deep.Program.Outputs = map[string]apiextensionsv1.JSON{"x": nested(100)}
			a.create(deep)
			for _, program := range []*pulumiv1.Program{large, deep} {
				await(a, program, func(g Gomega, program *pulumiv1.Program) { g.Expect(program.Status.Conditions).NotTo(BeEmpty()) })
			}
		},
	},
	{
		name: "configuration-at-its-limit", promise: "sizes", in: crowdName,
		does: "writes 1 MiB of configuration, nested a hundred levels deep",
		sees: "The Stack runs, or reaches the limits of its own pod.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.createStack(fromProgram("none"), func(spec *pulumiv1.StackSpec) {
				spec.Config = jsonValues(map[string]any{"large": strings.Repeat("x", maxObject-20<<10)})
				spec.Config["deep"] = nested(100)
			})
			await(a, stack, func(g Gomega, stack *pulumiv1.Stack) { g.Expect(stack.Status.Conditions).NotTo(BeEmpty()) })
		},
	},
	{
		name: "object-beyond-the-limit", promise: "sizes",
		does: "writes a Stack that is nested ten thousand levels deep",
		sees: "The API server rejects it.",
		run: func(a *attacker) {
			err := a.client.Create(a.ctx, a.newStack(func(spec *pulumiv1.StackSpec) {
				spec.Config = map[string]apiextensionsv1.JSON{"deep": nested(10_001)}
			}))
			var refused apierrors.APIStatus
			a.Expect(errors.As(err, &refused) || err != nil).To(BeTrue())
		},
	},
	{
		name: "patterns-at-their-limit", promise: "sizes",
		does: "writes 256 patterns in `sourcePaths`, each with 200 repetitions of `**/*`",
		sees: "The Stack waits for its source. Patterns are matched in the background, with a limit on the effort.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.createStack(fromGit("http://"+webHost+"/page/x.git"), func(spec *pulumiv1.StackSpec) {
				for i := range 256 {
					spec.SourcePaths = append(spec.SourcePaths, strings.Repeat("**/*", 200)+fmt.Sprint(i))
				}
			})
			await(a, stack, func(g Gomega, stack *pulumiv1.Stack) { g.Expect(stack.Status.Conditions).NotTo(BeEmpty()) })
		},
	},
	{
		name: "dependencies-by-the-thousand", promise: "sizes", in: crowdName,
		does: "makes twenty Stacks depend on a thousand others each, in a cycle",
		sees: "`DependencyCycle` or `DependencyNotReady`, with a short message",
		run: func(a *attacker) {
			a.newProgram()
			var stacks []*pulumiv1.Stack
			for i := range 20 {
				stack := a.newStack(fromProgram(a.name))
				stack.Name += fmt.Sprint("-", i)
				for j := range 1000 {
					stack.Spec.DependsOn = append(stack.Spec.DependsOn, meta.DependencyReference{Name: fmt.Sprintf("%s-%d", a.name, (i+j+1)%1000)})
				}
				a.create(stack)
				stacks = append(stacks, stack)
			}
			// The namespace has a thousand more, and each gets its turn.
			for _, stack := range stacks {
				a.expectState(stack, refusal{reasons: []string{pulumiv1.DependencyCycleReason, pulumiv1.DependencyNotReadyReason}})
			}
		},
	},
	{
		name: "events-without-an-end", promise: "sizes",
		does: "creates two hundred Events of 100 KiB for the StatefulSet of a workspace that does not become ready",
		sees: "The condition quotes the newest event, shortened to 1 KiB.",
		run: func(a *attacker) {
			workspace := a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) { spec.ServiceAccountName = "none" })
			await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) {
				g.Expect(workspace.Status.Conditions).NotTo(BeEmpty())
			})
			set, err := a.clientset.AppsV1().StatefulSets(attackerName).Get(a.ctx, a.name+"-workspace", metav1.GetOptions{})
			a.Expect(err).NotTo(HaveOccurred())
			for i := range 200 {
				a.create(&corev1.Event{
					ObjectMeta:     inNamespace(attackerName, fmt.Sprint(a.name, "-", i)),
					InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: attackerName, Name: set.Name, UID: set.UID},
					Type:           corev1.EventTypeWarning, Reason: "FailedCreate", Message: strings.Repeat("x", 100<<10), LastTimestamp: metav1.Now(),
				})
			}
			await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) { expectBounded(g, workspace.Status) })
		},
	},
}

// nested is a list in a list, and so on.
func nested(levels int) apiextensionsv1.JSON {
	return apiextensionsv1.JSON{Raw: json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))}
}

// newOperation creates a Workspace with a stack, and an Update for it.
func (a *attacker) newOperation(change func(*autov1alpha1.WorkspaceSpec)) *autov1alpha1.Update {
	a.t.Helper()
	a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev"}}
		change(spec)
	})
	return a.newUpdate(nil)
}

// expectOperationRefused waits until the Update says that its values cannot be used.
func (a *attacker) expectOperationRefused(update *autov1alpha1.Update, says string) {
	a.t.Helper()
	await(a, update, func(g Gomega, update *autov1alpha1.Update) {
		g.Expect(update.Status.Message).To(ContainSubstring(says), "%+v", update.Status)
		g.Expect(update.HasFailed()).To(BeTrue())
	})
}
