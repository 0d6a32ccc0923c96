package stack

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
)

// referencesIndex finds the Stacks that may use a Secret or ConfigMap.
const referencesIndex = "spec.references"

// namedReferences is how many changed objects a trigger names at most.
const namedReferences = 3

// observeReferences looks up the versions of the watched Secrets and ConfigMaps that the desired Workspace takes values from. It asks
// the API server nothing.
func (r *Reconciler) observeReferences(ctx context.Context, o *observation) (err error) {
	if o.desired == nil {
		return nil
	}
	o.references, err = r.References.Versions(ctx, references.OfWorkspace(o.desired.workspace, o.stack.Spec.Stack))
	return err
}

// referencesChanged says which Secrets and ConfigMaps have a version that the last attempt did not use; empty when none has. An object
// that is gone brings nothing new: what was deployed stays as it is. When no version is recorded, nothing is known of the last attempt
// (objects were not watched then), and that they are watched now is no change either.
func referencesChanged(o observation) string {
	recorded := o.stack.Status.LastUpdate.ReferencesDigest
	if recorded == "" {
		return ""
	}
	changed := references.NotIn(o.references, recorded)
	if len(changed) == 0 {
		return ""
	}
	var names []string
	for _, version := range changed[:min(len(changed), namedReferences)] {
		names = append(names, fmt.Sprintf("%s %q", version.Kind, version.Name))
	}
	if more := len(changed) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "Referenced Secret or ConfigMap changed: " + strings.Join(names, ", ")
}

// adoptReferences records the versions that there are for a Stack whose last attempt recorded none, so that the next change is one.
func adoptReferences(o *observation) {
	if last := o.stack.Status.LastUpdate; last != nil && last.ReferencesDigest == "" {
		last.ReferencesDigest = references.Digest(o.references)
	}
}

// usedReferences is what an Update used. What it read as it started counts, and so does what there was when it was created: the cache
// may be behind the API server or, if somebody edited the Workspace, know of other objects. Then a change causes one update too many
// at most, and never one after the other.
func usedReferences(current *pulumiv1.CurrentStackUpdate, update *autov1alpha1.Update) string {
	return references.Union(current.ReferencesDigest, update.Status.ReferencesDigest)
}

// usesNewReferences tells whether the current update was created for versions that the last attempt did not use.
func usesNewReferences(last *pulumiv1.StackUpdateStatus, current *pulumiv1.CurrentStackUpdate) bool {
	return last.ReferencesDigest != "" && !references.Covers(last.ReferencesDigest, current.ReferencesDigest)
}

func indexByReferences(object client.Object) []string {
	stack, ok := object.(*pulumiv1.Stack)
	if !ok {
		return nil
	}
	keys := references.OfStack(stack)
	values := make([]string, len(keys))
	for i := range keys {
		values[i] = keys[i].String()
	}
	return values
}

// usersOfReference returns the Stacks that may use the Secret or ConfigMap.
func (r *Reconciler) usersOfReference(ctx context.Context, key references.Key) []reconcile.Request {
	return r.requestsFor(ctx, client.MatchingFields{referencesIndex: key.String()})
}
