package source

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Watcher makes sure that changes of a source kind wake the Stacks that use it.
type Watcher interface {
	// Watch starts to watch the kind unless it is watched already.
	Watch(ctx context.Context, gvk schema.GroupVersionKind) error
	// Cache returns a reader for objects of the kind, or nil while it is not watched and synchronised.
	Cache(kind schema.GroupKind) client.Reader
}

// Flux resolves sources that publish an artifact in their status: GitRepository, OCIRepository, Bucket,
// ExternalArtifact, and any other custom resource of that shape which the controller may read.
type Flux struct {
	// Live reads from the API server, Watcher from a cache.
	Live    client.Reader
	Watcher Watcher
	// Mapper finds the served version of a kind, whatever version the Stack names.
	Mapper apimeta.RESTMapper
	// AllowCrossNamespaceRefs permits a source in another namespace than the Stack's.
	AllowCrossNamespaceRefs bool
	// DisableExternalArtifact refuses sources of kind ExternalArtifact.
	DisableExternalArtifact bool
}

// Key identifies a source independently of the API version that a Stack names for it.
type Key struct {
	schema.GroupKind
	types.NamespacedName
}

// String is the form of the key in indexes.
func (k Key) String() string {
	return k.GroupKind.String() + "/" + k.NamespacedName.String()
}

// KeyOf returns the key of the stack's Flux source, and false when it has none.
func KeyOf(stack *pulumiv1.Stack) (Key, bool) {
	if stack.Spec.FluxSource == nil {
		return Key{}, false
	}
	ref := stack.Spec.FluxSource.SourceRef
	namespace := ref.Namespace
	if namespace == "" {
		namespace = stack.Namespace
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if ref.APIVersion == "" {
		gvk.Group = sourcev1.GroupVersion.Group
	}
	return Key{
		GroupKind:      gvk.GroupKind(),
		NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name},
	}, true
}

// Resolve returns the artifact that the stack's source offers now. A *Problem says why there is none; any other error
// is a failure to ask.
func (f *Flux) Resolve(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	key, ok := KeyOf(stack)
	if !ok {
		return nil, fmt.Errorf("stack %s/%s has no Flux source", stack.Namespace, stack.Name)
	}
	if err := checkKind(stack, key); err != nil {
		return nil, err
	}
	if err := f.checkAccess(stack, key); err != nil {
		return nil, err
	}
	gvk, err := f.servedVersion(key.GroupKind)
	if err != nil {
		return nil, err
	}
	object, watched, err := f.get(ctx, gvk, key.NamespacedName)
	if err != nil {
		return nil, err
	}
	found, err := artifactOf(object)
	if err != nil {
		return nil, &Problem{Reason: pulumiv1.SourceNotReadyReason, Message: err.Error(), Watched: watched}
	}
	if found == nil {
		return nil, withoutArtifact(object, watched)
	}
	return found, nil
}

// Refresh reads the source from the API server instead of the cache: a download answered "not found" means first of
// all that the cache may be behind.
func (f *Flux) Refresh(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	live := *f
	live.Watcher = nil
	return live.Resolve(ctx, stack)
}

func (f *Flux) checkAccess(stack *pulumiv1.Stack, key Key) error {
	if key.Namespace != stack.Namespace && !f.AllowCrossNamespaceRefs {
		return permanent(pulumiv1.AccessDeniedReason,
			"cannot use %s %s: references to another namespace are not allowed", key.Kind, key.NamespacedName)
	}
	if key.Group == sourcev1.GroupVersion.Group && key.Kind == sourcev1.ExternalArtifactKind && f.DisableExternalArtifact {
		return permanent(pulumiv1.AccessDeniedReason,
			"cannot use ExternalArtifact %s: the feature gate ExternalArtifact is off", key.NamespacedName)
	}
	return nil
}

// servedVersion asks discovery, because Flux retires API versions that manifests still name.
func (f *Flux) servedVersion(kind schema.GroupKind) (schema.GroupVersionKind, error) {
	mapping, err := f.Mapper.RESTMapping(kind)
	if apimeta.IsNoMatchError(err) {
		return schema.GroupVersionKind{}, waiting(pulumiv1.SourceKindNotInstalledReason,
			"the cluster does not serve %s: is Flux's source-controller installed?", kind)
	}
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("find the served version of %s: %w", kind, err)
	}
	return mapping.GroupVersionKind, nil
}

// get reads the source from the cache when its kind is watched and synchronised, otherwise from the API server. A kind is
// watched once the API server has answered for it: a watch that is forbidden would be tried again for ever.
func (f *Flux) get(ctx context.Context, gvk schema.GroupVersionKind, name types.NamespacedName) (*unstructured.Unstructured, bool, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	reader := f.Live
	watched := false
	if f.Watcher != nil {
		if cache := f.Watcher.Cache(gvk.GroupKind()); cache != nil {
			reader, watched = cache, true
		}
	}
	err := reader.Get(ctx, name, object)
	if f.Watcher != nil && client.IgnoreNotFound(err) == nil {
		if err := f.Watcher.Watch(ctx, gvk); err != nil {
			return nil, watched, fmt.Errorf("watch %s: %w", gvk.GroupKind(), err)
		}
	}
	switch {
	case err == nil:
		return object, watched, nil
	case apierrors.IsNotFound(err):
		problem := waiting(pulumiv1.SourceNotFoundReason, "%s %s does not exist", gvk.Kind, name)
		problem.Watched = watched
		return nil, watched, problem
	case apierrors.IsForbidden(err):
		return nil, watched, waiting(pulumiv1.AccessDeniedReason, "not allowed to read %s %s: %s", gvk.Kind, name, err)
	case apimeta.IsNoMatchError(err):
		return nil, watched, waiting(pulumiv1.SourceKindNotInstalledReason, "the cluster does not serve %s any more", gvk.GroupKind())
	}
	return nil, watched, fmt.Errorf("read %s %s: %w", gvk.Kind, name, err)
}

// withoutArtifact tells a source that failed from one that has not produced anything yet.
func withoutArtifact(object *unstructured.Unstructured, watched bool) *Problem {
	problem := waiting(pulumiv1.ArtifactNotFoundReason, "%s has no artifact yet", describe(object))
	if status, message := readyCondition(object); status == "False" {
		problem = waiting(pulumiv1.SourceNotReadyReason, "%s is not ready: %s", describe(object), message)
	}
	problem.Watched = watched
	return problem
}

// readyCondition returns status and message of the Ready condition, empty when there is none.
func readyCondition(object *unstructured.Unstructured) (status, message string) {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return "", ""
	}
	for _, entry := range conditions {
		condition, ok := entry.(map[string]any)
		if !ok || condition["type"] != meta.ReadyCondition {
			continue
		}
		status, _ = condition["status"].(string)
		message, _ = condition["message"].(string)
	}
	return status, message
}
