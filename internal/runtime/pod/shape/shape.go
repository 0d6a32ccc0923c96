// Package shape says what the Kubernetes objects of a Workspace look like: one StatefulSet with one pod, and the headless
// Service that gives the pod its address. It is made of pure functions; nothing here talks to an API server.
//
// The init container "bootstrap" brings the agent into the volume "share", the user's init containers follow, and the
// container "pulumi" runs the agent in the user's image. The pod template of the Workspace is a strategic merge patch over
// that; what the system needs cannot be patched away, see InvalidError.
//
// Two annotations of the pod template tell why a pod is out of date: autov1alpha1.RevisionHashAnnotation is a hash of what the user
// determines, AgentRevisionAnnotation one of what the controller determines. Neither depends on the program, its
// configuration or the values of Secrets, which reach the agent with every operation.
package shape

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// AgentArgs are more flags of "agent serve", for example its limits.
	AgentArgs []string
	// Controller is the user name by which the API server knows the controller: "system:serviceaccount:NAMESPACE:NAME".
	Controller string
	// TokenAudience is the audience of the tokens with which the controller calls the agent of this Workspace.
	TokenAudience string
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
	// RevisionHash is what a pod that the user's wishes are met by has in its annotation autov1alpha1.RevisionHashAnnotation.
	RevisionHash string
	// AgentRevision is what a pod that is up to date has in its annotation AgentRevisionAnnotation.
	AgentRevision string
}

// Build returns the objects of the Workspace, the same for the same arguments. Its error is an *InvalidError: only an edit of
// the Workspace helps.
func Build(workspace *autov1alpha1.Workspace, settings Settings) (*Objects, error) {
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
