package source

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// ownGroups are those whose kinds publish no artifact that can be downloaded.
var ownGroups = []string{pulumiv1.GroupVersion.Group, autov1alpha1.GroupVersion.Group}

// checkKind refuses what can never be a source before anything of it is read. The controller may list Secrets and more for its own
// purposes, and nobody who may create a Stack shall make it read or watch them.
func checkKind(stack *pulumiv1.Stack, key Key) error {
	const field = "spec.fluxSource.sourceRef"
	apiVersion := stack.Spec.FluxSource.SourceRef.APIVersion
	if _, err := schema.ParseGroupVersion(apiVersion); err != nil {
		return invalidSource("%s.apiVersion: %q is not of the form group/version", field, apiVersion)
	}
	switch {
	case key.Group == pulumiv1.GroupVersion.Group && key.Kind == pulumiv1.ProgramKind:
		return invalidSource("%s: a Program is no source of Flux: name it in spec.programRef", field)
	case isBuiltIn(key.Group) || slices.Contains(ownGroups, key.Group):
		return invalidSource("%s: %s of %q publishes no artifact: name a source of Flux, or of another controller that publishes artifacts as Flux does",
			field, key.Kind, apiVersion)
	}
	return nil
}

// isBuiltIn tells whether the group is one of Kubernetes itself. Those of custom resources have a dot in their name, and
// the ends k8s.io and kubernetes.io are kept for Kubernetes.
func isBuiltIn(group string) bool {
	return !strings.Contains(group, ".") || group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") || strings.HasSuffix(group, ".kubernetes.io")
}

// CacheTransform leaves of an object what a cache may keep. Sources are the only unstructured objects in it: of those it is what
// this package reads, so that one which is no source keeps nothing that was in it. Of others it is all but the bookkeeping of
// field managers.
func CacheTransform(object any) (any, error) {
	full, ok := object.(*unstructured.Unstructured)
	if !ok {
		return cache.TransformStripManagedFields()(object)
	}
	kept := &unstructured.Unstructured{Object: map[string]any{}}
	for _, path := range [][]string{
		{"apiVersion"},
		{"kind"},
		{"metadata", "namespace"},
		{"metadata", "name"},
		{"metadata", "uid"},
		{"metadata", "resourceVersion"},
		{"metadata", "generation"},
		{"spec", "url"},
		{"spec", "ref"},
		{"status", "artifact"},
		{"status", "conditions"},
	} {
		value, found, err := unstructured.NestedFieldNoCopy(full.Object, path...)
		if err != nil || !found {
			continue
		}
		// It fails only where a part of the path is no object, which the paths above have none of.
		_ = unstructured.SetNestedField(kept.Object, value, path...)
	}
	return kept, nil
}
