package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

const (
	// fieldOwner is the field manager of everything that this package writes.
	fieldOwner = "stack-controller"
	// appliedHashAnnotation on a StatefulSet or Service identifies what was applied, so that it is written only when
	// something else is wanted.
	appliedHashAnnotation = "auto.pulumi.com/applied-hash"
)

// +kubebuilder:rbac:groups=apps,resources=statefulsets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch

// appliedVersion is the version of a StatefulSet that this controller wrote last. A later one was written by somebody else.
type appliedVersion struct {
	uid        types.UID
	generation int64
}

// applyStatefulSet makes the StatefulSet what is wanted and returns it. It writes only when something differs.
func (r *Runtime) applyStatefulSet(ctx context.Context, t *tracker, workspace *autov1alpha1.Workspace, wanted *appsv1.StatefulSet) (*appsv1.StatefulSet, error) {
	configuration, hash, err := applyConfiguration(wanted)
	if err != nil {
		return nil, err
	}
	present := &appsv1.StatefulSet{}
	found, err := r.read(ctx, workspace, wanted.Name, present)
	if err != nil {
		return nil, err
	}
	if found && present.Annotations[appliedHashAnnotation] == hash && t.unchanged(present, wanted) {
		return present, nil
	}
	if err := r.apply(ctx, configuration, found && present.Annotations[appliedHashAnnotation] == ""); err != nil {
		return nil, err
	}
	applied := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, applied); err != nil {
		return nil, fmt.Errorf("read the applied StatefulSet: %w", err)
	}
	t.applied = appliedVersion{uid: applied.UID, generation: applied.Generation}
	return applied, nil
}

// unchanged tells whether nobody else has changed the specification since it was applied. What an earlier controller applied
// is only looked at roughly: most of it is not in the cache.
func (t *tracker) unchanged(present, wanted *appsv1.StatefulSet) bool {
	if t.applied.uid == present.UID {
		return present.Generation <= t.applied.generation
	}
	return ptr.Equal(present.Spec.Replicas, wanted.Spec.Replicas) &&
		marksOf(present.Spec.Template.Annotations) == marksOf(wanted.Spec.Template.Annotations)
}

// applyService makes the Service what is wanted. It writes only when something differs.
func (r *Runtime) applyService(ctx context.Context, workspace *autov1alpha1.Workspace, wanted client.Object) error {
	configuration, hash, err := applyConfiguration(wanted)
	if err != nil {
		return err
	}
	present := serviceMetadata()
	found, err := r.read(ctx, workspace, wanted.GetName(), present)
	if err != nil || found && present.Annotations[appliedHashAnnotation] == hash {
		return err
	}
	return r.apply(ctx, configuration, found && present.Annotations[appliedHashAnnotation] == "")
}

// read reads an object of the workspace from the cache. The error of one that belongs to somebody else, or that is being
// deleted, is a *conflictError.
func (r *Runtime) read(ctx context.Context, workspace *autov1alpha1.Workspace, name string, into client.Object) (found bool, err error) {
	if found, err = r.get(ctx, workspace, name, into); err != nil || !found {
		return false, err
	}
	return true, checkOwner(workspace, into)
}

// applyConfiguration is what is sent, with a hash of itself in an annotation.
func applyConfiguration(wanted client.Object) (*unstructured.Unstructured, string, error) {
	configuration, err := shape.ApplyConfiguration(wanted)
	if err != nil {
		return nil, "", err
	}
	content, err := json.Marshal(configuration.Object)
	if err != nil {
		return nil, "", fmt.Errorf("encode a %s: %w", configuration.GetKind(), err)
	}
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:8])
	annotations := configuration.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedHashAnnotation] = hash
	configuration.SetAnnotations(annotations)
	return configuration, hash, nil
}

// apply sends the configuration, which afterwards is the object. With takeOver another program made what is there.
func (r *Runtime) apply(ctx context.Context, object *unstructured.Unstructured, takeOver bool) error {
	if takeOver {
		return r.takeOver(ctx, object)
	}
	return r.applyAs(ctx, object, fieldOwner)
}

func (r *Runtime) applyAs(ctx context.Context, object *unstructured.Unstructured, manager string) error {
	err := r.options.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(manager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}
