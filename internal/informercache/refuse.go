package informercache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// TooLargeError reports that an object takes more memory than MaxMemory, so that the controller does not work with it.
type TooLargeError struct {
	Kind string
	types.NamespacedName
	UID        types.UID
	Generation int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s %s takes more than %d MiB of memory, as objects do that have very many small parts; "+
		"make it smaller: until then nothing is done with it, and it is not finalized", e.Kind, e.NamespacedName, MaxMemory>>20)
}

func refuse(object client.Object) error {
	return &TooLargeError{Kind: kindOf(object), NamespacedName: client.ObjectKeyFromObject(object), UID: object.GetUID(), Generation: object.GetGeneration()}
}

// kindOf returns the name of the object's Go type, which is also the name of its kind.
func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }

// ShowingTooLarge returns a reconciler that calls next. When next fails because an object of the example's kind is too large, the
// reconciler sets these conditions on the object, with a message, without reading the object. Such an object is reconciled again only when
// it is edited.
func ShowingTooLarge(
	next reconcile.Reconciler, c client.Client, recorder record.EventRecorder, example client.Object, conditions ...metav1.Condition,
) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		result, err := next.Reconcile(ctx, request)
		large, ok := errors.AsType[*TooLargeError](err)
		if !ok || large.Kind != kindOf(example) || large.NamespacedName != request.NamespacedName {
			return result, err
		}
		shown, err := showTooLarge(ctx, c, example, request, large, conditions)
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("show that the object is too large: %w", err)
		}
		if err == nil {
			recorder.Event(shown, corev1.EventTypeWarning, conditions[0].Reason, large.Error())
		}
		return ctrl.Result{}, nil
	})
}

func showTooLarge(
	ctx context.Context, c client.Client, example client.Object, request ctrl.Request, large *TooLargeError, conditions []metav1.Condition,
) (*metav1.PartialObjectMetadata, error) {
	shown := make([]metav1.Condition, len(conditions))
	for i, condition := range conditions {
		condition.Message, condition.ObservedGeneration, condition.LastTransitionTime = large.Error(), large.Generation, metav1.Now()
		shown[i] = condition
	}
	change, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": large.UID},
		"status":   map[string]any{"observedGeneration": large.Generation, "conditions": shown},
	})
	if err != nil {
		return nil, err
	}
	kind, err := c.GroupVersionKindFor(example)
	if err != nil {
		return nil, err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	object.Namespace, object.Name = request.Namespace, request.Name
	return object, c.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, change), patch.FieldOwner)
}

// concurrentReads is how many responses of the API server the process decodes at the same time, in addition to those of watches. The
// process has to decode an object to find out how much memory it takes, which may be 60 MB.
const concurrentReads = 3

var reads = fairqueue.NewPool(concurrentReads)

// NewReader returns a reader of the API server whose Get refuses the same objects as the Get of NewClient. All readers of a process share a
// few slots for requests, and the namespaces take turns.
func NewReader(live client.Reader) client.Reader { return &boundedReader{live} }

type boundedReader struct{ client.Reader }

// List implements client.Reader. It does not check sizes: callers request short lists only.
func (r *boundedReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	namespace := (&client.ListOptions{}).ApplyOptions(options).Namespace
	done, err := reads.Acquire(ctx, namespace)
	if err != nil {
		return err
	}
	defer done()
	return r.Reader.List(ctx, list, options...)
}

// Get implements client.Reader.
func (r *boundedReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	done, err := reads.Acquire(ctx, key.Namespace)
	if err != nil {
		return err
	}
	defer done()
	if err := r.Reader.Get(ctx, key, object, options...); err != nil {
		return err
	}
	if memoryOf(object, MaxMemory) > MaxMemory {
		return refuse(object)
	}
	return nil
}
