package inputs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/stackoutputs"
)

// ofStack is the kind of the keys that stand for the outputs of a Stack.
const ofStack references.Kind = "Stack"

// Denied returns a *DeniedError unless the Stack, nil when it does not exist, shares the output with the namespace. If Stacks of other
// namespaces are asked for, the error is the same whether there is such a Stack, and such an output, or not.
func Denied(stack *pulumiv1.Stack, namespace string, from *autov1alpha1.StackOutput, secret bool) error {
	name := from.Of(namespace)
	if name.Namespace == namespace || stack != nil && stack.SharesOutput(namespace, from.Output, secret) {
		return nil
	}
	what := ""
	if secret && stack != nil && stack.SharesOutput(namespace, from.Output, false) {
		what = ", which is secret or has a secret part,"
	}
	return &DeniedError{fmt.Sprintf("Stack %s does not share output %q%s with namespace %s: its owner can permit it in spec.shareOutputs",
		name, from.Output, what, namespace)}
}

// output returns the JSON of an output, and whether it is secret.
func (r *Reader) output(ctx context.Context, from *autov1alpha1.StackOutput, usedBy string) (value []byte, secret bool, err error) {
	name := from.Of(r.Namespace)
	if !r.Scope.Reaches(r.Namespace, name.Namespace) {
		return nil, false, &DeniedError{fmt.Sprintf("%s uses Stack %s: references to another namespace are not allowed", usedBy, name)}
	}
	stack, err := r.Stacks(ctx, name)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, false, err
	}
	if err := Denied(stack, r.Namespace, from, false); err != nil {
		return nil, false, err
	}
	missing := &MissingError{Kind: ofStack, Name: name.Name, UsedBy: usedBy, OfInput: true}
	r.keep(VersionOfOutputs(r.Namespace, name, stack))
	if stack == nil {
		return nil, false, missing
	}
	table, problem, err := r.table(ctx, name, stack)
	if err != nil {
		return nil, false, err
	}
	if problem != "" {
		missing.problem, missing.NotStored = problem, willStoreOutputs(stack)
		return nil, false, missing
	}
	if secret = table.Secret[from.Output]; secret {
		if err := Denied(stack, r.Namespace, from, true); err != nil {
			return nil, false, err
		}
	}
	value, err = table.Value(from.Output, from.Path)
	missing.Key = from.Output
	_, isMissing := errors.AsType[*stackoutputs.NotFoundError](err)
	_, isUnknown := errors.AsType[*stackoutputs.UnknownError](err)
	switch {
	case isMissing, isUnknown:
		missing.problem, missing.NotStored = err.Error(), isUnknown
		return nil, false, missing
	case err != nil:
		return nil, false, Invalidf("%s: %s", usedBy, err)
	case bytes.Equal(value, []byte("null")):
		missing.problem = "it is null"
		return nil, false, missing
	}
	return value, secret, nil
}

// willStoreOutputs reports whether a Stack whose outputs are not stored has some, or is about to have some. Nothing would end a wait for a
// Stack that only previews, and one that is being deleted has no outputs soon.
func willStoreOutputs(stack *pulumiv1.Stack) bool {
	return stack.DeletionTimestamp.IsZero() && (stack.Status.Deployed || !stack.IsPreview())
}

// table returns the outputs of the Stack, or why they are not stored.
func (r *Reader) table(ctx context.Context, name types.NamespacedName, stack *pulumiv1.Stack) (table *stackoutputs.Table, problem string, err error) {
	if table, known := r.outputs[name]; known {
		return table, "", nil
	}
	switch {
	case stack.Status.StoredOutputs == nil:
		return nil, "it has no stored outputs: they are stored by its next update", nil
	case len(r.objects)+len(r.outputs) >= references.MaxObjects:
		return nil, "", Invalidf("the operation uses more than %d objects: use fewer", references.MaxObjects)
	}
	secret := &corev1.Secret{}
	if stored := stack.Status.StoredOutputs; stored.Secret != "" {
		if secret, err = r.storedSecret(ctx, name, stored); err != nil {
			return nil, "", err
		}
		if secret == nil {
			return nil, fmt.Sprintf("secret %q with its outputs is gone: they are stored by its next update", stored.Secret), nil
		}
	}
	if err := r.hold(len(secret.Data), sizeOf(secret.Data), fmt.Sprintf("the one with the outputs of Stack %s", name)); err != nil {
		return nil, "", err
	}
	if r.outputs == nil {
		r.outputs = map[types.NamespacedName]*stackoutputs.Table{}
	}
	r.outputs[name] = stackoutputs.NewTable(secret)
	return r.outputs[name], "", nil
}

// storedSecret returns the Secret with the outputs of the Stack with the name, nil when it is gone.
func (r *Reader) storedSecret(ctx context.Context, stack types.NamespacedName, stored *pulumiv1.StoredOutputs) (*corev1.Secret, error) {
	key := storedKey{types.NamespacedName{Namespace: stack.Namespace, Name: stored.Secret}, stored.UID}
	if secret := r.Stored.get(key); secret != nil {
		return secret, nil
	}
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, key.secret, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the outputs of Stack %s: %w", stack, err)
	}
	// Whoever may create Secrets can give one the name of another.
	if owner := metav1.GetControllerOf(secret); err != nil || owner == nil || owner.UID != stored.UID {
		return nil, nil
	}
	r.Stored.keep(key, secret)
	return secret, nil
}

// VersionOfOutputs returns the version of the outputs of a Stack, nil when it does not exist, as a namespace sees it. Another version says
// that the outputs may be others, or may be used or not.
func VersionOfOutputs(namespace string, name types.NamespacedName, stack *pulumiv1.Stack) references.Version {
	identity := &metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}
	if stack != nil {
		identity.UID = stack.UID
		if stored := stack.Status.StoredOutputs; stored != nil {
			identity.ResourceVersion = string(stored.UID)
		}
		if name.Namespace != namespace {
			shared, _ := json.Marshal(stack.Spec.ShareOutputs) // it has only texts
			sum := sha256.Sum256(shared)
			identity.ResourceVersion += hex.EncodeToString(sum[:])
		}
	}
	return references.VersionOf(ofStack, identity)
}
