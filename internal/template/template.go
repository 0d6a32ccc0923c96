// Package template makes the specification of an Update from that of its Stack (Options), and merges the templates of a Stack over the
// objects that are made for it.
//
// A template adds labels and annotations, and its spec is a strategic merge patch: fields that it does not set stay, lists with a key are
// merged by that key, others replaced. It can change neither the name, the namespace and the owners of an object, nor what the object is
// for.
package template

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Workspace returns the Workspace with the template merged over it. Neither argument is changed. The error means that the template does not
// fit the Workspace; only an edit of the template helps.
func Workspace(base *autov1alpha1.Workspace, template *pulumiv1.WorkspaceTemplate) (*autov1alpha1.Workspace, error) {
	merged := base.DeepCopy()
	if template == nil {
		return merged, nil
	}
	mergeMetadata(&merged.ObjectMeta, template.Metadata)
	if template.Spec == nil {
		return merged, nil
	}
	overlay := template.Spec.DeepCopy()
	// These two are merged without a patch: a configuration value is the user's own data, in which a null is a null and "$patch" is a key.
	stacks := MergeByKey(merged.Spec.Stacks, overlay.Stacks, nameOfStack, mergeStack)
	env := MergeByKey(merged.Spec.Env, overlay.Env, nameOfVariable, Replace)
	files := MergeByKey(merged.Spec.EnvFiles, overlay.EnvFiles, nameOfFile, Replace)
	merged.Spec.Stacks, overlay.Stacks, merged.Spec.Env, overlay.Env, merged.Spec.EnvFiles, overlay.EnvFiles = nil, nil, nil, nil, nil, nil
	spec, err := Merge(merged.Spec, overlay)
	if err != nil {
		return nil, fmt.Errorf("merge the template over workspace %s: %w", base.Name, err)
	}
	spec.Stacks, spec.Env, spec.EnvFiles = stacks, env, files
	// A template cannot log in as somebody else than the Stack.
	spec.PulumiCloud = base.Spec.PulumiCloud.DeepCopy()
	merged.Spec = spec
	return merged, nil
}

// Update returns the Update with the template merged over it. Neither argument is changed. What the Update is for stays: its workspace,
// stack, type, source and plan, and whether it only previews. The error means that the template does not fit the Update; only an edit of the template helps.
func Update(base *autov1alpha1.Update, template *pulumiv1.UpdateTemplate) (*autov1alpha1.Update, error) {
	merged := base.DeepCopy()
	if template == nil {
		return merged, nil
	}
	mergeMetadata(&merged.ObjectMeta, template.Metadata)
	if template.Spec == nil {
		return merged, nil
	}
	spec, err := Merge(merged.Spec, template.Spec)
	if err != nil {
		return nil, fmt.Errorf("merge the template over update %s: %w", base.Name, err)
	}
	spec.WorkspaceName, spec.StackName = merged.Spec.WorkspaceName, merged.Spec.StackName
	spec.Type, spec.Source = merged.Spec.Type, merged.Spec.Source
	spec.PreviewOnly, spec.ProjectInfo = merged.Spec.PreviewOnly, merged.Spec.ProjectInfo
	spec.SavePlan, spec.PlanEnforcement, spec.Plan = merged.Spec.SavePlan, merged.Spec.PlanEnforcement, merged.Spec.Plan
	merged.Spec = spec
	return merged, nil
}

// mergeMetadata adds labels and annotations. Those that the object has already stay, because they say what the object is, and objects are
// found by them.
func mergeMetadata(object *metav1.ObjectMeta, template *pulumiv1.TemplateMetadata) {
	if template == nil {
		return
	}
	object.Labels = withDefaults(object.Labels, template.Labels)
	object.Annotations = withDefaults(object.Annotations, template.Annotations)
}

// withDefaults adds the entries of defaults whose keys are not in values. It leaves out keys of the API groups of this project: they are the
// controller's own words, for example that an Update corrects drift, and it believes them.
func withDefaults(values, defaults map[string]string) map[string]string {
	for key, value := range defaults {
		if _, set := values[key]; set || isReserved(key) {
			continue
		}
		if values == nil {
			values = map[string]string{}
		}
		values[key] = value
	}
	return values
}

// isReserved reports whether the key of a label or an annotation belongs to an API group of this project.
func isReserved(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	return qualified && slices.Contains([]string{pulumiv1.GroupVersion.Group, autov1alpha1.GroupVersion.Group}, domain)
}
