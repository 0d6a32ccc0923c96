package stack

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// lostOutputs is a Stack whose outputs the current update waits for although they are stored nowhere.
type lostOutputs struct {
	name types.NamespacedName
	// version is the resourceVersion of that Stack.
	version string
	// request is the value to write into the annotation that requests an update; empty when it is there already.
	request string
}

// observeGivers looks for Stacks of spec.inputs that this controller does not watch: those of other shards, and those of other namespaces if it
// watches one. Nothing tells this Stack that they have other outputs. Nor does the controller that reconciles one of them see that an update waits
// for outputs of it that are stored nowhere: it has to be asked to run again. The same holds for a large Stack, because indexes have only the names in
// the part of it that the cache keeps; what else it names cannot wake it either. observeGivers sends no request unless an update waits.
func (r *Reconciler) observeGivers(ctx context.Context, o *observation) error {
	awaits := false
	if o.isUpdating() {
		reason, _ := o.update.WaitingProblem()
		awaits = reason == pulumiv1.InputNotFoundReason
	}
	if o.stack.Spec.Suspend || o.isUpdating() && !awaits {
		return nil // An edit or the update wakes the Stack.
	}
	self := &pulumiv1.Stack{}
	err := informercache.Cached(r.Client).Get(ctx, client.ObjectKeyFromObject(o.stack), self, client.UnsafeDisableDeepCopy)
	isPart := err == nil && informercache.IsShortened(self)
	o.unheard = o.unheard || isPart
	for _, name := range autov1alpha1.StacksOf(o.stack.Namespace, o.stack.Spec.Inputs) {
		if !isPart && r.watches(ctx, name) {
			continue
		}
		o.unheard = true
		if !awaits || o.lost != nil {
			break
		}
		if err := r.observeLostOutputs(ctx, o, name); err != nil {
			return err
		}
	}
	return nil
}

// watches reports whether the watch on Stacks has the Stack with the name, or would have it if it existed. It sends no request.
func (r *Reconciler) watches(ctx context.Context, name types.NamespacedName) bool {
	err := informercache.Cached(r.Client).Get(ctx, name, &pulumiv1.Stack{}, client.UnsafeDisableDeepCopy)
	return err == nil || r.Shard == nil && apierrors.IsNotFound(err)
}

// observeLostOutputs finds out whether the outputs of the Stack with the name are stored nowhere. One that is not ready runs again by itself, or
// cannot, and then the update waits as for any missing output.
func (r *Reconciler) observeLostOutputs(ctx context.Context, o *observation, name types.NamespacedName) error {
	giver, err := r.getStack(ctx, name)
	if _, large := errors.AsType[*informercache.TooLargeError](err); large || apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil || notReady(giver) != "" || giver.IsPreview() || giver.Spec.Suspend || !giver.DeletionTimestamp.IsZero() ||
		!inputs.Uses(o.stack, giver, r.Scope) {
		return err
	}
	stored := giver.Status.StoredOutputs
	lost := stored == nil || giver.Status.OutputsNotStored != ""
	if !lost {
		if lost, err = r.areGone(ctx, name.Namespace, stored); err != nil && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if !lost {
		return nil
	}
	o.lost = &lostOutputs{name: name, version: giver.ResourceVersion}
	if request := requestOfDependents(giver); reconcileRequest(giver) != request {
		o.lost.request = request
	}
	return nil
}
