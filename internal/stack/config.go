package stack

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// configOf translates config, configRef, secrets and secretsRef, each sorted by key. A key that stands in two of them has
// no defined value, so it is refused with both places named.
func configOf(stack *pulumiv1.Stack) ([]autov1alpha1.ConfigItem, error) {
	var items []autov1alpha1.ConfigItem
	place := map[string]string{}
	add := func(field string, item autov1alpha1.ConfigItem) error {
		if earlier, ok := place[item.Key]; ok {
			return fmt.Errorf("configuration key %q is set in spec.%s and in spec.%s", item.Key, earlier, field)
		}
		place[item.Key] = field
		items = append(items, item)
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(stack.Spec.Config)) {
		value := stack.Spec.Config[key]
		if err := add("config", autov1alpha1.ConfigItem{Key: key, Value: &value}); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(stack.Spec.ConfigRef)) {
		ref := stack.Spec.ConfigRef[key]
		from := &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: ref.Name, Key: ref.Key}, JSON: ref.JSON}
		if err := add("configRef", autov1alpha1.ConfigItem{Key: key, ValueFrom: from}); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(stack.Spec.Secrets)) {
		if err := add("secrets", secretText(key, stack.Spec.Secrets[key])); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(stack.Spec.SecretRefs)) {
		ref := stack.Spec.SecretRefs[key]
		item, err := secretItem(stack, key, &ref)
		if err != nil {
			return nil, fmt.Errorf("spec.secretsRef[%s]: %w", key, err)
		}
		if err := add("secretsRef", item); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func secretItem(stack *pulumiv1.Stack, key string, ref *pulumiv1.ResourceRef) (autov1alpha1.ConfigItem, error) {
	if err := checkRef(stack, ref); err != nil {
		return autov1alpha1.ConfigItem{}, err
	}
	if ref.Type == pulumiv1.ResourceRefLiteral {
		return secretText(key, ref.LiteralRef.Value), nil
	}
	secret := true
	return autov1alpha1.ConfigItem{Key: key, Secret: &secret, ValueFrom: &autov1alpha1.ConfigValueFrom{
		SecretKeyRef: &autov1alpha1.KeyReference{Name: ref.SecretRef.Name, Key: ref.SecretRef.Key},
	}}, nil
}

func secretText(key, text string) autov1alpha1.ConfigItem {
	secret := true
	// A string always has a JSON form.
	raw, _ := json.Marshal(text)
	return autov1alpha1.ConfigItem{Key: key, Value: &apiextensionsv1.JSON{Raw: raw}, Secret: &secret}
}
