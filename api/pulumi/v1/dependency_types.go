package v1

import (
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// DependencyReference names a Stack, or an object of another kind, that must be ready before a Stack is updated. It has the fields of Flux's
// type of this name, and those by which it names other kinds.
//
// +kubebuilder:validation:XValidation:rule="has(self.apiVersion) == has(self.kind)",message="set both apiVersion and kind, or neither"
// +kubebuilder:validation:XValidation:rule="!has(self.readyExpr) || !has(self.ready) || self.ready",message="readyExpr has no effect with ready: false"
type DependencyReference struct {
	// APIVersion of the object. Without apiVersion and kind, it is a Stack.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind of the object: Stack, or one that the controller flag --dependency-kinds lists.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Kind string `json:"kind,omitempty"`

	// Name of the object.
	// +required
	Name string `json:"name"`

	// Namespace of the object. Defaults to that of the Stack.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Ready is whether the object must be ready, which is the default; with false, it must only exist.
	// +optional
	Ready *bool `json:"ready,omitempty"`

	// ReadyExpr is a CEL expression that says when the object is ready, in place of its conditions. It can use the variables self and dep.
	// +optional
	ReadyExpr string `json:"readyExpr,omitempty"`
}

// IsStack reports whether the reference names a Stack, in any version of its group.
func (in *DependencyReference) IsStack() bool {
	return in.Kind == "" || in.GroupKind() == schema.GroupKind{Group: GroupVersion.Group, Kind: StackKind}
}

// GroupKind returns the group and kind of the object. Both are empty when the reference has no kind.
func (in *DependencyReference) GroupKind() schema.GroupKind {
	group, _, hasGroup := strings.Cut(in.APIVersion, "/")
	if !hasGroup {
		group = "" // an API version of the core group, such as v1
	}
	return schema.GroupKind{Group: group, Kind: in.Kind}
}

// OnlyExists reports whether it is enough that the object exists.
func (in *DependencyReference) OnlyExists() bool { return in.Ready != nil && !*in.Ready }

// GetDependsOn returns the Stacks that must be ready before this one is updated. The objects of other kinds are not among them: it
// implements meta.ObjectWithDependencies, whose references have no kind.
func (in *Stack) GetDependsOn() []meta.DependencyReference {
	var stacks []meta.DependencyReference
	for i := range in.Spec.DependsOn {
		if reference := &in.Spec.DependsOn[i]; reference.IsStack() {
			stacks = append(stacks, meta.DependencyReference{Name: reference.Name, Namespace: reference.Namespace, ReadyExpr: reference.ReadyExpr})
		}
	}
	return stacks
}
