// Package podspec says what the Kubernetes objects of a Workspace look like: one StatefulSet with one pod, and the headless
// Service that gives the pod its address. It is made of pure functions; nothing here talks to an API server.
//
// The init container "bootstrap" brings the agent into the volume "share", the user's init containers follow, and the
// container "pulumi" runs the agent in the user's image. The pod template of the Workspace is a strategic merge patch over
// that; what the system needs cannot be patched away, see InvalidError.
//
// Two annotations of the pod template show why a pod is out of date: autov1alpha1.RevisionHashAnnotation is a hash of what the user
// determines, AgentRevisionAnnotation one of what the controller determines. Neither depends on the program, its
// configuration or the values of Secrets, which reach the agent with every operation.
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

// AgentRevisionAnnotation is on the pod template of a Workspace: a hash of what the controller determines about the pod, such as
// the agent's image and flags. A pod with another value works, and is replaced when that disturbs nobody.
const AgentRevisionAnnotation = "auto.pulumi.com/agent-revision"

// Settings are what the controller determines about the pods of Workspaces.
type Settings struct {
	// AgentImage is the image of the agent; its entrypoint is the agent. Required.
	AgentImage string
	// AgentImagePullPolicy of the agent's image; empty leaves it to the API server.
	AgentImagePullPolicy corev1.PullPolicy
	// AgentVolume has the agent run from a volume that is its image, where a pod has no init containers of its own. Kubernetes 1.35 or
	// later and a container runtime with image volumes are needed on every node.
	AgentVolume bool
	// AgentArgs are more flags of "agent serve", for example its limits.
	AgentArgs []string
	// Controller is the user name by which the API server knows the controller: "system:serviceaccount:NAMESPACE:NAME".
	Controller string
	// TokenAudience is the audience of the tokens with which the controller calls the agent of this Workspace.
	TokenAudience string
	// DefaultServiceAccount is the service account of a pod whose Workspace names none; "default" when empty.
	DefaultServiceAccount string
	// SecretHash identifies the key pair in the Secret SecretName; another one makes another AgentRevision.
	SecretHash string
}

// Objects are what is made for a Workspace. They have their type, their owner and only fields that the controller means to
// own, so that they can be applied as they are, see ApplyConfiguration.
type Objects struct {
	// StatefulSet runs the pod.
	StatefulSet *appsv1.StatefulSet
	// Service is headless and gives the pod its address.
	Service *corev1.Service
	// RevisionHash is what a pod that is what the user wants has in its annotation autov1alpha1.RevisionHashAnnotation.
	RevisionHash string
	// AgentRevision is what a pod that is up to date has in its annotation AgentRevisionAnnotation.
	AgentRevision string
}

// Build returns the objects of the Workspace, the same for the same arguments. Its error is an *InvalidError: only an edit of
// the Workspace helps.
func Build(workspace *autov1alpha1.Workspace, settings Settings) (*Objects, error) {
	if workspace.Spec.ServiceAccountName == "" {
		// As if the user had named it: no operation starts with an identity that is not the default any more.
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

// statefulSet runs one pod from the template. The pod is never replaced by the StatefulSet controller itself: an operation
// may be running in it.
func statefulSet(workspace *autov1alpha1.Workspace, template corev1.PodTemplateSpec) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet"},
		ObjectMeta: objectMeta(workspace, autov1alpha1.EmbeddedObjectMeta{}),
		Spec: appsv1.StatefulSetSpec{
			Replicas:    ptr.To[int32](1),
			ServiceName: ObjectName(workspace),
			Selector:    &metav1.LabelSelector{MatchLabels: Selector(workspace)},
			Template:    template,
			// A pod that never became ready must not keep its successor away.
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			RevisionHistoryLimit: ptr.To[int32](1),
		},
	}
}

// service gives the pod its address.
func service(workspace *autov1alpha1.Workspace) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Service"},
		ObjectMeta: objectMeta(workspace, ptr.Deref(workspace.Spec.ServiceTemplate, autov1alpha1.EmbeddedServiceTemplateSpec{}).Metadata),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  Selector(workspace),
			Ports: []corev1.ServicePort{{
				Name: portName, Protocol: corev1.ProtocolTCP, Port: Port, TargetPort: intstr.FromInt32(Port),
			}},
		},
	}
}

// objectMeta is the metadata of an object of the Workspace, with what the user adds to it.
func objectMeta(workspace *autov1alpha1.Workspace, custom autov1alpha1.EmbeddedObjectMeta) metav1.ObjectMeta {
	meta := templateMeta(workspace, custom)
	meta.Name = ObjectName(workspace)
	meta.Namespace = workspace.Namespace
	meta.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
	}
	return meta
}

// templateMeta is labels and annotations: the user's, and over them those by which objects are found.
func templateMeta(workspace *autov1alpha1.Workspace, custom autov1alpha1.EmbeddedObjectMeta) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Labels: map[string]string{}, Annotations: map[string]string{}}
	maps.Copy(meta.Labels, custom.Labels)
	maps.Copy(meta.Labels, Labels(workspace))
	maps.Copy(meta.Annotations, custom.Annotations)
	meta.Annotations[WorkspaceNameAnnotation] = workspace.Name
	return meta
}

// userInputs is all that the user determines about the pod. What is not in it reaches the agent with every operation.
type userInputs struct {
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
	return hashOf(userInputs{
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
// profile, and what it does to a container of the user. So an edit of the user does not change it, but another version or
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

// ApplyConfiguration returns the object, whose type must be set, for a server-side apply: without the status that a typed
// object always has, but that only the API server writes.
func ApplyConfiguration(object runtime.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	configuration := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(configuration.Object, "status")
	return configuration, nil
}
