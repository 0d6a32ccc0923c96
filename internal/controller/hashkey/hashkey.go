// Package hashkey keeps the key of the hashes that a status has of secret values: of plans, and of inputs. Whoever may read a status could
// otherwise compare the hashes with those of guessed values.
package hashkey

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/objectname"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// dataKey is the data key in the Secret that has the key.
const dataKey = "key"

// Keys reads and creates the keys.
type Keys struct {
	// APIReader must not be a cache.
	APIReader client.Reader
	// Writer creates Secrets; nil when keys are only read.
	Writer client.Writer
}

// Of returns the key for the hashes of the Workspace, and creates it when there is none; nil if there is none and no Writer. Hashes can be
// compared as long as the key stays. If there is a Stack, the key belongs to the Stack, because its Workspaces may come and go. If the Secret
// lost its owner, as after a deletion of the Stack with --cascade=orphan, another key takes its place, in a Secret whose name has a hash of
// the owner.
func (k Keys) Of(ctx context.Context, workspace *autov1alpha1.Workspace) ([]byte, error) {
	owner := metav1.OwnerReference{
		APIVersion: autov1alpha1.GroupVersion.String(), Kind: autov1alpha1.WorkspaceKind, Name: workspace.Name, UID: workspace.UID,
	}
	if stack := pulumiv1.OwningStack(workspace); stack != nil {
		owner = metav1.OwnerReference{APIVersion: stack.APIVersion, Kind: stack.Kind, Name: stack.Name, UID: stack.UID}
	}
	owner.Controller = new(true)
	secret, err := k.secret(ctx, workspace, autov1alpha1.PlanKeySuffix, owner)
	if err == nil && secret != nil && metav1.GetControllerOf(secret) == nil {
		hash := sha256.Sum256([]byte(owner.UID))
		secret, err = k.secret(ctx, workspace, "-"+hex.EncodeToString(hash[:])[:10]+autov1alpha1.PlanKeySuffix, owner)
	}
	if err != nil || secret == nil {
		return nil, err
	}
	if controller := metav1.GetControllerOf(secret); controller == nil || controller.UID != owner.UID || len(secret.Data[dataKey]) != agentpb.PlanKeySize {
		return nil, fmt.Errorf("secret %q does not belong to %s %q, or has no key: if this persists, delete the secret", secret.Name, owner.Kind, owner.Name)
	}
	return secret.Data[dataKey], nil
}

// secret reads the Secret with the key, or creates it for the owner when it does not exist.
func (k Keys) secret(ctx context.Context, workspace *autov1alpha1.Workspace, suffix string, owner metav1.OwnerReference) (*corev1.Secret, error) {
	name := objectname.Shorten(workspace.Name, validation.DNS1123SubdomainMaxLength-len(suffix)) + suffix
	secret := &corev1.Secret{}
	err := k.APIReader.Get(ctx, types.NamespacedName{Namespace: workspace.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		if k.Writer == nil {
			return nil, nil
		}
		key := make([]byte, agentpb.PlanKeySize)
		// rand.Read never fails.
		_, _ = rand.Read(key)
		secret = &corev1.Secret{
			Name: name, Namespace: workspace.Namespace,
			Labels: map[string]string{
				autov1alpha1.ComponentLabel:     autov1alpha1.ComponentWorkspace,
				autov1alpha1.WorkspaceNameLabel: objectname.Shorten(workspace.Name, validation.LabelValueMaxLength),
			},
			OwnerReferences: []metav1.OwnerReference{owner},
			Immutable:       new(true),
			Data:            map[string][]byte{dataKey: key},
		}
		err = k.Writer.Create(ctx, secret, patch.FieldOwner)
	}
	if err != nil {
		return nil, fmt.Errorf("read or create the secret %q with the key of hashes: %w", name, err)
	}
	return secret, nil
}
