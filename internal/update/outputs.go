package update

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
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

// notKeyCharacter is what must not be in a key of a Secret.
var notKeyCharacter = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// hasOutputs tells whether the operation leaves outputs that are kept. A preview has none that came true, a destroyed stack
// has none any more.
func hasOutputs(operation *proto.Operation) bool {
	kind := operation.GetKind()
	return operation.GetState() == proto.OperationState_OPERATION_STATE_SUCCEEDED && len(operation.GetOutputs()) > 0 &&
		(kind == proto.OperationKind_OPERATION_KIND_UP || kind == proto.OperationKind_OPERATION_KIND_REFRESH)
}

// storeOutputs puts the outputs into the Secret of the Update. What the API server will never accept does not turn a good
// operation into a failed one: then problem says why there is no Secret. Doing it twice changes nothing.
func (r *Reconciler) storeOutputs(ctx context.Context, update *autov1alpha1.Update, operation *proto.Operation) (problem string, err error) {
	secret, size, err := outputsSecret(update, operation.GetOutputs())
	if err != nil {
		return "", err
	}
	if size > corev1.MaxSecretSize {
		return fmt.Sprintf("the outputs are not stored: they have %d bytes, a Secret holds at most %d", size, corev1.MaxSecretSize), nil
	}
	err = r.client.Create(ctx, secret, ctrlclient.FieldOwner(fieldOwner))
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsAlreadyExists(err):
		return r.checkOutputs(ctx, update, secret.Name)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsBadRequest(err):
		return "the outputs are not stored: " + err.Error(), nil
	}
	return "", fmt.Errorf("store the outputs: %w", err)
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

// outputsSecret builds the Secret; size is what counts against its limit, in bytes.
func outputsSecret(update *autov1alpha1.Update, outputs map[string]*proto.Output) (secret *corev1.Secret, size int, err error) {
	keys := outputKeys(slices.Collect(maps.Keys(outputs)))
	data := make(map[string][]byte, len(outputs))
	secretKeys := []string{}
	for name, output := range outputs {
		data[keys[name]] = output.GetValue()
		size += len(output.GetValue())
		if output.GetSecret() {
			secretKeys = append(secretKeys, keys[name])
		}
	}
	slices.Sort(secretKeys)
	list, err := json.Marshal(secretKeys)
	if err != nil {
		return nil, 0, fmt.Errorf("encode the names of secret outputs: %w", err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      outputsSecretName(update),
			Namespace: update.Namespace,
			Labels: map[string]string{
				autov1alpha1.ComponentLabel:  autov1alpha1.ComponentUpdate,
				autov1alpha1.UpdateNameLabel: shortened(update.Name, validation.LabelValueMaxLength),
			},
			Annotations:     map[string]string{autov1alpha1.SecretOutputsAnnotation: string(list)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(update, autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind))},
		},
		Immutable: new(true),
		Data:      data,
	}, size, nil
}

func outputsSecretName(update *autov1alpha1.Update) string {
	return shortened(update.Name, validation.DNS1123SubdomainMaxLength-len(autov1alpha1.OutputsSecretSuffix)) + autov1alpha1.OutputsSecretSuffix
}

// outputKeys gives every output a key of its own in a Secret. A name that is a valid key stays as it is; another one has its
// other characters replaced, and ends with a part of its hash where that is somebody else's key already. The result depends
// on the names only.
func outputKeys(names []string) map[string]string {
	keys := make(map[string]string, len(names))
	taken := make(map[string]bool, len(names))
	slices.Sort(names)
	// Valid names first, for nobody else may take those.
	for _, name := range names {
		if len(validation.IsConfigMapKey(name)) == 0 {
			keys[name], taken[name] = name, true
		}
	}
	// Then names that several outputs would have: none of them gets it.
	wanted := map[string]int{}
	for _, name := range names {
		if _, done := keys[name]; !done {
			wanted[cleaned(name)]++
		}
	}
	for _, name := range names {
		if _, done := keys[name]; done {
			continue
		}
		key := cleaned(name)
		if wanted[key] > 1 {
			key = hashed(name, key, validation.DNS1123SubdomainMaxLength)
		}
		for taken[key] {
			key = hashed(name+key, key, validation.DNS1123SubdomainMaxLength)
		}
		keys[name], taken[key] = key, true
	}
	return keys
}

// cleaned makes a valid key of any name.
func cleaned(name string) string {
	key := notKeyCharacter.ReplaceAllString(name, "_")
	if rest := strings.TrimLeft(key, "."); rest != key && (rest == "" || strings.HasPrefix(key, "..")) {
		key = strings.Repeat("_", len(key)-len(rest)) + rest
	}
	if key == "" {
		key = "_"
	}
	return shortened(key, validation.DNS1123SubdomainMaxLength)
}

// shortened returns text of at most limit characters; what is cut off is replaced by a hash, so that different texts stay
// different.
func shortened(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return hashed(text, text, limit)
}

// hashed returns prefix with a hash of text at its end, at most limit characters.
func hashed(text, prefix string, limit int) string {
	sum := sha256.Sum256([]byte(text))
	suffix := "-" + hex.EncodeToString(sum[:8])
	// A name must not have a dot or a dash before the dash.
	return strings.TrimRight(prefix[:min(len(prefix), limit-len(suffix))], ".-") + suffix
}
