package pod

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/shape"
)

// CachedObjects limits a manager's cache to the objects of workspaces and, of those, to what this package reads: its size
// depends on the number of Workspaces, not on that of all pods in the cluster.
func CachedObjects() map[client.Object]cache.ByObject {
	selector := labels.SelectorFromSet(labels.Set{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace})
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}:         {Label: selector, Transform: stripPod},
		&appsv1.StatefulSet{}: {Label: selector, Transform: stripStatefulSet},
		&corev1.Service{}:     {Label: selector},
	}
}

// stripPod removes what is never read.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	stripMeta(&pod.ObjectMeta)
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	status := pod.Status
	pod.Status = corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Message: status.Message, PodIP: status.PodIP,
		Conditions: status.Conditions, InitContainerStatuses: status.InitContainerStatuses, ContainerStatuses: status.ContainerStatuses,
	}
	for _, containers := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range containers {
			one := containers[i]
			containers[i] = corev1.ContainerStatus{
				Name: one.Name, Image: one.Image, Ready: one.Ready, RestartCount: one.RestartCount,
				State: one.State, LastTerminationState: one.LastTerminationState,
			}
		}
	}
	return pod, nil
}

// stripStatefulSet removes what is never read, most of it the pod template.
func stripStatefulSet(object any) (any, error) {
	set, ok := object.(*appsv1.StatefulSet)
	if !ok {
		return object, nil
	}
	stripMeta(&set.ObjectMeta)
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: set.Spec.Template.Annotations}}
	stripMeta(&template.ObjectMeta)
	set.Spec = appsv1.StatefulSetSpec{Replicas: set.Spec.Replicas, Template: template}
	set.Status = appsv1.StatefulSetStatus{ObservedGeneration: set.Status.ObservedGeneration}
	return set, nil
}

// stripMeta leaves of labels and annotations what names a workspace and a version.
func stripMeta(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	keep := func(from map[string]string, names ...string) map[string]string {
		kept := map[string]string{}
		for _, name := range names {
			if value, found := from[name]; found {
				kept[name] = value
			}
		}
		return kept
	}
	meta.Labels = keep(meta.Labels, autov1alpha1.ComponentLabel, autov1alpha1.WorkspaceNameLabel)
	meta.Annotations = keep(meta.Annotations, shape.WorkspaceNameAnnotation, appliedHashAnnotation,
		autov1alpha1.RevisionHashAnnotation, shape.AgentRevisionAnnotation)
}

// watch reports changes of the objects as events of their workspaces. It is called before the cache starts, so that nothing is
// missed: what is there at the start is seen by the first Ensure.
func (r *Runtime) watch(ctx context.Context) error {
	for _, kind := range []struct {
		object  client.Object
		changed func(before, after any) bool
	}{
		{&corev1.Pod{}, podChanged},
		{&appsv1.StatefulSet{}, statefulSetChanged},
		{serviceMetadata(), serviceChanged},
	} {
		informer, err := r.options.Cache.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind.object, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(object any, initial bool) {
				if !initial {
					r.noticed(object)
				}
			},
			UpdateFunc: func(before, after any) {
				if kind.changed(before, after) {
					r.noticed(after)
				}
			},
			DeleteFunc: r.gone,
		}); err != nil {
			return fmt.Errorf("watch %T: %w", kind.object, err)
		}
	}
	return nil
}

// noticed reports the workspace of the object.
func (r *Runtime) noticed(object any) {
	if !r.active.Load() {
		// Another controller leads. When this one takes over it looks at every Workspace.
		return
	}
	if meta, ok := object.(metav1.Object); ok {
		if key, found := shape.WorkspaceOf(meta); found {
			r.events.Add(key)
		}
	}
}

// gone reports the workspace of an object that was deleted, and lets go of a pod.
func (r *Runtime) gone(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		if key, found := shape.WorkspaceOf(pod); found {
			r.connections.drop(key, pod.UID)
		}
	}
	r.noticed(object)
}

func podChanged(before, after any) bool {
	a, isPod := before.(*corev1.Pod)
	b, isPodToo := after.(*corev1.Pod)
	return isPod && isPodToo && (a.UID != b.UID || !a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		!equality.Semantic.DeepEqual(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) ||
		!equality.Semantic.DeepEqual(a.Spec, b.Spec) || !equality.Semantic.DeepEqual(a.Status, b.Status))
}

func statefulSetChanged(before, after any) bool {
	a, isSet := before.(*appsv1.StatefulSet)
	b, isSetToo := after.(*appsv1.StatefulSet)
	return isSet && isSetToo && (a.UID != b.UID || a.Generation != b.Generation ||
		a.Status.ObservedGeneration != b.Status.ObservedGeneration ||
		!a.DeletionTimestamp.Equal(b.DeletionTimestamp) || !equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) ||
		a.Annotations[appliedHashAnnotation] != b.Annotations[appliedHashAnnotation])
}

func serviceChanged(before, after any) bool {
	a, isObject := before.(metav1.Object)
	b, isObjectToo := after.(metav1.Object)
	return isObject && isObjectToo && (a.GetUID() != b.GetUID() ||
		a.GetAnnotations()[appliedHashAnnotation] != b.GetAnnotations()[appliedHashAnnotation])
}

// serviceMetadata is a Service of which only the metadata is read.
func serviceMetadata() *metav1.PartialObjectMetadata {
	service := &metav1.PartialObjectMetadata{}
	service.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
	return service
}
