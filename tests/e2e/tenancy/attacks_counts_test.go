package tenancy_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// countAttacks exceed the limits on counts, which docs/security.md lists.
var countAttacks = []attack{
	{
		name: "counts-beyond-their-limits", promise: "sizes", heavy: true,
		does: "exceeds many limits on counts at once: two operations with 55,000 empty keys from each of 25 ConfigMaps, and others with one variable, value, " +
			"environment, target, level or ConfigMap too many; a Stack with one dependency and one with one expression too many; four Programs with " +
			"200,000 small objects; a pod template with 10,000 mounts in the place of the agent",
		sees: "`ConfigInvalid`, `SpecInvalid`, `InvalidCELExpression`, `ProgramInvalid`, `PodTemplateInvalid`, Stalled: each object says which limit it exceeds.",
		run:  exceedCounts,
	},
}

// Numbers of small things: manyKeys is about how many empty keys the controller accepts in an object, and the others are one more than the
// limits.
const (
	manyKeys       = 55_000
	tooManyEntries = 10_000 + 1
	tooManyObjects = 1000 + 1
	tooManyLevels  = 100 + 1
	tooManyNames   = 256 + 1
	tooManyTests   = 100 + 1
)

// items returns the results for the numbers from 0 to n-1.
func items[T any](n int, item func(i int) T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = item(i)
	}
	return all
}

func exceedCounts(a *attacker) {
	a.newProgram()
	urn := func(i int) string { return fmt.Sprint("urn:", i) }
	fromConfigMap := func(i int) autov1alpha1.ConfigItem {
		from := &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: fmt.Sprint(a.name, "-one-", i), Key: "key"}}
		return autov1alpha1.ConfigItem{Key: fmt.Sprint("c", i), ValueFrom: from}
	}
	stacks := []autov1alpha1.WorkspaceStack{
		{Name: "targets"}, {Name: "replacements"},
		{Name: "values", Config: items(tooManyEntries, func(i int) autov1alpha1.ConfigItem {
			return autov1alpha1.ConfigItem{Key: fmt.Sprint("c", i), Value: &apiextensionsv1.JSON{Raw: json.RawMessage("1")}}
		})},
		{Name: "environments", Environment: items(tooManyEntries, urn)},
		{Name: "levels", Config: []autov1alpha1.ConfigItem{{Key: "deep", Value: new(nested(tooManyLevels))}}},
		{Name: "objects", Config: items(tooManyObjects, fromConfigMap)},
	}
	workspaces := map[string]func(*autov1alpha1.WorkspaceSpec){
		"lists":   func(spec *autov1alpha1.WorkspaceSpec) { spec.Stacks = stacks },
		"some":    a.allKeysOf("some"),
		"keys":    a.allKeysOf(items(25, func(i int) string { return fmt.Sprint("many-", i) })...),
		"keys-ii": a.allKeysOf(items(25, func(i int) string { return fmt.Sprint("many-", i) })...),
	}
	names := map[string]*attacker{}
	for name, change := range workspaces {
		names[name] = a.named(name)
		names[name].newWorkspace(change)
	}
	for _, workspace := range names {
		workspace.awaitAgent(attackerName)
	}
	// A pod could not start with so many variables, but it has started.
	a.newConfigMap("some", tooManyEntries)
	for i := range 25 {
		a.newConfigMap(fmt.Sprint("many-", i), manyKeys)
	}
	for i := range tooManyObjects {
		a.newConfigMap(fmt.Sprint("one-", i), 1)
	}
	refused := map[string]*autov1alpha1.Update{}
	for _, stack := range stacks {
		refused[stack.Name] = names["lists"].newUpdateOf(stack.Name, func(spec *autov1alpha1.UpdateSpec) {
			switch stack.Name {
			case "targets":
				spec.Target = items(tooManyEntries, urn)
			case "replacements":
				spec.Replace = items(tooManyEntries, urn)
			}
		})
	}
	for _, name := range []string{"some", "keys", "keys-ii"} {
		refused[name] = names[name].newUpdate(nil)
	}
	others := a.exceedOtherCounts()
	says := map[string]string{
		"targets": "with 10001 targets, the operation has more than 10000", "replacements": "with 10001 replacements", "values": "with 10001 configuration values",
		"environments": "with 10001 imported environments", "levels": "more than 100 levels deep", "objects": "more than 1000 Secrets and ConfigMaps",
		"some": "with the 10001 keys of configmap", "keys": "with the 55000 keys of configmap", "keys-ii": "with the 55000 keys of configmap",
	}
	for name, update := range refused {
		a.expectOperationRefused(update, says[name])
	}
	others()
}

// exceedOtherCounts creates Stacks, Programs and a Workspace beyond their limits, and returns a function that waits for their conditions.
func (a *attacker) exceedOtherCounts() (expect func()) {
	a.t.Helper()
	dependencies, expressions, mounts := a.named("dependencies"), a.named("expressions"), a.named("mounts")
	dependency := func(i int) pulumiv1.DependencyReference {
		return pulumiv1.DependencyReference{Name: fmt.Sprint("none-", i)}
	}
	tooMany := dependencies.createStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) { spec.DependsOn = items(tooManyNames, dependency) })
	tooManyExpressions := expressions.createStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
		spec.DependsOn = items(tooManyTests, dependency)
		for i := range spec.DependsOn {
			spec.DependsOn[i].ReadyExpr = "true"
		}
	})
	workspace := mounts.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
		spec.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
			Containers: []corev1.Container{{Name: autov1alpha1.PulumiContainerName, VolumeMounts: items(10_000, func(i int) corev1.VolumeMount {
				return corev1.VolumeMount{Name: "a", MountPath: fmt.Sprint("/share/agent/", i)}
			})}}}}
	})
	programs := items(4, func(i int) *pulumiv1.Program {
		program := &pulumiv1.Program{ObjectMeta: a.named(fmt.Sprint("program-", i)).meta()}
		a.createWithUnknown(program, `{"later":[`+strings.Repeat(`{"":0},`, 200_000)+`0]}`)
		return program
	})
	return func() {
		a.expectState(tooMany, refusal{reasons: []string{pulumiv1.SpecInvalidReason}, says: "256 prerequisites, dependencies and Stacks in inputs", stalled: true})
		a.expectState(tooManyExpressions, refusal{reasons: []string{pulumiv1.InvalidCELExpressionReason}, says: "100 dependencies with a readyExpr", stalled: true})
		await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) {
			a.expectReason(g, workspace, autov1alpha1.PodTemplateInvalidReason)
		})
		for _, program := range programs {
			a.expectProgram(program, pulumiv1.ProgramInvalidReason)
		}
	}
}

// named returns the attacker with another name for its next objects.
func (a *attacker) named(suffix string) *attacker {
	other := *a
	other.name += "-" + suffix
	return &other
}

// allKeysOf makes the keys of ConfigMaps variables.
func (a *attacker) allKeysOf(names ...string) func(*autov1alpha1.WorkspaceSpec) {
	return func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev"}}
		for _, name := range names {
			from := &corev1.ConfigMapEnvSource{Name: a.name + "-" + name}
			spec.EnvFrom = append(spec.EnvFrom, corev1.EnvFromSource{ConfigMapRef: from})
		}
	}
}

// newConfigMap creates a ConfigMap with the key "key" and other empty keys, which are no keys of other ConfigMaps.
func (a *attacker) newConfigMap(name string, keys int) {
	a.t.Helper()
	data := map[string]string{"key": ""}
	for i := range keys - 1 {
		data[strconv.FormatInt(int64(a.created*manyKeys+i), 36)] = ""
	}
	a.created++
	a.create(&corev1.ConfigMap{ObjectMeta: a.named(name).meta(), Data: data})
}

// newUpdateOf creates an Update for a stack of the Workspace of the attack.
func (a *attacker) newUpdateOf(stack string, change func(*autov1alpha1.UpdateSpec)) *autov1alpha1.Update {
	a.t.Helper()
	update := &autov1alpha1.Update{ObjectMeta: a.named(stack).meta(), Spec: autov1alpha1.UpdateSpec{
		WorkspaceName: a.name, StackName: stack, Type: autov1alpha1.UpdateTypeUp,
	}}
	change(&update.Spec)
	a.create(update)
	return update
}

// createWithUnknown creates a Program with fields that the client does not know.
func (a *attacker) createWithUnknown(program *pulumiv1.Program, fields string) {
	a.t.Helper()
	content := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"program":%s}`, pulumiv1.GroupVersion, pulumiv1.ProgramKind, program.Name, fields)
	a.Expect(a.clientset.CoreV1().RESTClient().Post().AbsPath("apis", pulumiv1.GroupVersion.Group, pulumiv1.GroupVersion.Version, "namespaces",
		program.Namespace, "programs").SetHeader("Content-Type", "application/json").Body([]byte(content)).Do(a.ctx).Error()).To(Succeed())
	a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(program), program)).To(Succeed())
}
