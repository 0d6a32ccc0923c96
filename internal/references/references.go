// Package references finds the Secrets and ConfigMaps that a Stack uses, and watches them without ever reading their contents.
package references

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

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

// Scope says which namespaces an object may refer to.
type Scope struct {
	// OtherNamespaces is true when references to other namespaces are allowed.
	OtherNamespaces bool
}

// Reaches reports whether an object in a namespace may refer to one in another.
func (s Scope) Reaches(from, to string) bool { return from == to || s.OtherNamespaces }

// MaxObjects bounds the number of Secrets and ConfigMaps that an operation uses, including those that do not exist: each costs a request.
const MaxObjects = 1000

// Key names a referenced object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String returns the key in the form that indexes use: kind, namespace and name.
func (k Key) String() string { return string(k.Kind) + "/" + k.Namespace + "/" + k.Name }

// OfWorkspace returns the objects whose values an operation on the stack reads in the Workspace, sorted and without duplicates: the objects
// in env, in envFrom and in the configuration of that stack. It returns at most MaxObjects, because no operation with more is started.
// Volumes of the pod do not count, because the kubelet mounts and refreshes them. Credentials of git do not count either: they are used to
// fetch the program and are not an input of it.
func OfWorkspace(workspace *autov1alpha1.Workspace, stackName string) []Key {
	c := collector{namespace: workspace.Namespace}
	c.addSpec(&workspace.Spec, func(stack *autov1alpha1.WorkspaceStack) bool { return stack.Name == stackName })
	return c.sorted()
}

// OfStack returns the objects that the Stack may use, at most MaxObjects: all those of the Workspace that the Stack asks for, and possibly
// some that its workspaceTemplate replaces. It only walks over the spec, and accepts an invalid one.
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
			// References to other namespaces are not allowed.
			if from := ref.SecretRef; ref.Type == pulumiv1.ResourceRefSecret && from != nil && (from.Namespace == "" || from.Namespace == c.namespace) {
				c.add(Secret, from.Name)
			}
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

// OfInputs returns the Secrets and ConfigMaps of inputs in a namespace, sorted. Only other values in them are a change, see package inputs: they
// are not among those of OfStack and OfWorkspace.
func OfInputs(namespace string, inputs []autov1alpha1.Input) []Key {
	c := collector{namespace: namespace}
	for i := range inputs {
		c.add(Secret, ptr.Deref(inputs[i].Secret, autov1alpha1.KeyReference{}).Name)
		c.add(ConfigMap, ptr.Deref(inputs[i].ConfigMap, autov1alpha1.KeyReference{}).Name)
	}
	return c.sorted()
}

// collector collects the keys of one namespace.
type collector struct {
	namespace string
	keys      []Key
}

func (c *collector) sorted() []Key {
	slices.SortFunc(c.keys, func(a, b Key) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	c.keys = slices.Compact(c.keys)
	return c.keys[:min(len(c.keys), MaxObjects)]
}

// add adds an object, unless the name is empty.
func (c *collector) add(kind Kind, name string) {
	if name != "" {
		c.keys = append(c.keys, Key{Kind: kind, Namespace: c.namespace, Name: name})
	}
}

func (c *collector) addSpec(spec *autov1alpha1.WorkspaceSpec, used func(*autov1alpha1.WorkspaceStack) bool) {
	for i := range spec.EnvFrom {
		c.add(Secret, ptr.Deref(spec.EnvFrom[i].SecretRef, corev1.SecretEnvSource{}).Name)
		c.add(ConfigMap, ptr.Deref(spec.EnvFrom[i].ConfigMapRef, corev1.ConfigMapEnvSource{}).Name)
	}
	for i := range spec.Env {
		from := ptr.Deref(spec.Env[i].ValueFrom, corev1.EnvVarSource{})
		c.add(Secret, ptr.Deref(from.SecretKeyRef, corev1.SecretKeySelector{}).Name)
		c.add(ConfigMap, ptr.Deref(from.ConfigMapKeyRef, corev1.ConfigMapKeySelector{}).Name)
	}
	for i := range spec.Stacks {
		if !used(&spec.Stacks[i]) {
			continue
		}
		for j := range spec.Stacks[i].Config {
			from := ptr.Deref(spec.Stacks[i].Config[j].ValueFrom, autov1alpha1.ConfigValueFrom{})
			c.add(Secret, ptr.Deref(from.SecretKeyRef, autov1alpha1.KeyReference{}).Name)
			c.add(ConfigMap, ptr.Deref(from.ConfigMapKeyRef, autov1alpha1.KeyReference{}).Name)
		}
	}
}

// versionLength is how many hexadecimal digits identify a version. A change is missed when a new version has the same digits as one that
// was used before, which happens once in 2^48 for each object.
const versionLength = 12

// Version is one version of one object.
type Version struct {
	Key
	// ID identifies the version. It is a hash of the object's name, UID and resource version, and never of its contents: everybody who may
	// read a status could compare a hash of a secret value in it with the hashes of guessed values.
	ID string
}

// VersionOf returns the version of the object.
func VersionOf(kind Kind, object metav1.Object) Version {
	hash := sha256.New()
	for _, part := range []string{string(kind), object.GetNamespace(), object.GetName(), string(object.GetUID()), object.GetResourceVersion()} {
		fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	return Version{
		Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName(),
		ID: hex.EncodeToString(hash.Sum(nil))[:versionLength],
	}
}

// separator separates the versions in a digest.
const separator = ","

// Digest returns the form in which a status records versions: one ID for each, sorted. The IDs stay separate, so that a version that was
// never used can be distinguished from one that is merely gone; see NotIn.
func Digest(versions []Version) string {
	ids := sets.New[string]()
	for _, version := range versions {
		ids.Insert(version.ID)
	}
	return join(ids)
}

// Union returns the digest of the versions that are in either digest.
func Union(a, b string) string {
	return join(split(a).Union(split(b)))
}

// NotIn returns the versions that are not in the digest, in their order.
func NotIn(versions []Version, digest string) []Version {
	known := split(digest)
	return slices.DeleteFunc(slices.Clone(versions), func(version Version) bool { return known.Has(version.ID) })
}

// Covers reports whether all versions of the other digest are in the digest.
func Covers(digest, other string) bool {
	return split(digest).IsSuperset(split(other))
}

func join(ids sets.Set[string]) string {
	return strings.Join(sets.List(ids), separator)
}

func split(digest string) sets.Set[string] {
	ids := sets.New(strings.Split(digest, separator)...)
	return ids.Delete("") // an empty digest has none
}
