// Package patch writes the decisions of the controller to the API server.
package patch

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the field manager of everything that the controller writes.
const FieldOwner = client.FieldOwner("stack-controller")

// Object writes the differences between before and the object, except for the status. It fails with a conflict if the object has changed
// since before was read.
func Object(ctx context.Context, c client.Writer, before, object client.Object) error {
	return c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), FieldOwner)
}

// Status writes the status of the object in one request if it differs from that of before, so that a client that sees a condition also sees
// what the condition is about. (The patch helper of fluxcd/pkg/runtime writes the conditions in a separate request.) It fails with a
// conflict if the object has changed since before was read: a decision from an old cache has no effect.
func Status(ctx context.Context, c client.StatusClient, before, object client.Object) error {
	if equality.Semantic.DeepEqual(statusOf(before), statusOf(object)) {
		return nil
	}
	change := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Status().Patch(ctx, object, change, FieldOwner); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	return nil
}

// IsRefused reports whether the API server answered a write that it will not accept the object: it is invalid or too large, or a right, a
// quota or an admission webhook is in its way. Somebody has to change the object or what refuses it. The API server answers "bad request"
// for a webhook that gives no code, as those of Kyverno do.
func IsRefused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// statusOf returns the field Status, which every kind of this API has.
func statusOf(object client.Object) any {
	return reflect.ValueOf(object).Elem().FieldByName("Status").Interface()
}
