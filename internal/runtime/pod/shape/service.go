package shape

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// service gives the pod its address.
func service(workspace *autov1alpha1.Workspace) *corev1.Service {
	var custom autov1alpha1.EmbeddedObjectMeta
	if workspace.Spec.ServiceTemplate != nil {
		custom = workspace.Spec.ServiceTemplate.Metadata
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Service"},
		ObjectMeta: objectMeta(workspace, custom),
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
