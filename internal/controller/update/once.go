package update

// Two operations of one Stack never run at once, and none is started twice. These are all the guards, in the order in which an operation
// passes them. After a restart, a controller follows what it finds at the agent (askAgent, decideOnOperation), and operations that run count
// as such (turns.countRunning).
//
//  1. Only one Update can follow another one of the same Stack: its name is made from the Update that was recorded last, so a second
//     controller, or one with an old cache, finds the Update that exists (internal/controller/stack.updateName, internal/controller/stack.Reconciler.createUpdate).
//  2. Of the Updates of a Workspace that are not complete, the oldest goes first: updateAhead. The others wait, see decideOnStart, and are
//     reconciled when one completes or is gone, see SetupWithManager.
//  3. An operation is started only for what the API server knows right now, never for what a cache says: claim.
//  4. The agent runs one operation at a time. The id of an operation is the UID of its Update, so starting it again does nothing
//     (internal/agent/server.executor.start). Before an operation is started, the agent is asked whether it knows the operation: askAgent.
//     A controller follows a running operation in a Workspace of another shard, but starts none there: waitForShard.
//  5. Only one agent uses a directory with the files of a workspace (internal/agent/server.Lock).
//  6. Pulumi locks the stack in its backend. The agent removes a lock only when its owner is proven dead
//     (internal/agent/state.Stack.Abandoned).

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// updateAhead returns the name of the oldest Update of the same Workspace that was created earlier and is not complete; empty when it
// is this Update's turn.
func (r *Reconciler) updateAhead(ctx context.Context, update *autov1alpha1.Update) (string, error) {
	updates, err := r.updatesOf(ctx, update.Namespace, update.Spec.WorkspaceName)
	if err != nil {
		return "", err
	}
	first := update
	for i := range updates {
		if !updates[i].IsComplete() && comesBefore(&updates[i], first) {
			first = &updates[i]
		}
	}
	if first.Name == update.Name {
		return "", nil
	}
	return first.Name, nil
}

// updatesOf returns all Updates of a Workspace. Callers must not change them: they are those of the cache, and too many to copy.
func (r *Reconciler) updatesOf(ctx context.Context, namespace, workspace string) ([]autov1alpha1.Update, error) {
	list := &autov1alpha1.UpdateList{}
	err := r.List(ctx, list, ctrlclient.InNamespace(namespace), ctrlclient.MatchingFields{informercache.UpdatesByWorkspace: workspace},
		ctrlclient.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the updates of workspace %q: %w", workspace, err)
	}
	return list.Items, nil
}

// compareAge orders Updates by their age, the oldest first, and those of the same second by their names.
func compareAge(a, b *autov1alpha1.Update) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func comesBefore(a, b *autov1alpha1.Update) bool { return compareAge(a, b) < 0 }

// errChanged reports that the Update was changed after it was read from the cache.
var errChanged = errors.New("the update changed since it was read")

// claim makes sure that an operation is started only for what the API server knows right now, and adds the finalizer to the Update, because
// from here on a deletion has to end the operation. An Update that is complete, or was started, must not be started again because a cache
// is behind. The annotations identify what the operation is started with: the next controller takes them from the Update if this one ends before
// it writes the start into the status. From here on the Update no longer says that it was not started.
func (r *Reconciler) claim(ctx context.Context, update *autov1alpha1.Update, annotations map[string]string) error {
	mark := func(update *autov1alpha1.Update) bool {
		changed := controllerutil.AddFinalizer(update, pulumiv1.Finalizer)
		if _, found := update.Annotations[autov1alpha1.NotStartedAnnotation]; found {
			delete(update.Annotations, autov1alpha1.NotStartedAnnotation)
			changed = true
		}
		for name, value := range annotations {
			changed = changed || update.GetAnnotations()[name] != value
			metav1.SetMetaDataAnnotation(&update.ObjectMeta, name, value)
		}
		return changed
	}
	if !controllerutil.ContainsFinalizer(update, pulumiv1.Finalizer) {
		// The optimistic lock makes this fail when the Update is not what the cache says.
		return r.patchMetadata(ctx, update, mark)
	}
	live := &autov1alpha1.Update{}
	if err := r.APIReader.Get(ctx, ctrlclient.ObjectKeyFromObject(update), live); err != nil {
		return fmt.Errorf("read the update again: %w", err)
	}
	if live.UID != update.UID || live.Generation != update.Generation || live.HasStarted() || live.IsComplete() {
		return errChanged
	}
	// Other changes that the cache missed do not matter, and must not make the write of the start fail: only this reconcile knows which
	// versions of Secrets and ConfigMaps it has read.
	live.DeepCopyInto(update)
	return r.patchMetadata(ctx, update, mark) // only if an earlier attempt had other values
}
