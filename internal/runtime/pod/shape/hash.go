package shape

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// wishes is all that the user determines about the pod. What is not in it reaches the agent with every operation.
type wishes struct {
	ServiceAccountName string                                `json:"serviceAccountName"`
	SecurityProfile    autov1alpha1.SecurityProfile          `json:"securityProfile"`
	Image              string                                `json:"image,omitempty"`
	ImagePullPolicy    corev1.PullPolicy                     `json:"imagePullPolicy,omitempty"`
	EnvFrom            []corev1.EnvFromSource                `json:"envFrom,omitempty"`
	Env                []corev1.EnvVar                       `json:"env,omitempty"`
	Resources          corev1.ResourceRequirements           `json:"resources,omitzero"`
	PodTemplate        *autov1alpha1.EmbeddedPodTemplateSpec `json:"podTemplate,omitempty"`
}

// revisionHash identifies what the user wants of the pod.
func revisionHash(workspace *autov1alpha1.Workspace) (string, error) {
	return hashOf(wishes{
		ServiceAccountName: workspace.GetServiceAccountName(),
		SecurityProfile:    workspace.GetSecurityProfile(),
		Image:              workspace.Spec.Image,
		ImagePullPolicy:    workspace.Spec.ImagePullPolicy,
		EnvFrom:            workspace.Spec.EnvFrom,
		Env:                workspace.Spec.Env,
		Resources:          workspace.Spec.Resources,
		PodTemplate:        workspace.Spec.PodTemplate,
	})
}

// agentRevision identifies what the controller makes of a Workspace whose user wants nothing in particular, under each
// profile, and what it does to a container of the user. So a wish of the user does not change it, but another version or
// setting of the controller does.
func agentRevision(workspace *autov1alpha1.Workspace, settings Settings) (string, error) {
	made := []any{settings.SecretHash}
	for _, profile := range []autov1alpha1.SecurityProfile{autov1alpha1.SecurityProfileRestricted, autov1alpha1.SecurityProfileBaseline} {
		plain := &autov1alpha1.Workspace{}
		plain.Namespace, plain.Name, plain.Spec.SecurityProfile = workspace.Namespace, workspace.Name, profile
		spec := generated(plain, settings)
		spec.Containers = append(spec.Containers, corev1.Container{})
		complete(&spec, plain, settings)
		made = append(made, templateMeta(plain, autov1alpha1.EmbeddedObjectMeta{}), spec)
	}
	return hashOf(made)
}

// hashOf returns 16 hexadecimal digits.
func hashOf(content any) (string, error) {
	encoded, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("encode what a pod is made of: %w", err)
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:8]), nil
}
