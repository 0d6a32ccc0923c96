// Package podspec builds the Kubernetes objects of a Workspace: a StatefulSet with one pod, and the headless Service that gives the pod its
// address. It has pure functions only: nothing here calls an API server.
//
// The init container "bootstrap" copies the agent into the volume "share", the user's init containers follow, and the container "pulumi"
// runs the agent in the user's image. The pod template of the Workspace is a strategic merge patch over that. It cannot remove what the
// system needs, see InvalidError.
//
// Two annotations of the pod template show why a pod is out of date: autov1alpha1.RevisionHashAnnotation is a hash of what the user
// determines, AgentRevisionAnnotation is a hash of what the controller determines. Neither depends on the program, its configuration or the
// values of Secrets, which the agent receives with every operation.
package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// AgentRevisionAnnotation on the pod template of a Workspace is a hash of what the controller determines about the pod, such as the agent's
// image and flags. A pod with another value still works. It is replaced when that interrupts no operation.
const AgentRevisionAnnotation = "auto.pulumi.com/agent-revision"

// Settings are what the controller determines about the pods of Workspaces.
type Settings struct {
	// AgentImage is the image of the agent; its entrypoint is the agent. Required.
	AgentImage string
	// AgentImagePullPolicy is the pull policy of the agent's image. If it is empty, the API server chooses it.
	AgentImagePullPolicy corev1.PullPolicy
	// AgentVolume makes the agent run from an image volume in pods without init containers of their own. Every node then needs Kubernetes 1.35
	// or later and a container runtime with image volumes.
	AgentVolume bool
	// AgentArgs are more flags of "agent serve", for example its limits.
	AgentArgs []string
	// Controller is the user name by which the API server knows the controller: "system:serviceaccount:NAMESPACE:NAME".
	Controller string
	// TokenAudience is the audience of the tokens with which the controller calls the agent of this Workspace.
	TokenAudience string
	// DefaultServiceAccount is the service account of a pod whose Workspace names none; "default" when empty.
	DefaultServiceAccount string
	// SecretHash identifies the key pair in the Secret SecretName. Another key pair changes AgentRevision.
	SecretHash string
}

// Objects are the objects of a Workspace. They have their type, their owner, and only fields that the controller wants to own, so that they
// can be applied as they are, see ApplyConfiguration.
type Objects struct {
	// StatefulSet runs the pod.
	StatefulSet *appsv1.StatefulSet
	// Service is headless and gives the pod its address.
	Service *corev1.Service
	// RevisionHash is the annotation autov1alpha1.RevisionHashAnnotation of a pod that has the inputs that the user wants.
	RevisionHash string
	// AgentRevision is the annotation AgentRevisionAnnotation of a pod that has the agent of this controller.
	AgentRevision string
}

// Build returns the objects of the Workspace. The same arguments always give the same objects. The error is an *InvalidError: only an edit
// of the Workspace helps.
func Build(workspace *autov1alpha1.Workspace, settings Settings) (*Objects, error) {
	if workspace.Spec.ServiceAccountName == "" {
		// The default counts as if the user had set it: when it changes, no operation starts with the identity of the former default.
		workspace = workspace.DeepCopy()
		workspace.Spec.ServiceAccountName = settings.DefaultServiceAccount
	}
	template, err := podTemplate(workspace, settings)
	if err != nil {
		return nil, err
	}
	objects := &Objects{Service: service(workspace)}
	if objects.RevisionHash, err = revisionHash(workspace); err != nil {
		return nil, err
	}
	if objects.AgentRevision, err = agentRevision(workspace, settings); err != nil {
		return nil, err
	}
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, autov1alpha1.RevisionHashAnnotation, objects.RevisionHash)
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, AgentRevisionAnnotation, objects.AgentRevision)
	objects.StatefulSet = statefulSet(workspace, template)
	return objects, nil
}

// statefulSet returns the StatefulSet, which runs one pod from the template. The StatefulSet controller never replaces the pod on an
// update, because an operation may be running in it.
func statefulSet(workspace *autov1alpha1.Workspace, template corev1.PodTemplateSpec) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet",
		ObjectMeta: objectMeta(workspace, autov1alpha1.EmbeddedObjectMeta{}),
		Spec: appsv1.StatefulSetSpec{
			Replicas:    ptr.To[int32](1),
			ServiceName: ObjectName(workspace),
			Selector:    &metav1.LabelSelector{MatchLabels: Selector(workspace)},
			Template:    template,
			// With OrderedReady, a pod that never became ready would prevent its successor.
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			RevisionHistoryLimit: ptr.To[int32](1),
		},
	}
}

// service returns the Service, which gives the pod its address.
func service(workspace *autov1alpha1.Workspace) *corev1.Service {
	return &corev1.Service{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Service",
		ObjectMeta: objectMeta(workspace, ptr.Deref(workspace.Spec.ServiceTemplate, autov1alpha1.EmbeddedServiceTemplateSpec{}).Metadata),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  Selector(workspace),
			Ports: []corev1.ServicePort{{
				Name: servicePortName, Protocol: corev1.ProtocolTCP, Port: Port, TargetPort: intstr.FromInt32(Port),
			}},
		},
	}
}

// objectMeta returns the metadata of an object of the Workspace, with the user's additions.
func objectMeta(workspace *autov1alpha1.Workspace, custom autov1alpha1.EmbeddedObjectMeta) metav1.ObjectMeta {
	meta := templateMeta(workspace, custom)
	meta.Name = ObjectName(workspace)
	meta.Namespace = workspace.Namespace
	meta.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
	}
	return meta
}

// templateMeta returns labels and annotations: those of the user, overridden by those that identify the object.
func templateMeta(workspace *autov1alpha1.Workspace, custom autov1alpha1.EmbeddedObjectMeta) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	maps.Copy(meta.Labels, custom.Labels)
	maps.Copy(meta.Labels, Labels(workspace))
	maps.Copy(meta.Annotations, custom.Annotations)
	meta.Annotations[WorkspaceNameAnnotation] = workspace.Name
	return meta
}

// userInputs is everything about the pod that the user determines. Other settings reach the agent with every operation.
type userInputs struct {
	ServiceAccountName string                                `json:"serviceAccountName"`
	SecurityProfile    autov1alpha1.SecurityProfile          `json:"securityProfile"`
	Image              string                                `json:"image,omitempty"`
	ImagePullPolicy    corev1.PullPolicy                     `json:"imagePullPolicy,omitempty"`
	EnvFrom            []corev1.EnvFromSource                `json:"envFrom,omitempty"`
	Env                []corev1.EnvVar                       `json:"env,omitempty"`
	Resources          corev1.ResourceRequirements           `json:"resources,omitzero"`
	PodTemplate        *autov1alpha1.EmbeddedPodTemplateSpec `json:"podTemplate,omitempty"`
	CloudAudience      string                                `json:"cloudAudience,omitempty"`
}

// revisionHash returns a hash of what the user determines about the pod.
func revisionHash(workspace *autov1alpha1.Workspace) (string, error) {
	return hashOf(userInputs{
		ServiceAccountName: workspace.GetServiceAccountName(),
		SecurityProfile:    workspace.GetSecurityProfile(),
		Image:              workspace.Spec.Image,
		ImagePullPolicy:    workspace.Spec.ImagePullPolicy,
		EnvFrom:            workspace.Spec.EnvFrom,
		Env:                workspace.Spec.Env,
		Resources:          workspace.Spec.Resources,
		PodTemplate:        workspace.Spec.PodTemplate,
		CloudAudience:      workspace.Spec.PulumiCloud.Audience(),
	})
}

// agentRevision returns a hash of the pods that the controller generates for a Workspace without any settings of the user, under each
// security profile, of what it adds to a container of the user, and of the key pair of the agent. An edit by the user therefore does not
// change the hash, but another version or setting of the controller, or another key pair, does.
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

// ShortHash returns 16 hexadecimal digits that identify the content.
func ShortHash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// hashOf returns the hash of the content in JSON.
func hashOf(content any) (string, error) {
	encoded, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("encode what a pod is made of: %w", err)
	}
	return ShortHash(encoded), nil
}

// ApplyConfiguration returns the object, whose type must be set, for a server-side apply. It removes the status, which a typed object
// always has, but only the API server writes.
func ApplyConfiguration(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	configuration := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(configuration.Object, "status")
	return configuration, nil
}
