package pod

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

// Secrets are read live: a cache would hold all Secrets of the cluster, and would need the right to list them.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create

// ensureCertificate returns the certificate of the agent, and makes a key pair when there is none.
func (r *Runtime) ensureCertificate(ctx context.Context, workspace *autov1alpha1.Workspace) ([]byte, error) {
	certificate, err := r.certificate(ctx, workspace)
	if !apierrors.IsNotFound(err) {
		return certificate, err
	}
	data, err := credentials.NewKeyPair()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: workspace.Namespace, Name: shape.SecretName(workspace), Labels: shape.Labels(workspace),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
			},
		},
		Type: corev1.SecretTypeTLS,
		Data: data,
	}
	if err := r.options.Client.Create(ctx, secret, client.FieldOwner(fieldOwner)); err != nil {
		return nil, fmt.Errorf("create the Secret %s: %w", secret.Name, err)
	}
	return data[corev1.TLSCertKey], nil
}

// certificate reads the certificate of the agent. The error of a Secret that does not exist satisfies IsNotFound.
func (r *Runtime) certificate(ctx context.Context, workspace *autov1alpha1.Workspace) ([]byte, error) {
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: workspace.Namespace, Name: shape.SecretName(workspace)}
	if err := r.options.Live.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("read the Secret %s: %w", key.Name, err)
	}
	if err := checkOwner(workspace, secret); err != nil {
		return nil, err
	}
	certificate := secret.Data[corev1.TLSCertKey]
	if _, err := credentials.Pinned(certificate); err != nil {
		return nil, &conflictError{message: fmt.Sprintf("the Secret %s has no usable certificate (%v); delete it, and it is made anew", key.Name, err)}
	}
	return certificate, nil
}

// fingerprint identifies a certificate.
func fingerprint(certificate []byte) string {
	sum := sha256.Sum256(certificate)
	return hex.EncodeToString(sum[:8])
}
