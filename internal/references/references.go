// Package references knows which Secrets and ConfigMaps a Stack uses, and watches them without ever holding what is in them.
package references

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Kind is the kind of a referenced object.
type Kind string

// The kinds of objects that values can come from.
const (
	Secret    Kind = "Secret"
	ConfigMap Kind = "ConfigMap"
)

// Key names a referenced object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String returns the key as it stands in indexes: kind, namespace and name.
func (k Key) String() string { return string(k.Kind) + "/" + k.Namespace + "/" + k.Name }

// OfWorkspace returns the objects whose values an operation on the stack reads in the Workspace, sorted and without duplicates: those
// of env, of envFrom and of the configuration of that stack. Volumes of the pod do not count: the kubelet mounts them, and refreshes
// them by itself. Credentials of git do not count either: they fetch the program and are no input of it.
func OfWorkspace(workspace *autov1alpha1.Workspace, stackName string) []Key {
	c := collector{namespace: workspace.Namespace}
	c.addSpec(&workspace.Spec, func(stack *autov1alpha1.WorkspaceStack) bool { return stack.Name == stackName })
	return c.sorted()
}

// OfStack returns the objects that the Stack may use: at least those of the Workspace that it asks for, and at most also some that its
// workspaceTemplate replaces. It costs no more than a walk over the spec, and does not mind a spec that cannot be used.
func OfStack(stack *pulumiv1.Stack) []Key {
	c := collector{namespace: stack.Namespace}
	c.add(Secret, stack.Spec.AccessTokenSecret)
	for _, name := range stack.Spec.Envs {
		c.add(ConfigMap, name)
	}
	for _, name := range stack.Spec.SecretEnvs {
		c.add(Secret, name)
	}
	for _, refs := range []map[string]pulumiv1.ResourceRef{stack.Spec.EnvRefs, stack.Spec.SecretRefs} {
		for _, ref := range refs {
			c.addRef(ref)
		}
	}
	for _, ref := range stack.Spec.ConfigRef {
		c.add(ConfigMap, ref.Name)
	}
	if template := stack.Spec.WorkspaceTemplate; template != nil && template.Spec != nil {
		c.addSpec(template.Spec, func(*autov1alpha1.WorkspaceStack) bool { return true })
	}
	return c.sorted()
}

// collector gathers the keys of one namespace: nothing can refer to another one.
type collector struct {
	namespace string
	keys      []Key
}

func (c *collector) sorted() []Key {
	slices.SortFunc(c.keys, func(a, b Key) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return slices.Compact(c.keys)
}

func (c *collector) add(kind Kind, name string) {
	if name != "" {
		c.keys = append(c.keys, Key{Kind: kind, Namespace: c.namespace, Name: name})
	}
}

func (c *collector) addRef(ref pulumiv1.ResourceRef) {
	if ref.Type != pulumiv1.ResourceRefSecret || ref.SecretRef == nil {
		return
	}
	if namespace := ref.SecretRef.Namespace; namespace == "" || namespace == c.namespace {
		c.add(Secret, ref.SecretRef.Name)
	}
}

func (c *collector) addSpec(spec *autov1alpha1.WorkspaceSpec, used func(*autov1alpha1.WorkspaceStack) bool) {
	for i := range spec.EnvFrom {
		c.addEnvFrom(&spec.EnvFrom[i])
	}
	for i := range spec.Env {
		c.addEnv(spec.Env[i].ValueFrom)
	}
	for i := range spec.Stacks {
		if used(&spec.Stacks[i]) {
			c.addConfig(spec.Stacks[i].Config)
		}
	}
}

func (c *collector) addEnvFrom(source *corev1.EnvFromSource) {
	if source.SecretRef != nil {
		c.add(Secret, source.SecretRef.Name)
	}
	if source.ConfigMapRef != nil {
		c.add(ConfigMap, source.ConfigMapRef.Name)
	}
}

func (c *collector) addEnv(from *corev1.EnvVarSource) {
	switch {
	case from == nil:
	case from.SecretKeyRef != nil:
		c.add(Secret, from.SecretKeyRef.Name)
	case from.ConfigMapKeyRef != nil:
		c.add(ConfigMap, from.ConfigMapKeyRef.Name)
	}
}

func (c *collector) addConfig(items []autov1alpha1.ConfigItem) {
	for i := range items {
		switch from := items[i].ValueFrom; {
		case from == nil:
		case from.SecretKeyRef != nil:
			c.add(Secret, from.SecretKeyRef.Name)
		case from.ConfigMapKeyRef != nil:
			c.add(ConfigMap, from.ConfigMapKeyRef.Name)
		}
	}
}
