package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// observe gathers everything that a decision is made from.
func (r *Reconciler) observe(ctx context.Context, stack *pulumiv1.Stack) (*observation, error) {
	o := &observation{now: time.Now(), stack: stack, waitInterval: r.WaitInterval, jitter: r.Jitter}
	recall(stack)
	o.desired, o.specProblem = desire(stack)
	if err := r.observeReferences(ctx, o); err != nil {
		return nil, err
	}
	if err := r.observeSource(ctx, o); err != nil {
		return nil, err
	}
	takeOver(o)
	if err := r.observeWorkspace(ctx, o); err != nil {
		return nil, err
	}
	if err := r.observeUpdate(ctx, o); err != nil {
		return nil, err
	}
	if err := r.observeDependencies(ctx, o); err != nil {
		return nil, err
	}
	if err := r.observeDependents(ctx, o); err != nil {
		return nil, err
	}
	return o, r.observeContent(ctx, o)
}

func (r *Reconciler) observeSource(ctx context.Context, o *observation) error {
	if !needsSource(o.stack) {
		r.Sources.Forget(client.ObjectKeyFromObject(o.stack))
		return nil
	}
	found, err := r.Sources.Resolve(ctx, o.stack)
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		o.sourceProblem = problem
		return nil
	}
	o.artifact = found
	return err
}

// needsSource tells whether the source has to be asked. A git server is not asked for a Stack that is suspended, or that can be let go,
// or destroyed from its state: nobody should have to keep a repository for that.
func needsSource(stack *pulumiv1.Stack) bool {
	switch {
	case !hasSource(stack):
		return false
	case !stack.HasGitSource():
		return true
	case stack.DeletionTimestamp.IsZero():
		return !stack.Spec.Suspend
	}
	return nothingToDestroy(stack) == "" && !stack.Spec.Suspend && !destroyableFromState(stack)
}

func (r *Reconciler) observeWorkspace(ctx context.Context, o *observation) error {
	workspace := &autov1alpha1.Workspace{}
	err := r.Get(ctx, client.ObjectKeyFromObject(o.stack), workspace)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	if !workspace.DeletionTimestamp.IsZero() {
		return nil
	}
	o.workspace = workspace
	if o.stack.DeletionTimestamp.IsZero() || inTrouble(workspace) {
		return nil
	}
	o.busy, err = r.foreignUpdate(ctx, o.stack, workspace)
	return err
}

// observeUpdate finds the Update that matters now: the one that the status names, or one that was created just before a
// crash and never reached the status.
func (r *Reconciler) observeUpdate(ctx context.Context, o *observation) error {
	if current := o.stack.Status.CurrentUpdate; current != nil {
		update, err := r.getUpdate(ctx, types.NamespacedName{Namespace: o.stack.Namespace, Name: current.Name})
		if err != nil {
			return err
		}
		if update != nil {
			o.update = update
			return nil
		}
		// Somebody removed it: whether anything is left to do is decided anew.
		o.stack.Status.CurrentUpdate = nil
		rememberUnsettled(o.stack)
	}
	updates, err := r.updatesOf(ctx, o.stack)
	if err != nil {
		return err
	}
	for i, update := range updates {
		if update.Spec.Type != autov1alpha1.UpdateTypePreview && !isRecorded(o.stack, &updates[i]) {
			o.stack.Status.Deployed = true
		}
		if !update.IsComplete() && o.update == nil {
			o.update = &updates[i]
		}
	}
	return nil
}

// isRecorded tells whether the Update's result is in the status, or is older than the one that is.
func isRecorded(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	last := stack.Status.LastUpdate
	return last != nil && (last.Name == update.Name || !last.LastResyncTime.Time.Before(update.CreationTimestamp.Time))
}

// getUpdate reads an Update from the cache, and from the API server before it believes that there is none.
func (r *Reconciler) getUpdate(ctx context.Context, key types.NamespacedName) (*autov1alpha1.Update, error) {
	for _, reader := range []client.Reader{r.Client, r.Live} {
		update := &autov1alpha1.Update{}
		err := reader.Get(ctx, key, update)
		if err == nil {
			return update, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the update %s: %w", key.Name, err)
		}
	}
	return nil, nil
}

// updatesOf returns the Stack's Updates, oldest first.
func (r *Reconciler) updatesOf(ctx context.Context, stack *pulumiv1.Stack) ([]autov1alpha1.Update, error) {
	var list autov1alpha1.UpdateList
	err := r.List(ctx, &list, client.InNamespace(stack.Namespace), client.MatchingFields{updateOwnerIndex: string(stack.UID)})
	if err != nil {
		return nil, fmt.Errorf("list the updates: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b autov1alpha1.Update) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return list.Items, nil
}
