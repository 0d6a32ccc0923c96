package update

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/objectname"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// maxOutputsAnnotations bounds, in bytes, the annotations about the outputs that are stored, and maxOmittedAnnotation each of the two
	// annotations about the others. An object has at most 256 KiB of annotations.
	maxOutputsAnnotations = 160 << 10
	maxOmittedAnnotation  = 32 << 10
	// secretMask is shown in place of the value of an output, as JSON.
	secretMask = `"` + pulumiv1.SecretOutputMask + `"`
	// namedOutputs is how many of the omitted outputs a message names, and nameLength how many bytes of each name.
	namedOutputs = 5
	nameLength   = 64
)

var (
	// errLeftoverOutputs reports that the Secret of an earlier Update of the same name still exists. The garbage collector removes it.
	errLeftoverOutputs = errors.New("the outputs of an earlier update of the same name are not removed yet")
	// errForeignOutputs reports that a Secret of the same name exists that somebody else has made. Nothing removes it.
	errForeignOutputs = errors.New("it is not overwritten")
)

// storedOutputs is how an attempt to store the outputs of an operation ended.
type storedOutputs struct {
	// tried is false as long as there was none.
	tried bool
	// secret is the name of the Secret. omitted says which outputs are not in it, and why; it is empty when all are.
	secret, omitted string
	// err is why there is no Secret.
	err error
}

// mayHaveOutputs reports whether the outputs of the operation are kept, if it has any. The outputs of a preview are not real, and a stack
// that was destroyed has none any longer.
func mayHaveOutputs(operation *agentpb.Operation) bool {
	kind := operation.GetKind().Unplanned()
	return operation.GetState() == agentpb.OperationState_OPERATION_STATE_SUCCEEDED &&
		(kind == agentpb.OperationKind_OPERATION_KIND_UP || kind == agentpb.OperationKind_OPERATION_KIND_REFRESH)
}

func hasOutputs(operation *agentpb.Operation) bool {
	return mayHaveOutputs(operation) && len(operation.GetOutputs()) > 0
}

// storeOutputs puts as many outputs as fit into the Secret of the Update. Storing twice changes nothing: the Secret is immutable, so a Secret
// of this very Update has its outputs.
func (r *Reconciler) storeOutputs(ctx context.Context, update *autov1alpha1.Update, operation *agentpb.Operation) storedOutputs {
	chosen := chooseOutputs(operation.GetOutputs())
	secret, err := outputsSecret(update, chosen)
	if err == nil {
		err = r.createOutputs(ctx, update, secret)
	}
	if err != nil {
		return storedOutputs{tried: true, err: err}
	}
	r.RecentOutputs.add(update, secret)
	return storedOutputs{tried: true, secret: secret.Name, omitted: chosen.problem(secret.Name)}
}

// createOutputs creates the Secret with the outputs, unless an earlier attempt has. The error is errForeignOutputs if the Secret is somebody
// else's; after any other error, another attempt may succeed.
func (r *Reconciler) createOutputs(ctx context.Context, update *autov1alpha1.Update, secret *corev1.Secret) error {
	err := r.Create(ctx, secret, patch.FieldOwner)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	owner, err := r.ownerOf(ctx, update.Namespace, secret.Name)
	switch {
	case err != nil:
		return err
	case owner.UID == update.UID:
		// An earlier attempt stored it, or somebody who may create Secrets was faster.
		same, err := r.isStored(ctx, update, secret)
		if err != nil || same {
			return err
		}
		return fmt.Errorf("secret %q exists and has other content: %w", secret.Name, errForeignOutputs)
	case owner.Kind == autov1alpha1.UpdateKind && owner.Name == update.Name:
		return errLeftoverOutputs
	}
	return fmt.Errorf("secret %q exists and does not belong to this update: %w", secret.Name, errForeignOutputs)
}

// ownerOf returns the controller reference of an existing Secret. It reads only the metadata, and not the outputs.
func (r *Reconciler) ownerOf(ctx context.Context, namespace, name string) (metav1.OwnerReference, error) {
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.APIReader.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, existing)
	if apierrors.IsNotFound(err) {
		// The Secret was just removed, so the next attempt can create it.
		return metav1.OwnerReference{}, errLeftoverOutputs
	}
	if err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("look at the stored outputs: %w", err)
	}
	return ptr.Deref(metav1.GetControllerOf(existing), metav1.OwnerReference{}), nil
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
	name := objectname.Shorten(update.Name, validation.DNS1123SubdomainMaxLength-len(autov1alpha1.OutputsSecretSuffix)) + autov1alpha1.OutputsSecretSuffix
	secret := secretOf(update, name, data)
	secret.Annotations = annotations
	return secret, nil
}

// secretOf returns a Secret with data of the Update. The garbage collector deletes it after the Update, which is deleted by expire
// (finalize.go) or by its Stack (pruneUpdates in internal/controller/stack).
func secretOf(update *autov1alpha1.Update, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		Name:      name,
		Namespace: update.Namespace,
		Labels: map[string]string{
			autov1alpha1.ComponentLabel:  autov1alpha1.ComponentUpdate,
			autov1alpha1.UpdateNameLabel: objectname.Shorten(update.Name, validation.LabelValueMaxLength),
		},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(update, autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind))},
		Immutable:       new(true),
		Data:            data,
	}
}

// outputChoice is which outputs of a stack a Secret holds.
type outputChoice struct {
	outputs map[string]*agentpb.Output
	// keys maps the name of each output that the Secret holds to its key in the Secret.
	keys map[string]string
	// omitted are the names of the outputs that do not fit, and unknown the names of those whose values Pulumi does not know, sorted.
	omitted, unknown []string
}

// chooseOutputs chooses the outputs that fit into a Secret, the smallest first, so that few outputs are omitted, and the same each time.
func chooseOutputs(outputs map[string]*agentpb.Output) *outputChoice {
	chosen := &outputChoice{outputs: outputs, keys: outputKeys(slices.Collect(maps.Keys(outputs)))}
	names := slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(outputs[a].GetValue()), len(outputs[b].GetValue())), strings.Compare(a, b))
	})
	size, described := 0, 0
	for _, name := range names {
		output, key := outputs[name], chosen.keys[name]
		needs, description := len(key)+len(output.GetValue()), descriptionSize(name, key, output)
		if output.GetUnknown() {
			delete(chosen.keys, name)
			chosen.unknown = append(chosen.unknown, name)
			continue
		}
		if output.GetOmitted() || size+needs > corev1.MaxSecretSize || described+description > maxOutputsAnnotations {
			delete(chosen.keys, name)
			chosen.omitted = append(chosen.omitted, name)
			continue
		}
		size, described = size+needs, described+description
	}
	slices.Sort(chosen.omitted)
	slices.Sort(chosen.unknown)
	return chosen
}

// descriptionSize returns how many bytes the annotations need for an output at most.
func descriptionSize(name, key string, output *agentpb.Output) int {
	const punctuation = len(`"":"",`)
	size := 0
	if shown := len(output.GetShown()); shown > 0 {
		size += len(key) + max(shown, len(secretMask)) + punctuation
	}
	if output.GetSecret() {
		size += len(key) + punctuation
	}
	if name != key {
		// As JSON, a character has at most six times its length.
		size += len(key) + 6*len(name) + punctuation
	}
	return size
}

// annotations describe what the keys of the Secret do not: which outputs are secret, what to show of those with secret parts, the names that are not valid keys, and the names of
// the omitted outputs and of the unknown ones, as far as they fit into maxOmittedAnnotation.
func (c *outputChoice) annotations() (map[string]string, error) {
	secret, names, shown := []string{}, map[string]string{}, map[string]json.RawMessage{}
	for name, key := range c.keys {
		if c.outputs[name].GetSecret() {
			secret = append(secret, key)
		}
		if name != key {
			names[key] = name
		}
		switch text := c.outputs[name].GetShown(); {
		case len(text) == 0:
		case json.Valid(text):
			shown[key] = text
		default:
			shown[key] = json.RawMessage(secretMask)
		}
	}
	slices.Sort(secret)
	values := map[string]any{autov1alpha1.SecretOutputsAnnotation: secret}
	if len(shown) > 0 {
		values[autov1alpha1.ShownOutputsAnnotation] = shown
	}
	if len(names) > 0 {
		values[autov1alpha1.OutputNamesAnnotation] = names
	}
	for annotation, list := range map[string][]string{autov1alpha1.OmittedOutputsAnnotation: c.omitted, autov1alpha1.UnknownOutputsAnnotation: c.unknown} {
		if len(list) > 0 {
			values[annotation] = fitting(list)
		}
	}
	annotations := map[string]string{}
	for annotation, value := range values {
		encoded, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode the names of outputs: %w", err)
		}
		annotations[annotation] = string(encoded)
	}
	return annotations, nil
}

// fitting returns the first of the names that fit into maxOmittedAnnotation together.
func fitting(names []string) []string {
	size := 0
	for i, name := range names {
		if size += descriptionSize(name, "", nil); size > maxOmittedAnnotation {
			return names[:i]
		}
	}
	return names
}

// problem says which outputs are not in the Secret; empty when all are.
func (c *outputChoice) problem(secret string) string {
	if len(c.omitted) == 0 {
		return ""
	}
	var names []string
	for _, name := range c.omitted[:min(len(c.omitted), namedOutputs)] {
		names = append(names, fmt.Sprintf("%q", name[:min(len(name), nameLength)]))
	}
	if more := len(c.omitted) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d of %d outputs are not stored, because secret %q cannot hold more than %d bytes: %s",
		len(c.omitted), len(c.outputs), secret, corev1.MaxSecretSize, strings.Join(names, ", "))
}

// notKeyCharacter matches a character that a key of a Secret must not have.
var notKeyCharacter = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// outputKeys gives each output a key of its own in a Secret. A name that is a valid key is its own key. In any other name, the invalid
// characters are replaced, and a part of its hash is added if another output has that key. The result depends on the names only.
func outputKeys(names []string) map[string]string {
	keys, taken, wanted := map[string]string{}, map[string]bool{}, map[string]int{}
	// Valid names come first, because no other output may take them. If several of the other names lead to the same key, none of them gets it.
	var invalid []string
	for _, name := range names {
		if key := cleaned(name); key != name {
			invalid = append(invalid, name)
			wanted[key]++
			continue
		}
		keys[name], taken[name] = name, true
	}
	slices.Sort(invalid)
	for _, name := range invalid {
		key := cleaned(name)
		if wanted[key] > 1 {
			key = objectname.WithHash(name, key, validation.DNS1123SubdomainMaxLength)
		}
		for taken[key] {
			key = objectname.WithHash(name+key, key, validation.DNS1123SubdomainMaxLength)
		}
		keys[name], taken[key] = key, true
	}
	return keys
}

// cleaned makes a valid key of any name; a valid name stays as it is.
func cleaned(name string) string {
	key := notKeyCharacter.ReplaceAllString(name, "_")
	if rest := strings.TrimLeft(key, "."); rest != key && (rest == "" || strings.HasPrefix(key, "..")) {
		key = strings.Repeat("_", len(key)-len(rest)) + rest
	}
	if key == "" {
		key = "_"
	}
	return objectname.Shorten(key, validation.DNS1123SubdomainMaxLength)
}
