package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

// Flux resolves sources that publish an artifact in their status: GitRepository, OCIRepository, Bucket,
// ExternalArtifact, and any other custom resource of that shape which is in a namespace and which the controller may read.
type Flux struct {
	// APIReader reads from the API server.
	APIReader client.Reader
	// Mapper finds the version of a kind that the API server serves, whatever version the Stack names. NewMapper returns another one, for when
	// the API server no longer serves what this one has found; nil keeps the first one.
	Mapper    apimeta.RESTMapper
	NewMapper func() (apimeta.RESTMapper, error)
	// NewCache returns a cache for the sources of one kind. With nil, no source is watched.
	NewCache func(cache.Options) (cache.Cache, error)
	// Namespace is the only namespace whose sources are watched; all namespaces when it is empty. Sources elsewhere are read all the same, if
	// the controller may.
	Namespace string
	// Log receives the reasons why sources cannot be watched.
	Log logr.Logger
	// Scope says whether a source may be in another namespace than the Stack.
	Scope references.Scope
	// DisableExternalArtifact refuses sources of kind ExternalArtifact.
	DisableExternalArtifact bool
	// CheckLocations refuses artifacts whose URL is not one where the source can have published them.
	CheckLocations bool

	kinds fluxKinds
	// watches has a cache of each kind that Stacks name, once Watch was called.
	watches fluxWatches
}

var _ Source = &Flux{}

// fluxKey identifies a source independently of the API version that a Stack names for it.
type fluxKey struct {
	schema.GroupKind
	types.NamespacedName
}

// String is the form of the key in indexes.
func (k fluxKey) String() string {
	return k.GroupKind.String() + "/" + k.NamespacedName.String()
}

// keyOf returns the key of the source that an object in the namespace names.
func keyOf(namespace string, ref meta.NamespacedObjectKindReference) fluxKey {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if ref.APIVersion == "" {
		gvk.Group = sourcev1.GroupVersion.Group
	}
	return fluxKey{gvk.GroupKind(), types.NamespacedName{Namespace: cmp.Or(ref.Namespace, namespace), Name: ref.Name}}
}

func (k fluxKey) isFlux(kinds ...string) bool {
	return k.Group == sourcev1.GroupVersion.Group && slices.Contains(kinds, k.Kind)
}

// IsUsedBy implements Source.
func (f *Flux) IsUsedBy(stack *pulumiv1.Stack) bool { return stack.Spec.FluxSource != nil }

// Handles implements Source.
func (f *Flux) Handles(from *autov1alpha1.UpdateSource) bool { return from.SourceRef != nil }

// IsOwn implements Source.
func (f *Flux) IsOwn(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool {
	return from.SourceRef != nil && keyOf(stack.Namespace, *from.SourceRef).String() == f.Key(stack) && isSameDir(from.Dir, stack.Spec.FluxSource.Dir)
}

// Forget implements Source.
func (f *Flux) Forget(types.NamespacedName) {}

// Key implements Source.
func (f *Flux) Key(stack *pulumiv1.Stack) string {
	key := keyOf(stack.Namespace, meta.NamespacedObjectKindReference(stack.Spec.FluxSource.SourceRef))
	if !f.Scope.Reaches(stack.Namespace, key.Namespace) {
		return "" // its changes would wake a Stack that may not use it
	}
	return key.String()
}

// Resolve implements Source.
func (f *Flux) Resolve(ctx context.Context, stack *pulumiv1.Stack, live bool) (*Artifact, error) {
	key, err := f.check("spec.fluxSource.sourceRef", stack.Namespace, meta.NamespacedObjectKindReference(stack.Spec.FluxSource.SourceRef))
	if err != nil {
		return nil, err
	}
	return f.resolve(ctx, stack.Namespace, key, live)
}

// Reference implements Source. The result has no URL.
func (f *Flux) Reference(namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	key, err := f.check("spec.source.sourceRef", namespace, *from.SourceRef)
	if err != nil {
		return artifact.Reference{}, err
	}
	return artifact.Reference{Source: key.String(), Namespace: key.Namespace, Digest: from.Digest}, nil
}

// Locate implements Source. The source has to publish the artifact now.
func (f *Flux) Locate(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	key, err := f.check("spec.source.sourceRef", namespace, *from.SourceRef)
	if err != nil {
		return artifact.Reference{}, err
	}
	found, err := f.resolve(ctx, namespace, key, false)
	if err != nil || found.Digest != from.Digest {
		// The cache may be behind.
		found, err = f.resolve(ctx, namespace, key, true)
	}
	switch {
	case err != nil:
		return artifact.Reference{}, err
	case found.Digest != from.Digest:
		return artifact.Reference{}, waiting(pulumiv1.SourceNotReadyReason,
			"%s %s does not publish the artifact %.160s (any longer)", key.Kind, key.NamespacedName, from.Digest)
	}
	return found.Reference, nil
}

// Verification implements verifier.
func (f *Flux) Verification(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (Verification, error) {
	key, err := f.check("spec.source.sourceRef", namespace, *from.SourceRef)
	if err != nil {
		return Verification{}, err
	}
	found, err := f.resolve(ctx, namespace, key, false)
	if err != nil {
		return Verification{}, err
	}
	if found.Digest != from.Digest {
		// The source has another artifact now: only a digest that was recorded as verified is accepted.
		if found.Verification.Verified {
			found.Verification.Problem = fmt.Sprintf("%s %s no longer publishes the artifact %.160s, and it is not known whether that was verified: "+
				"a new Update runs what it publishes now", key.Kind, key.NamespacedName, from.Digest)
		}
		found.Verification.Verified = false
	}
	return found.Verification, nil
}

// check returns the key of a source that an object in the namespace names and may use. It reads nothing.
func (f *Flux) check(field, namespace string, ref meta.NamespacedObjectKindReference) (fluxKey, error) {
	key := keyOf(namespace, ref)
	if err := checkKind(field, ref.APIVersion, key); err != nil {
		return key, err
	}
	switch {
	case !f.Scope.Reaches(namespace, key.Namespace):
		return key, permanent(pulumiv1.AccessDeniedReason,
			"cannot use %s %s: references to another namespace are not allowed", key.Kind, key.NamespacedName)
	case key.isFlux(sourcev1.ExternalArtifactKind) && f.DisableExternalArtifact:
		return key, permanent(pulumiv1.AccessDeniedReason,
			"cannot use ExternalArtifact %s: the feature gate ExternalArtifact is off; the controller's flag --feature-gates=ExternalArtifact=true allows it",
			key.NamespacedName)
	}
	return key, nil
}

// checkKind refuses kinds that can never be a source, before anything of them is read. The controller may list Secrets and other objects
// for its own purposes, and a tenant who may create a Stack must not make it read or watch them.
func checkKind(field, apiVersion string, key fluxKey) error {
	if _, err := schema.ParseGroupVersion(apiVersion); err != nil {
		return invalidSource("%s.apiVersion: %q is not of the form group/version", field, apiVersion)
	}
	switch {
	case key.Kind == "":
		return invalidSource("%s.kind is empty: it is the kind of the source", field)
	case key.Name == "" || len(key.Name) > validation.DNS1123SubdomainMaxLength:
		return invalidSource("%s.name is the name of the source, of %d characters at most", field, validation.DNS1123SubdomainMaxLength)
	case key.Group == pulumiv1.GroupVersion.Group && key.Kind == pulumiv1.ProgramKind:
		return invalidSource("%s: a Program is no source of Flux: name it in spec.programRef", field)
	case isBuiltIn(key.Group) || key.Group == pulumiv1.GroupVersion.Group || key.Group == autov1alpha1.GroupVersion.Group:
		return invalidSource("%s: %s of %q publishes no artifact: name a source of Flux, or of another controller that publishes artifacts as Flux does",
			field, key.Kind, apiVersion)
	}
	return nil
}

// isBuiltIn reports whether the group is one of Kubernetes itself. Groups of custom resources have a dot in their name, and the suffixes
// k8s.io and kubernetes.io are reserved for Kubernetes.
func isBuiltIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix("."+group, ".k8s.io") || strings.HasSuffix(group, ".kubernetes.io")
}

// resolve returns the artifact that the source offers now. The namespace is that of the object that names the source. The caller has
// checked that the object may use the source.
func (f *Flux) resolve(ctx context.Context, namespace string, key fluxKey, live bool) (*Artifact, error) {
	object, watched, err := f.read(ctx, namespace, key, live)
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
	if f.CheckLocations {
		if err := checkLocation(key, found.URL); err != nil {
			return nil, err
		}
	}
	found.Watched = watched
	return found, nil
}

// read reads the source. watched reports whether a change of it will be noticed.
func (f *Flux) read(ctx context.Context, namespace string, key fluxKey, live bool) (object *unstructured.Unstructured, watched bool, err error) {
	for renewed := true; renewed; {
		mapper := f.kinds.mapperOr(f.Mapper)
		// Discovery decides on the version, because Flux retires API versions that manifests still name.
		mapping, err := f.kinds.mapping(mapper, namespace, key)
		if apimeta.IsNoMatchError(err) {
			return nil, false, waiting(pulumiv1.SourceKindNotInstalledReason,
				"the cluster does not serve %s: is Flux's source-controller installed?", key.GroupKind)
		}
		if err != nil {
			return nil, false, fmt.Errorf("find the served version of %s: %w", key.GroupKind, err)
		}
		if mapping.Scope.Name() != apimeta.RESTScopeNameNamespace {
			// It would be in the namespace of every Stack, whatever Scope says.
			return nil, false, invalidSource("objects of the kind %s are in no namespace, and cannot be a source", key.GroupKind)
		}
		object, watched, err = f.get(ctx, mapping.GroupVersionKind, key.NamespacedName, live)
		if !isUnserved(err) {
			return object, watched, problemOf(key, watched, err)
		}
		if renewed, err = f.kinds.renew(mapper, f.NewMapper); err != nil {
			return nil, false, err
		}
	}
	return nil, false, waiting(pulumiv1.SourceKindNotInstalledReason, "the cluster no longer serves %s", key.GroupKind)
}

// get reads the source from the cache when its kind is watched and the watch works, otherwise from the API server. get starts to watch a kind
// only after a read from the API server was allowed: a forbidden watch would be retried for ever.
func (f *Flux) get(
	ctx context.Context, kind schema.GroupVersionKind, name types.NamespacedName, live bool,
) (object *unstructured.Unstructured, watched bool, err error) {
	object = &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	if f.Namespace != "" && f.Namespace != name.Namespace {
		return object, false, f.APIReader.Get(ctx, name, object)
	}
	watch := f.watches.working(kind.GroupKind())
	if watch == nil || live {
		err = f.APIReader.Get(ctx, name, object)
	} else {
		object, err = f.cached(ctx, watch, name)
	}
	switch missing := apierrors.IsNotFound(err); {
	case err != nil && !missing || isUnserved(err):
		return object, false, err
	case watch != nil:
		return object, f.watches.noteAbsent(watch, name, missing), err
	case !live:
		if err := f.watch(kind); err != nil {
			return object, false, err
		}
	}
	return object, false, err
}

// cached reads the source from the cache, or from the API server if the cache has only a part of it: another part may be what makes the
// artifact one that is not verified.
func (f *Flux) cached(ctx context.Context, watch *fluxWatch, name types.NamespacedName) (*unstructured.Unstructured, error) {
	object := watch.object("")
	err := watch.Get(ctx, name, object)
	switch {
	case err != nil || !informercache.IsShortened(object):
		return object, err
	case informercache.IsTooLarge(object):
		return object, &informercache.TooLargeError{Kind: watch.kind.Kind, NamespacedName: name}
	}
	object = watch.object("")
	return object, f.APIReader.Get(ctx, name, object)
}

// isUnserved reports whether the error of a read says that the cluster does not serve the version of the kind.
func isUnserved(err error) bool {
	return apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// problemOf returns the error of a read as a *Problem if it is one.
func problemOf(key fluxKey, watched bool, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		problem := waiting(pulumiv1.SourceNotFoundReason, "%s %s does not exist", key.Kind, key.NamespacedName)
		problem.Watched = watched
		return problem
	case apierrors.IsForbidden(err):
		return waiting(pulumiv1.AccessDeniedReason, "not allowed to read %s %s: %s", key.Kind, key.NamespacedName, err)
	}
	if _, tooLarge := errors.AsType[*informercache.TooLargeError](err); tooLarge {
		return waiting(pulumiv1.SourceNotReadyReason, "%s %s takes more than %d MiB of memory, as objects do that have very many small parts: make it smaller",
			key.Kind, key.NamespacedName, informercache.MaxMemory>>20)
	}
	return fmt.Errorf("read %s %s: %w", key.Kind, key.NamespacedName, err)
}

// storedKinds are the kinds whose artifacts have the path /KIND/NAMESPACE/NAME/FILE on source-controller, or on another controller that
// uses the same storage code.
var storedKinds = []string{
	sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmChartKind, sourcev1.HelmRepositoryKind,
	sourcev1.ExternalArtifactKind,
}

// checkLocation refuses the URL of an artifact that the source cannot have published. Flux's edit role lets tenants write the status of
// their sources: with a URL of their choice they could make the controller fetch something in its own network, or get the artifact of
// another tenant.
func checkLocation(key fluxKey, raw string) error {
	// An invalid URL is refused when it is fetched.
	parsed, err := url.Parse(raw)
	if err != nil {
		return nil
	}
	// What names resolve to is checked when the artifact is fetched.
	local := netguard.CheckHost(parsed.Hostname()) != nil
	trimmed := "/" + strings.TrimSuffix(strings.TrimPrefix(parsed.Path, "/"), "/")
	segments := strings.Split(trimmed[1:], "/")
	stored := len(segments) == 4 && slices.ContainsFunc(storedKinds, func(kind string) bool { return strings.EqualFold(kind, segments[0]) })
	// Servers may treat a path with empty elements, "." or ".." as another path.
	clean := path.Clean(trimmed) == trimmed
	own := stored && strings.EqualFold(segments[0], key.Kind) && segments[1] == key.Namespace && segments[2] == key.Name &&
		parsed.RawQuery == "" && !parsed.ForceQuery
	// An ExternalArtifact may be served anywhere.
	free := key.Group != sourcev1.GroupVersion.Group || key.Kind == sourcev1.ExternalArtifactKind
	if !local && clean && (own || free && !stored) {
		return nil
	}
	return waiting(pulumiv1.SourceNotReadyReason,
		"the URL in the status of %s %s is not where its artifacts are published", key.Kind, key.NamespacedName)
}
