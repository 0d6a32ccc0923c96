package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// leftoverPatience bounds the wait for the garbage collector to remove the outputs of an earlier Update of the same name.
const leftoverPatience = 2 * time.Minute

// errLeftoverOutputs says that the Secret of an earlier Update of the same name is still there.
var errLeftoverOutputs = errors.New("the outputs of an earlier update of the same name are not removed yet")

// hasOutputs tells whether the operation leaves outputs that are kept. A preview has none that came true, a destroyed stack
// has none any more.
func hasOutputs(operation *proto.Operation) bool {
	kind := operation.GetKind()
	return operation.GetState() == proto.OperationState_OPERATION_STATE_SUCCEEDED && len(operation.GetOutputs()) > 0 &&
		(kind == proto.OperationKind_OPERATION_KIND_UP || kind == proto.OperationKind_OPERATION_KIND_REFRESH)
}

// storeOutputs puts the outputs into the Secret of the Update, as many as it holds. What the API server will never accept does
// not turn a good operation into a failed one: then nothing is stored. problem says what is missing, and why; it is empty when
// all is there. Doing it twice changes nothing.
func (r *Reconciler) storeOutputs(ctx context.Context, update *autov1alpha1.Update, operation *proto.Operation) (stored bool, problem string, err error) {
	chosen := chooseOutputs(operation.GetOutputs())
	secret, err := outputsSecret(update, chosen)
	if err != nil {
		return false, "", err
	}
	err = r.client.Create(ctx, secret, ctrlclient.FieldOwner(fieldOwner))
	switch {
	case err == nil:
		return true, chosen.problem(secret.Name), nil
	case apierrors.IsAlreadyExists(err):
		if problem, err = r.checkOutputs(ctx, update, secret.Name); err != nil || problem != "" {
			return false, problem, err
		}
		return true, chosen.problem(secret.Name), nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsBadRequest(err):
		return false, "the outputs are not stored: " + err.Error(), nil
	}
	return false, "", fmt.Errorf("store the outputs: %w", err)
}

// checkOutputs accepts a Secret that an earlier attempt of this very Update created. It is immutable, so it holds the
// outputs.
func (r *Reconciler) checkOutputs(ctx context.Context, update *autov1alpha1.Update, name string) (problem string, err error) {
	// Metadata is enough, so the outputs are not read.
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err = r.live.Get(ctx, ctrlclient.ObjectKey{Namespace: update.Namespace, Name: name}, existing)
	if apierrors.IsNotFound(err) {
		// It was just removed: the place is free at the next attempt.
		return "", errLeftoverOutputs
	}
	if err != nil {
		return "", fmt.Errorf("look at the stored outputs: %w", err)
	}
	owner := metav1.GetControllerOf(existing)
	switch {
	case owner != nil && owner.UID == update.UID:
		return "", nil
	case owner != nil && owner.Kind == autov1alpha1.UpdateKind && owner.Name == update.Name:
		return "", errLeftoverOutputs
	}
	return fmt.Sprintf("the outputs are not stored: secret %q exists and does not belong to this update", name), nil
}

// outputsSecret builds the Secret.
func outputsSecret(update *autov1alpha1.Update, chosen *outputChoice) (*corev1.Secret, error) {
	annotations, err := chosen.annotations()
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(chosen.keys))
	for name, key := range chosen.keys {
		data[key] = chosen.outputs[name].GetValue()
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      outputsSecretName(update),
			Namespace: update.Namespace,
			Labels: map[string]string{
				autov1alpha1.ComponentLabel:  autov1alpha1.ComponentUpdate,
				autov1alpha1.UpdateNameLabel: shortened(update.Name, validation.LabelValueMaxLength),
			},
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(update, autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind))},
		},
		Immutable: new(true),
		Data:      data,
	}, nil
}

func outputsSecretName(update *autov1alpha1.Update) string {
	return shortened(update.Name, validation.DNS1123SubdomainMaxLength-len(autov1alpha1.OutputsSecretSuffix)) + autov1alpha1.OutputsSecretSuffix
}
