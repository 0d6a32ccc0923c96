package template

import (
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// MergeByKey merges the items of overlay into those of base that have the same key, and appends the others. The order of
// base stays. Neither slice is changed.
func MergeByKey[Item any](base, overlay []Item, key func(Item) string, merge func(base, overlay Item) Item) []Item {
	if len(overlay) == 0 {
		return base
	}
	merged := append([]Item{}, base...)
	index := make(map[string]int, len(merged))
	for i, item := range merged {
		index[key(item)] = i
	}
	for _, item := range overlay {
		if i, found := index[key(item)]; found {
			merged[i] = merge(merged[i], item)
			continue
		}
		index[key(item)] = len(merged)
		merged = append(merged, item)
	}
	return merged
}

// Replace is a merge function for items that are replaced as a whole: a variable has a value or a source for it, not a mixture of two.
func Replace[Item any](_, overlay Item) Item { return overlay }

func nameOfStack(stack autov1alpha1.WorkspaceStack) string { return stack.Name }
func nameOfVariable(variable corev1.EnvVar) string         { return variable.Name }
func nameOfFile(variable autov1alpha1.EnvFile) string      { return variable.Name }
func keyOfConfig(item autov1alpha1.ConfigItem) string      { return item.Key }

// mergeStack merges the configuration by key; what else overlay sets counts.
func mergeStack(base, overlay autov1alpha1.WorkspaceStack) autov1alpha1.WorkspaceStack {
	merged := base
	if overlay.Create != nil {
		merged.Create = overlay.Create
	}
	if overlay.SecretsProvider != nil {
		merged.SecretsProvider = overlay.SecretsProvider
	}
	if overlay.Environment != nil {
		merged.Environment = overlay.Environment
	}
	merged.Config = MergeByKey(base.Config, overlay.Config, keyOfConfig, Replace)
	return merged
}
