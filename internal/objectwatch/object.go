package objectwatch

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
)

const (
	// maxConditions and maxLabels bound what is kept of an object. With more, none are kept.
	maxConditions, maxLabels = 50, 1000
	// maxText bounds the type, the status and the reason of a condition, in bytes. The API convention has smaller limits, but a foreign kind
	// need not keep them.
	maxText = 1024
)

// Object is what the controller keeps of an object, and the only part of it that anybody can learn through the controller. It has no
// message, no annotation, no spec, and nothing of the status but the conditions and the generation: whoever may write Stacks need not be
// allowed to read the object.
type Object struct {
	APIVersion, Kind                string
	Namespace, Name                 string
	UID                             types.UID
	ResourceVersion                 string
	Generation                      int64
	Labels                          map[string]string
	CreationTimestamp               metav1.Time
	DeletionTimestamp               *metav1.Time
	ObservedGeneration              int64
	HasObservedGeneration, HasReady bool
	// IsReady, IsReconciling and IsStalled say whether these conditions are True, also if there are too many conditions to keep them.
	IsReady, IsReconciling, IsStalled bool
	// Conditions have no messages.
	Conditions []metav1.Condition
}

// Unready returns why the object is not ready, as the continuation of a sentence that begins with its name; empty when it is ready. It follows
// kstatus, except that the condition Ready is required: without it, kstatus takes an object for ready that nobody looked at yet.
func (o *Object) Unready() string {
	switch {
	case o.DeletionTimestamp != nil:
		return "is being deleted"
	case o.HasObservedGeneration && o.ObservedGeneration != o.Generation:
		return "is not ready: its controller has not seen its last edit yet"
	case o.IsStalled:
		return "is not ready: it is stalled"
	case o.IsReconciling:
		return "is not ready: it is being reconciled"
	case !o.HasReady:
		return "is not ready: it has no condition Ready"
	case !o.IsReady:
		return "is not ready"
	}
	return ""
}

// size is about how much memory the object takes, in bytes.
func (o *Object) size() int64 {
	size := 512
	for name, value := range o.Labels {
		size += len(name) + len(value) + 64
	}
	for i := range o.Conditions {
		size += len(o.Conditions[i].Type) + len(o.Conditions[i].Status) + len(o.Conditions[i].Reason) + 160
	}
	return int64(size)
}

// reduce copies from the object what is kept of it, so that the rest can be freed.
func reduce(full *unstructured.Unstructured) *Object {
	object := &Object{
		APIVersion: full.GetAPIVersion(), Kind: full.GetKind(),
		Namespace: full.GetNamespace(), Name: full.GetName(), UID: full.GetUID(), ResourceVersion: full.GetResourceVersion(),
		Generation: full.GetGeneration(), CreationTimestamp: full.GetCreationTimestamp(), DeletionTimestamp: full.GetDeletionTimestamp(),
	}
	if labels := full.GetLabels(); len(labels) <= maxLabels {
		object.Labels = labels
	}
	status, _ := full.Object["status"].(map[string]any)
	object.ObservedGeneration, object.HasObservedGeneration = status["observedGeneration"].(int64)
	list, _ := status["conditions"].([]any)
	for _, item := range list {
		fields, _ := item.(map[string]any)
		condition := conditionOf(fields)
		if condition.Type == "" {
			continue
		}
		object.note(condition)
		if len(list) <= maxConditions {
			object.Conditions = append(object.Conditions, condition)
		}
	}
	return object
}

// note keeps what the condition says about whether the object is ready.
func (o *Object) note(condition metav1.Condition) {
	isTrue := condition.Status == metav1.ConditionTrue
	switch condition.Type {
	case meta.ReadyCondition:
		o.HasReady, o.IsReady = true, isTrue
	case meta.ReconcilingCondition:
		o.IsReconciling = isTrue
	case meta.StalledCondition:
		o.IsStalled = isTrue
	}
}

// conditionOf returns a condition without its message. A field of another type than that of the API convention counts as missing.
func conditionOf(fields map[string]any) metav1.Condition {
	text := func(name string) string {
		value, _ := fields[name].(string)
		if len(value) > maxText {
			return ""
		}
		return value
	}
	condition := metav1.Condition{Type: text("type"), Status: metav1.ConditionStatus(text("status")), Reason: text("reason")}
	condition.ObservedGeneration, _ = fields["observedGeneration"].(int64)
	if changed, err := time.Parse(time.RFC3339, text("lastTransitionTime")); err == nil {
		condition.LastTransitionTime = metav1.Time{Time: changed}
	}
	return condition
}
