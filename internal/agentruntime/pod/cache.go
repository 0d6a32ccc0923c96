package pod

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// maxInitContainers is of how many init containers of a pod the cache keeps something.
const maxInitContainers = 10

// CachedObjects limits a manager's cache to the objects of workspaces and to the fields that this package reads. The size of the cache then
// depends on the number of Workspaces, not on the number of pods in the cluster.
func CachedObjects() map[client.Object]cache.ByObject {
	selector := labels.SelectorFromSet(labels.Set{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace})
	settings := cache.ByObject{Label: selector, Transform: strip}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: settings, &appsv1.StatefulSet{}: settings, &corev1.Service{}: settings}
}

// strip removes the fields that are never read: most of the pod template of a StatefulSet, and all of a Service except its metadata.
func strip(object any) (any, error) {
	switch object := object.(type) {
	case *corev1.Pod:
		stripMeta(&object.ObjectMeta)
		object.Spec = corev1.PodSpec{NodeName: object.Spec.NodeName, InitContainers: stripInitContainers(object.Spec.InitContainers)}
		status := object.Status
		object.Status = corev1.PodStatus{
			Phase: status.Phase, Reason: status.Reason, Message: status.Message, PodIP: status.PodIP, Conditions: status.Conditions,
			InitContainerStatuses: stripContainers(status.InitContainerStatuses), ContainerStatuses: stripContainers(status.ContainerStatuses),
		}
	case *appsv1.StatefulSet:
		stripMeta(&object.ObjectMeta)
		template := corev1.PodTemplateSpec{Annotations: object.Spec.Template.Annotations}
		stripMeta(&template.ObjectMeta)
		object.Spec = appsv1.StatefulSetSpec{Replicas: object.Spec.Replicas, Template: template}
		object.Status = appsv1.StatefulSetStatus{ObservedGeneration: object.Status.ObservedGeneration}
	case *metav1.PartialObjectMetadata:
		stripMeta(&object.ObjectMeta)
	}
	return object, nil
}

// stripInitContainers keeps what podspec.ExpectsFiles reads: the names of the user's init containers that see the volume of the source.
func stripInitContainers(containers []corev1.Container) (kept []corev1.Container) {
	for _, one := range containers[:min(len(containers), maxInitContainers)] {
		if podspec.SeesShare(one) {
			kept = append(kept, corev1.Container{Name: one.Name, VolumeMounts: []corev1.VolumeMount{{Name: podspec.ShareVolume}}})
		}
	}
	return kept
}

func stripContainers(containers []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i, one := range containers {
		containers[i] = corev1.ContainerStatus{
			Name: one.Name, Image: one.Image, Ready: one.Ready, RestartCount: one.RestartCount,
			State: one.State, LastTerminationState: one.LastTerminationState,
		}
	}
	return containers
}

// stripMeta keeps only the controller reference of the object, and the labels and annotations that name a workspace or a version. Tenants
// can write any of them, and the API server does not bound their size, so stripMeta keeps no value that is too long for a name. It makes
// new maps, because a map keeps the memory of deleted entries.
func stripMeta(meta *metav1.ObjectMeta) {
	meta.ManagedFields, meta.Finalizers = nil, nil
	owner := metav1.GetControllerOf(meta)
	meta.OwnerReferences = nil
	if owner != nil && max(len(owner.APIVersion), len(owner.Kind), len(owner.Name), len(owner.UID)) <= validation.DNS1123SubdomainMaxLength {
		meta.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	keep := func(from map[string]string, names ...string) map[string]string {
		kept := map[string]string{}
		for _, name := range names {
			if value, found := from[name]; found && len(value) <= validation.DNS1123SubdomainMaxLength {
				kept[name] = value
			}
		}
		return kept
	}
	meta.Labels = keep(meta.Labels, autov1alpha1.ComponentLabel, autov1alpha1.WorkspaceNameLabel)
	meta.Annotations = keep(meta.Annotations, podspec.WorkspaceNameAnnotation, appliedHashAnnotation,
		autov1alpha1.RevisionHashAnnotation, podspec.AgentRevisionAnnotation)
}

// watch adds an event for the workspace of each object that changes. It is called before the cache starts, so that no change is missed:
// objects that exist at the start are read by the first Ensure.
func (r *Runtime) watch(ctx context.Context) error {
	for _, object := range []client.Object{&corev1.Pod{}, &appsv1.StatefulSet{}, serviceMetadata()} {
		informer, err := r.options.Cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
				AddFunc: func(object any, initial bool) {
					if !initial {
						r.requeue(object)
					}
				},
				UpdateFunc: func(before, after any) {
					if changed(before, after) {
						r.requeue(after)
					}
				},
				DeleteFunc: r.deleted,
			})
		}
		if err != nil {
			return fmt.Errorf("watch %T: %w", object, err)
		}
	}
	return nil
}

// changed reports whether two versions of an object differ in the fields that the cache keeps.
func changed(before, after any) bool {
	a, isObject := before.(client.Object)
	b, isObjectToo := after.(client.Object)
	if !isObject || !isObjectToo {
		return false
	}
	same := a.DeepCopyObject()
	if meta, ok := same.(metav1.Object); ok {
		meta.SetResourceVersion(b.GetResourceVersion())
	}
	return !equality.Semantic.DeepEqual(same, b)
}

// requeue adds an event for the workspace of the object.
func (r *Runtime) requeue(object any) {
	if !r.active.Load() {
		// Another controller leads. When this one becomes the leader it reconciles every Workspace.
		return
	}
	if meta, ok := object.(metav1.Object); ok {
		if key, found := podspec.WorkspaceOf(meta); found {
			r.events.Add(key)
		}
	}
}

// deleted adds an event for the workspace of an object that was deleted. If the object is a pod, it drops the connection to it.
func (r *Runtime) deleted(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		if key, found := podspec.WorkspaceOf(pod); found {
			r.connections.drop(key, pod.UID)
		}
	}
	r.requeue(object)
}

// serviceMetadata returns an object for reading only the metadata of a Service.
func serviceMetadata() *metav1.PartialObjectMetadata {
	service := &metav1.PartialObjectMetadata{}
	service.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	return service
}
