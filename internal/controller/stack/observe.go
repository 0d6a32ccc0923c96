package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// observe reads what a decision is made from, except for the content of the artifact, which observeContent reads only for decisions that
// depend on it.
func (r *Reconciler) observe(ctx context.Context, o *observation) error {
	if err := r.observeShard(ctx, o); err != nil || o.moving {
		return err
	}
	if err := r.observeUpdates(ctx, o); err != nil {
		return err
	}
	if o.otherShard != nil && o.update == nil {
		// The operation in the other shard ended just now.
		o.otherShard, o.moving = nil, true
		return nil
	}
	if o.otherShard == nil && o.update != nil && !o.update.IsComplete() && !r.Shard.Has(o.update) {
		// Somebody changed its labels. What becomes of it would wake the controller of another shard, and not this one.
		o.moving = true
		return nil
	}
	o.readUpdates = true
	// The rest is read for the status as it should be: what is asked of a source depends on what was deployed and what runs.
	stack := o.stack
	o.stack = stack.DeepCopy()
	restoreStatus(o)
	defer func() { o.stack = stack }()
	o.desired, o.specProblem = r.desire(o.stack)
	for _, read := range []func(context.Context, *observation) error{
		r.observeReferences, r.observeOutputs, r.observeSource, r.observeWorkspace, r.observeDependencies, r.observeInputs, r.observeGivers,
		r.observeDependents, r.observeApprovals,
	} {
		if err := read(ctx, o); err != nil {
			return err
		}
	}
	o.readAll = true
	return nil
}

// observeUpdates finds the Update that matters now: the one that the status names, or one that was created since and is not in the status
// yet, because it is short, because the status could not be written or because the controller crashed. It may be complete already.
func (r *Reconciler) observeUpdates(ctx context.Context, o *observation) error {
	var updates []autov1alpha1.Update
	var err error
	if o.otherShard != nil {
		updates = o.otherShard.updates
	} else if updates, err = r.updatesOf(ctx, o.stack); err != nil {
		return err
	}
	if err := r.observeDriftCheck(ctx, o, updates); err != nil {
		return err
	}
	if o.outputs.used, o.outputs.awaited, err = inputs.AreUsed(ctx, r, o.stack, r.Scope); err != nil {
		return err
	}
	if o.outputs.used || len(o.stack.Spec.Outputs) > 0 {
		o.outputs.source = latestOutputs(o.stack, updates)
	}
	if current := o.stack.Status.CurrentUpdate; current != nil {
		if o.update, err = r.currentUpdate(ctx, o.stack, current.Name); err != nil {
			return err
		}
		o.updateRemoved = o.update == nil || current.UID != "" && current.UID != o.update.UID
		if !o.updateRemoved {
			return nil
		}
	}
	for i := range updates {
		update := &updates[i]
		if isDriftCheck(update) || o.update != nil && o.update.UID == update.UID {
			continue
		}
		if o.update == nil && (!update.IsComplete() || update.Name == updateName(o.stack)) && isTrusted(o.stack, update) {
			o.update = update.DeepCopy()
		} else {
			o.deployed = o.deployed || mayHaveDeployed(o.stack, update)
		}
	}
	if o.update != nil && informercache.IsShortened(o.update) {
		o.update, err = r.getUpdate(ctx, client.ObjectKeyFromObject(o.update))
	}
	return err
}

// mayHaveDeployed reports whether the Update may have deployed something that the status does not know of.
func mayHaveDeployed(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	return !update.ChangesNothing() && !update.Status.NotRun && !isRecorded(stack, update)
}

// currentUpdate reads the Update that the status names. It returns nil if there is none, or if it is not the one that the status means.
func (r *Reconciler) currentUpdate(ctx context.Context, stack *pulumiv1.Stack, name string) (*autov1alpha1.Update, error) {
	key := types.NamespacedName{Namespace: stack.Namespace, Name: name}
	update, err := r.getUpdate(ctx, key)
	if uid := stack.Status.CurrentUpdate.UID; err == nil && update != nil && (!isCurrent(stack, update) || uid != "" && uid != update.UID) {
		// The cache may have an earlier Update with this name.
		update, err = r.liveUpdate(ctx, key)
	}
	if err != nil || update == nil || !isCurrent(stack, update) {
		return nil, err
	}
	return update, nil
}

// isCurrent reports whether the Update with the name that the status names is the one that is meant, or one of the Stack that took its place.
// Whoever may delete and create Updates can give the name to an Update of their own.
func isCurrent(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	uid := stack.Status.CurrentUpdate.UID
	return isTrusted(stack, update) && (uid == "" || uid == update.UID || stack.Owns(update))
}

// isTrusted reports whether the Update can be one of the Stack itself. For a Stack with spec.approval, owner references and annotations
// prove nothing. The Update has to be the one that the status says the controller created, unedited. An Update that changes something and
// has started is one of the Stack in any case: before it started, it was approved, or nothing had to be.
func isTrusted(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	if stack.Spec.Approval == nil || stack.Created(update) {
		return true
	}
	return update.Status.StartTime != nil && update.Generation == 1 && !update.ChangesNothing()
}

// observeDriftCheck finds the Update that looks for drift. It may be one that no longer fits the Stack. The cache leaves out what a check has
// found, and of a large check also which resources it is for, so these are read from the API server. One that is too large to be read is
// none that this controller created.
func (r *Reconciler) observeDriftCheck(ctx context.Context, o *observation, updates []autov1alpha1.Update) error {
	i := slices.IndexFunc(updates, func(update autov1alpha1.Update) bool { return isDriftCheckOf(o.stack, &update) })
	if i < 0 {
		return nil
	}
	check := &updates[i]
	if check.IsComplete() || informercache.IsShortened(check) && !informercache.IsTooLarge(check) {
		live, err := r.liveUpdate(ctx, client.ObjectKeyFromObject(check))
		if err != nil || live == nil || !isDriftCheckOf(o.stack, live) {
			return err
		}
		check = live
	}
	o.driftCheck = check.DeepCopy()
	return nil
}

// isRecorded reports whether the result of the Update is in the status, or the Update is older than the one whose result is there.
func isRecorded(stack *pulumiv1.Stack, update *autov1alpha1.Update) bool {
	last := stack.Status.LastUpdate
	return last != nil && (last.Name == update.Name || !last.LastResyncTime.Time.Before(update.CreationTimestamp.Time))
}

// getUpdate reads an Update from the cache and, if it is not there, from the API server. It returns nil if there is none.
func (r *Reconciler) getUpdate(ctx context.Context, key types.NamespacedName) (*autov1alpha1.Update, error) {
	return readUpdate(ctx, key, r.Client, r.APIReader)
}

// liveUpdate reads an Update from the API server. It returns nil if there is none.
func (r *Reconciler) liveUpdate(ctx context.Context, key types.NamespacedName) (*autov1alpha1.Update, error) {
	return readUpdate(ctx, key, r.APIReader)
}

func readUpdate(ctx context.Context, key types.NamespacedName, readers ...client.Reader) (*autov1alpha1.Update, error) {
	for _, reader := range readers {
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

// pageSize is how many objects one response of the API server has at most. Each may be as large as the API server admits: 1.5 MiB of JSON,
// and 33 MB in memory when it has very many small parts.
const pageSize = 3

// listLive reads a list from the API server in pages, and calls visit with each page. No other code uses the list that visit gets. The
// controller holds only one such page at any time, see paging.
func (r *Reconciler) listLive(ctx context.Context, newList func() client.ObjectList, visit func(client.ObjectList), options ...client.ListOption) error {
	for token := ""; ; {
		page := newList()
		if err := r.listPage(ctx, page, visit, append(options[:len(options):len(options)], client.Limit(pageSize), client.Continue(token))); err != nil {
			return err
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

func (r *Reconciler) listPage(ctx context.Context, page client.ObjectList, visit func(client.ObjectList), options []client.ListOption) error {
	r.paging.Lock()
	defer r.paging.Unlock()
	if err := r.APIReader.List(ctx, page, options...); err != nil {
		return err
	}
	visit(page)
	return nil
}

// updatesOf returns the Stack's Updates, oldest first. The caller must not change them: they are the objects of the cache, and there may be
// many.
func (r *Reconciler) updatesOf(ctx context.Context, stack *pulumiv1.Stack) ([]autov1alpha1.Update, error) {
	var list autov1alpha1.UpdateList
	err := r.List(ctx, &list, client.InNamespace(stack.Namespace), client.MatchingFields{updateOwnerIndex: string(stack.UID)},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the updates: %w", err)
	}
	sortByAge(list.Items)
	return list.Items, nil
}

func sortByAge(updates []autov1alpha1.Update) {
	slices.SortFunc(updates, func(a, b autov1alpha1.Update) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
}

// observeReferences looks up the versions of the watched Secrets and ConfigMaps that the desired Workspace takes values from. It sends no
// request to the API server.
func (r *Reconciler) observeReferences(ctx context.Context, o *observation) (err error) {
	if o.desired != nil {
		o.references, err = r.References.Versions(ctx, references.OfWorkspace(o.desired.workspace, o.stack.Spec.Stack))
	}
	return err
}

func (r *Reconciler) observeSource(ctx context.Context, o *observation) error {
	var err error
	if needsSource(o.stack) {
		o.artifact, err = r.Sources.Resolve(ctx, o.stack)
	} else {
		r.Sources.Forget(client.ObjectKeyFromObject(o.stack))
		if !hasSource(o.stack) && o.stack.DeletionTimestamp.IsZero() {
			err = r.Sources.CheckUnsourced(o.stack)
		}
	}
	if err == nil {
		err = r.observeRollout(ctx, o)
	}
	if errors.As(err, &o.sourceProblem) {
		o.artifact = nil
		return nil
	}
	o.verified = o.artifact != nil && o.held == nil && o.artifact.Verification.Verified && r.Sources.RequiresVerified(o.stack)
	if err == nil {
		r.observePacked(o)
	}
	return err
}

// observePacked finds out under which digest the commit is stored if the Update waits because it has another one, see packedAnew. The end of a
// checkout wakes the Stack. If it fails, the Update shows why.
func (r *Reconciler) observePacked(o *observation) {
	if o.update == nil || o.artifact == nil || o.artifact.Origin.Git == nil {
		return
	}
	if reason, _ := o.update.WaitingProblem(); reason != pulumiv1.ArtifactDigestMismatchReason {
		return
	}
	made := *o.artifact // it may be shared
	made.Digest, _ = r.Artifacts.Request(made.Reference, client.ObjectKeyFromObject(o.stack))
	o.artifact = &made
}

// needsSource reports whether the source has to be read. A git server gets no requests for a Stack that is suspended, that can be
// released, or that can be destroyed from its state: nobody should have to keep a repository for that.
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
	if o.otherShard != nil {
		o.workspace = o.otherShard.workspace
		return nil
	}
	workspace := &autov1alpha1.Workspace{}
	err := r.Get(ctx, client.ObjectKeyFromObject(o.stack), workspace)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	if err != nil || !workspace.DeletionTimestamp.IsZero() || !isOwn(o.stack, workspace) {
		return nil
	}
	o.workspace = workspace
	if o.stack.DeletionTimestamp.IsZero() || workspaceHasFailed(workspace) {
		return nil
	}
	o.unownedUpdate, err = r.updateIn(ctx, workspace, func(update *autov1alpha1.Update) bool {
		return !o.stack.Owns(update) && update.HasStarted() && !update.IsComplete()
	})
	return err
}

// updateIn returns the name of an Update of the Workspace for which chosen returns true; empty when there is none.
func (r *Reconciler) updateIn(
	ctx context.Context, workspace *autov1alpha1.Workspace, chosen func(*autov1alpha1.Update) bool,
) (string, error) {
	var list autov1alpha1.UpdateList
	// The objects are only read, and there may be many.
	err := r.List(ctx, &list, client.InNamespace(workspace.Namespace), client.MatchingFields{informercache.UpdatesByWorkspace: workspace.Name},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("list the updates of the workspace: %w", err)
	}
	for i := range list.Items {
		if update := &list.Items[i]; chosen(update) {
			return update.Name, nil
		}
	}
	return "", nil
}

// isOwn reports whether the Stack may write and delete the Workspace: the Stack owns it, or the Workspace has no owner and has the labels
// of a Workspace of this Stack, as those of the Pulumi Kubernetes Operator also have. A user who can write these labels can edit the
// Workspace anyway. A user who can only create Stacks cannot get hold of the Workspaces of others.
func isOwn(stack *pulumiv1.Stack, workspace metav1.Object) bool {
	if owner := metav1.GetControllerOf(workspace); owner != nil {
		return owner.UID == stack.UID
	}
	labels := workspace.GetLabels()
	return labels[pulumiv1.ComponentLabel] == pulumiv1.ComponentStack && labels[pulumiv1.StackNameLabel] == stack.Name
}

// observeContent requests the artifact and, unless the Stack is to be destroyed, the content that the Stack is made of. The end of a
// download, a checkout or a comparison wakes the Stack.
func (r *Reconciler) observeContent(ctx context.Context, o *observation) error {
	o.content = content{requested: true}
	waiter := client.ObjectKeyFromObject(o.stack)
	if o.held != nil {
		if err := r.locateKept(ctx, o); err != nil {
			o.content.problem = err
			return nil
		}
	}
	stored, err := r.requestArtifact(o.artifact.Reference, waiter)
	if _, kind := source.FetchReason(err); kind == artifact.NotFound && o.held == nil {
		// The artifact was replaced before it was fetched. The source is read again, see source.Set.Refresh.
		found, refreshErr := r.Sources.Refresh(ctx, o.stack)
		if refreshErr == nil && found != nil && found.Digest != o.artifact.Digest && r.mayHave(ctx, o.stack, found) {
			o.artifact = found
			stored, err = r.Artifacts.Request(found.Reference, waiter)
		}
	}
	if err != nil || stored == "" {
		o.content.problem = err
		return nil
	}
	// The observed artifact may be shared, so it is copied.
	made := *o.artifact
	made.Digest = stored
	o.artifact, o.content.stored = &made, true
	if !o.stack.DeletionTimestamp.IsZero() {
		return nil
	}
	found, err := r.Contents.Request(o.artifact.Reference, o.desired.selection, waiter)
	switch {
	case errors.Is(err, artifact.ErrSelectionTooComplex):
		o.content.problem = fmt.Errorf("spec.sourcePaths: %s: %w", describeRevision(o.artifact), err)
	case err != nil:
		return fmt.Errorf("compare the content of %s: %w", describeRevision(o.artifact), err)
	case found != nil:
		o.content.digest, o.content.unmatched = found.Digest, found.Unmatched
	}
	return nil
}
