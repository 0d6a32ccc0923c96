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
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/stackoutputs"
)

// The way of an output, and where it is kept from those who may not see it: the agent says which outputs are secret
// (internal/agent/operation.operation.reportedOutputs) and masks their values in all its messages (operation.hideOutputs and readable); the
// Update controller stores all in a Secret, and which are secret in annotations (internal/controller/update.Reconciler.storeOutputs); the status
// of the Stack shows the others: shownOutputs. The objects of spec.outputs are made by renderOutputs.

const (
	// maskedOutput stands for the value of a secret output in the Stack's status, as JSON.
	maskedOutput = `"` + pulumiv1.SecretOutputMask + `"`
	// maxStatusOutputs bounds the outputs in the Stack's status, in bytes: etcd does not accept an object of more than 1.5 MB, and every
	// client that watches Stacks receives them. Outputs beyond the bound are replaced by notes, which have maxStatusNotes bytes.
	maxStatusOutputs = 256 << 10
	maxStatusNotes   = 64 << 10
	// maxShownOutputs bounds the number of outputs in the Stack's status. The Secret that they are read from can have more keys than a stack can have
	// outputs, because whoever may write Secrets can replace it.
	maxShownOutputs = agentpb.MaxOutputs
)

// readOutputs reads the Secret with the outputs of an Update that succeeded; nil when there is none.
func (r *Reconciler) readOutputs(ctx context.Context, update *autov1alpha1.Update) (*corev1.Secret, error) {
	if update.Status.Outputs == "" || !givesOutputs(update) {
		return nil, nil
	}
	if secret := r.RecentOutputs.Take(update); secret != nil {
		return secret, nil
	}
	return r.readOutputsOf(ctx, update.Namespace, sourceOfOutputs(update))
}

// readOutputsOf reads the Secret with the outputs of an Update; nil when there is none.
func (r *Reconciler) readOutputsOf(ctx context.Context, namespace string, update *pulumiv1.StoredOutputs) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: update.Secret}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the outputs of update %s: %w", update.Update, err)
	}
	return secret, nil
}

// givesOutputs reports whether the Update is one that sets the outputs of the stack, succeeded, and has them, if there are any.
func givesOutputs(update *autov1alpha1.Update) bool {
	kind := update.Spec.Type
	return update.IsComplete() && !update.HasFailed() && !isDriftCheck(update) && !update.SavesPlan() && update.Status.OutputsNotStored == "" &&
		(kind == autov1alpha1.UpdateTypeUp || kind == autov1alpha1.UpdateTypeRefresh)
}

// shownOutputs returns the outputs in the Secret under their names, with secret ones and secret parts masked. What is too large for the status is
// replaced by a note that says where it is; the largest go first. Beyond some thousand outputs the last ones are not shown.
func shownOutputs(secret *corev1.Secret) map[string]apiextensionsv1.JSON {
	if secret == nil {
		return nil
	}
	stored := stackoutputs.In(secret)
	values := maps.Clone(stored.Values)
	for key, value := range stored.Shown {
		if _, exists := values[key]; exists {
			values[key] = value
		}
	}
	for _, key := range stored.Masked {
		delete(values, key)
	}
	for key := range secret.Data {
		if !json.Valid(values[key]) {
			values[key] = []byte(maskedOutput)
		}
	}
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(values[a]), len(values[b])), strings.Compare(a, b))
	})
	outputs := make(map[string]apiextensionsv1.JSON, len(keys))
	size, limit := 0, maxStatusOutputs
	for _, key := range keys {
		name, value := stored.NameOf(key), values[key]
		if limit == maxStatusOutputs && size+len(name)+len(value) > limit {
			// All outputs from here on are as large as this one, or larger.
			limit += maxStatusNotes
		}
		if limit > maxStatusOutputs {
			// A string always has a JSON form.
			value, _ = json.Marshal(fmt.Sprintf("[%d bytes, see key %s of secret %s]", len(value), key, secret.Name))
		}
		if size += len(name) + len(value); size > limit || len(outputs) == maxShownOutputs {
			break
		}
		outputs[name] = apiextensionsv1.JSON{Raw: value}
	}
	return outputs
}
