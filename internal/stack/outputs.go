package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// maskedOutput stands for the value of a secret output in the Stack's status, as JSON.
	maskedOutput = `"` + pulumiv1.SecretOutputMask + `"`
	// maxStatusOutputs bounds the outputs in the Stack's status, in bytes: etcd does not take an object of more than 1.5 MB, and
	// everybody who watches Stacks gets them. Beyond it there are notes, for which there is maxStatusNotes of room.
	maxStatusOutputs = 256 << 10
	maxStatusNotes   = 64 << 10
)

// readOutputs returns the outputs of an Update as the Stack's status shows them.
func (r *Reconciler) readOutputs(ctx context.Context, update *autov1alpha1.Update) (map[string]apiextensionsv1.JSON, error) {
	if update.Status.Outputs == "" {
		return nil, nil
	}
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Status.Outputs}
	if err := r.Live.Get(ctx, key, secret); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read the outputs of update %s: %w", update.Name, err)
	}
	outputs, err := shownOutputs(secret)
	if err != nil {
		return nil, fmt.Errorf("read the outputs of update %s: %w", update.Name, err)
	}
	return outputs, nil
}

// shownOutputs returns the outputs in the Secret under their names, with secret ones masked. What is too large for the status is
// replaced by a note that says where it is; the largest go first. Beyond some thousand outputs the last ones are not shown.
func shownOutputs(secret *corev1.Secret) (map[string]apiextensionsv1.JSON, error) {
	var secretKeys []string
	names := map[string]string{}
	for annotation, into := range map[string]any{
		autov1alpha1.SecretOutputsAnnotation: &secretKeys, autov1alpha1.OutputNamesAnnotation: &names,
	} {
		text := secret.Annotations[annotation]
		if text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			return nil, fmt.Errorf("the annotation %s is not valid", annotation)
		}
	}
	masked := map[string]bool{}
	for _, key := range secretKeys {
		masked[key] = true
	}
	values := make(map[string][]byte, len(secret.Data))
	for key, value := range secret.Data {
		if masked[key] || !json.Valid(value) {
			value = []byte(maskedOutput)
		}
		values[key] = value
	}
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(values[a]), len(values[b])), strings.Compare(a, b))
	})
	outputs := make(map[string]apiextensionsv1.JSON, len(keys))
	size, limit := 0, maxStatusOutputs
	for _, key := range keys {
		name, value := key, values[key]
		if original, renamed := names[key]; renamed {
			name = original
		}
		if limit == maxStatusOutputs && size+len(name)+len(value) > limit {
			// From here on all are as large, or larger.
			limit += maxStatusNotes
		}
		if limit > maxStatusOutputs {
			value = outputNote(secret.Name, key, len(value))
		}
		if size += len(name) + len(value); size > limit {
			break
		}
		outputs[name] = apiextensionsv1.JSON{Raw: value}
	}
	return outputs, nil
}

// outputNote is shown in place of an output that is too large, as JSON.
func outputNote(secret, key string, size int) []byte {
	// A string always has a JSON form.
	note, _ := json.Marshal(fmt.Sprintf("[%d bytes, see key %s of secret %s]", size, key, secret))
	return note
}
