package update

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// observation is everything that a decision is made from. A fact that an earlier one makes irrelevant is not read; the fields say when.
type observation struct {
	now    time.Time
	update *autov1alpha1.Update
	// workspace is nil when there is none. It is not read when the Update is complete or abandoned.
	workspace *autov1alpha1.Workspace
	// inOtherShard is true when the Workspace belongs to another shard and the operation was not started. Then nothing more is read. If the
	// operation was started, the Update and the Workspace are about to move together, and the field is false.
	inOtherShard bool
	// approval is whether the Stack of the Workspace lets the Update run. If it does not, nothing more is read.
	approval approvalView
	// agent is what the agent knows of the operation.
	agent agentView
	// ahead is the name of an older Update of the Workspace that is not complete, or empty. The fields from source to plan are read only if an
	// operation can start.
	ahead string
	// source is the artifact that the operation runs, with its origin; nil when the program comes from elsewhere.
	source *autov1alpha1.UpdateSource
	// artifact is the state of the artifact in the store.
	artifact artifactView
	// turn is the slot of the Update, or its place in the queue for operations. Without a slot, nothing more is read for an operation that can
	// start, and its agent is asked only if it may run the operation already.
	turn turnView
	// woken is the connection to an agent that rested and was started; nil when none was.
	woken *connection
	// request is the operation as the agent gets it; nil when requestError is why the operation cannot be described.
	request      *agentpb.StartOperationRequest
	requestError error
	// interrupted is when the operations before this one ran that were cut off, if there were any.
	interrupted []*agentpb.Period
	// references is the digest of the versions of the watched Secrets and ConfigMaps whose values are in the request.
	references string

	// inputs are the values of the inputs in the request, and the digest of the versions of what they were read from.
	inputs struct {
		items    []*agentpb.ConfigItem
		versions string
	}

	// plan is the plan that the operation carries out, when it has one.
	plan planView
	// stored is how the last attempt to store the plan of an operation that succeeded ended, if the operation saves one.
	stored storedPlan
	// outputs is how the attempt to store the outputs of an operation that succeeded ended, see actionStoreOutputs.
	outputs storedOutputs

	// startError is why the agent does not start the operation: it does not have the artifact, which is known before Secrets and ConfigMaps
	// are read, or it refused the request. Only then delivery is read: how the last attempt to deliver the artifact or the plan ended.
	startError   error
	delivery     delivery
	deliveryRead bool
}

// connection is the connection to an agent, or why there is none.
type connection struct {
	agent *client.Client
	err   error
}

// agentView is the answer of the agent.
type agentView struct {
	// asked is false as long as there is no reason to ask.
	asked bool
	// err is why there is no answer: agentruntime.ErrNoAgent, or an error of the client.
	err error
	// operation is nil when the agent does not know it.
	operation *agentpb.Operation
}

// artifactView is the state of the artifact of an operation in the store. If the operation has no artifact, ready is true.
type artifactView struct {
	ready bool
	// digest is the one under which the artifact is stored, or which the agent has to find at the URL.
	digest string
	// reference identifies the artifact in the store.
	reference artifact.Reference
	// url is where the agent fetches the artifact; empty when the controller delivers it from the store.
	url string
	err error
}

// observe gathers what a decision is made from, the cheap facts first. It stops where the rest cannot matter. For an operation that can start,
// it stops before the agent is asked: an operation needs a slot first, which actionQueue gives it.
func (r *Reconciler) observe(ctx context.Context, update *autov1alpha1.Update) (*observation, error) {
	o := &observation{now: time.Now(), update: update}
	if update.IsComplete() || isAbandoned(update) {
		return o, nil
	}
	var err error
	if o.workspace, err = r.workspaceOf(ctx, update); err != nil {
		return nil, err
	}
	// If the operation may have been started, its agent is asked in any case. Otherwise only an agent that is ready can have it.
	mayHaveStarted := mayHaveStarted(update)
	o.inOtherShard = o.workspace != nil && !r.Shard.Has(o.workspace) && !update.HasStarted()
	if o.workspace != nil && !o.inOtherShard && !mayHaveStarted {
		if err := r.observeApproval(ctx, o); err != nil || o.approval.problem != "" {
			return o, err
		}
	}
	if o.workspace == nil || o.inOtherShard || !mayHaveStarted && workspaceProblem(o.workspace) != "" {
		return o, nil
	}
	if mayHaveStarted {
		return o, r.observeAgent(ctx, o)
	}
	if o.ahead, err = r.updateAhead(ctx, update); err != nil || o.ahead != "" {
		return o, err
	}
	return o, r.observeSource(ctx, o)
}

// mayHaveStarted reports whether an agent may know the operation of an Update that is not complete.
func mayHaveStarted(update *autov1alpha1.Update) bool {
	return !update.DeletionTimestamp.IsZero() || update.HasStarted() || pulumiv1.CancelRequested(update)
}

// observeAgent asks the agent for the operation. If the agent does not know it, and the operation has a slot, it reads what the operation needs
// to start. An agent can know the operation of an Update that has not started: the controller may have ended before it wrote the start into the
// status.
func (r *Reconciler) observeAgent(ctx context.Context, o *observation) (err error) {
	agent := r.connect(ctx, o)
	o.agent = r.askAgent(ctx, agent, o.update)
	o.agent.asked = true
	if !o.turn.asked || o.turn.place > 0 || o.agent.err != nil || o.agent.operation != nil {
		o.stored = r.background.storedPlan(o.update)
		return nil
	}
	if o.plan, err = r.observePlan(ctx, o.update, o.approval.plan); err != nil || o.plan.problem != nil {
		return err
	}
	if !agent.has(ctx, o.artifact.digest) {
		o.startError, o.delivery, o.deliveryRead = client.ErrSourceMissing, r.background.lastDelivery(o.update), true
		return nil
	}
	if ptr.Deref(o.update.Spec.AfterInterruption, false) {
		updates, err := r.updatesOf(ctx, o.update.Namespace, o.update.Spec.WorkspaceName)
		if err != nil {
			return err
		}
		o.interrupted = interruptedPeriods(updates, o.update.Spec.StackName)
	}
	values := &inputReader{pods: r.Pods, Reader: inputs.Reader{
		APIReader: r.APIReader, Namespace: o.update.Namespace, Stacks: r.stackNamed, Scope: r.Scope, Watcher: r.References, Stored: r.StoredOutputs,
	}}
	o.request, o.requestError = describeOperation(ctx, o, values)
	list := stackOf(o.workspace, o.update.Spec.StackName).Inputs
	o.references = references.Digest(values.Versions(references.OfWorkspace(o.workspace, o.update.Spec.StackName)))
	o.inputs.versions = references.Digest(values.Versions(inputs.KeysOf(o.update.Namespace, list)))
	return nil
}

// workspaceOf returns the Workspace of the Update, nil when there is none.
func (r *Reconciler) workspaceOf(ctx context.Context, update *autov1alpha1.Update) (*autov1alpha1.Workspace, error) {
	workspace := &autov1alpha1.Workspace{}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Spec.WorkspaceName}
	err := r.Get(ctx, key, workspace)
	if err == nil && isBehind(workspace, update) || apierrors.IsNotFound(err) && r.Shard != nil {
		// The Update arrived before the change of the Workspace that it follows, or before the Workspace when both came from another shard. Or
		// the Workspace moved to another shard first: then it is not in the cache, but it was not deleted.
		workspace = &autov1alpha1.Workspace{}
		err = r.APIReader.Get(ctx, key, workspace)
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read workspace %q: %w", key.Name, err)
	}
	return workspace, nil
}

// isBehind reports whether the Update was created for a later generation of this very Workspace.
func isBehind(workspace *autov1alpha1.Workspace, update *autov1alpha1.Update) bool {
	// A value that is not a number counts as zero, and no Workspace is behind that.
	wanted, _ := strconv.ParseInt(update.Annotations[autov1alpha1.WorkspaceGenerationAnnotation], 10, 64)
	return metav1.IsControlledBy(update, workspace) && workspace.Generation < wanted
}

// askAgent asks the agent for the operation of the Update. The id is the UID, so an Update that was deleted and created again under its old
// name is another operation. When the agent does not answer, the end that the watch saw counts.
func (r *Reconciler) askAgent(ctx context.Context, to connection, update *autov1alpha1.Update) (view agentView) {
	err := to.err
	if err == nil {
		view.operation, err = to.agent.GetOperation(ctx, string(update.UID))
	}
	switch ended := r.background.ending(update); {
	case err != nil && ended != nil:
		return agentView{operation: ended}
	case errors.Is(err, client.ErrNotFound):
		return agentView{}
	case err != nil:
		return agentView{err: err}
	}
	return view
}

// connect returns the connection to the agent of the Workspace. It starts no agent.
func (r *Reconciler) connect(ctx context.Context, o *observation) connection {
	if o.woken != nil {
		return *o.woken
	}
	agent, err := r.Runtime.Connect(ctx, o.workspace)
	return connection{agent, err}
}

// has reports whether the agent has the artifact with the digest, if any. It returns true if the agent does not answer: the agent then reports
// a missing artifact when it is asked to start the operation.
func (c connection) has(ctx context.Context, digest string) bool {
	if digest == "" || c.err != nil {
		return true
	}
	info, err := c.agent.GetInfo(ctx)
	return err != nil || info.GetSourceDigest() == digest
}

// commitInterval is how old the answer of a git server may be while an Update waits. The Update asked for a fresh answer once, and runs the
// commit in that answer.
const commitInterval = time.Hour

// observeSource finds out which artifact the operation runs, and has it fetched or made when it is not in the store. The source is that of
// the Update, or else that of its Workspace, or else that of the previous Update. An operation whose program comes from elsewhere has none.
func (r *Reconciler) observeSource(ctx context.Context, o *observation) (err error) {
	spec := &o.workspace.Spec
	switch {
	case o.update.Spec.ProjectInfo != nil:
	case o.update.Spec.Source != nil:
		o.source = o.update.Spec.Source
	case spec.Flux != nil:
		o.source = &autov1alpha1.UpdateSource{URL: spec.Flux.URL, Digest: spec.Flux.Digest, Dir: spec.Flux.Dir}
	case spec.Local != nil || spec.ProjectInfo != nil:
	case spec.Git != nil:
		o.source, err = r.commitOf(o.update, spec.Git)
	default:
		o.source, err = r.inheritedSource(ctx, o)
	}
	if err == nil {
		err = r.checkVerified(ctx, o)
	}
	if err == nil {
		err = r.requestArtifact(ctx, o)
	}
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		o.artifact, err = artifactView{err: problem}, nil
	}
	return err
}

// checkVerified returns a *source.Problem when only what Flux has verified may run, and the operation would run something else. An
// operation that works from the state alone runs no program.
func (r *Reconciler) checkVerified(ctx context.Context, o *observation) error {
	// The Workspace may have lost its owner reference, see observeApproval.
	stack, err := readStack(ctx, r, o.workspace.Namespace, o.workspace.Name)
	if err != nil {
		return err
	}
	required, remembered := r.Sources.RequiresVerified(stack), []string(nil)
	if owner := pulumiv1.OwningStack(o.workspace); owner == nil || owner.UID == stack.UID { // not another Stack with this name
		remembered = stack.Status.VerifiedDigests()
	}
	fromState := o.update.Spec.ProjectInfo != nil || o.workspace.Spec.Local == nil && o.workspace.Spec.ProjectInfo != nil
	if !required || o.source == nil && fromState {
		return nil
	}
	return r.Sources.CheckVerified(ctx, o.update.Namespace, o.source, remembered...)
}

// commitOf returns the commit that the repository of a Workspace has for the Update. It is resolved once: as long as this controller runs,
// the Update keeps its commit.
func (r *Reconciler) commitOf(update *autov1alpha1.Update, git *autov1alpha1.GitSource) (*autov1alpha1.UpdateSource, error) {
	found, err := r.Git.Subscribe(source.GitQuery{
		Waiter:   ctrlclient.ObjectKeyFromObject(update),
		Source:   git,
		Interval: commitInterval,
		Token:    string(update.UID),
	})
	if err != nil {
		return nil, err
	}
	return found.UpdateSource(git.Dir), nil
}

// inheritedSource returns the source of the previous Update, for an Update that somebody created by hand in the Workspace of a Stack. Such
// a Workspace names no source, because the Stack names it in each Update. If the Stack requires approvals, only its own source is inherited.
// It returns nil when there is none to inherit.
func (r *Reconciler) inheritedSource(ctx context.Context, o *observation) (*autov1alpha1.UpdateSource, error) {
	workspace, update := o.workspace, o.update
	if pulumiv1.OwningStack(update) != nil || pulumiv1.OwningStack(workspace) == nil {
		return nil, nil
	}
	updates, err := r.updatesOf(ctx, update.Namespace, workspace.Name)
	latest := &autov1alpha1.Update{}
	for i := range updates {
		other := &updates[i]
		foreign := o.approval.stack != nil && !r.Sources.IsOwn(o.approval.stack, other.Spec.Source)
		if other.Spec.Source != nil && other.HasStarted() && !foreign && (latest.Name == "" || comesBefore(latest, other)) {
			latest = other
		}
	}
	from := latest.Spec.Source.DeepCopy()
	if err != nil || from == nil {
		return nil, err
	}
	if from.Git != nil {
		from.Digest = "" // the hash of the commit identifies it, and an earlier version of the controller may have packed it into other bytes
	}
	stack, err := readStack(ctx, r, workspace.Namespace, workspace.Name)
	takeNewest(from, latest.Name, stack)
	return from, err
}

// takeNewest replaces the artifact that an Update of the Stack ran with the newest one that has the same content for the Stack, as the status
// of the Stack says. The earlier one may be gone.
func takeNewest(from *autov1alpha1.UpdateSource, ranBy string, stack *pulumiv1.Stack) {
	last := stack.Status.LastUpdate
	if from.SourceRef != nil && last != nil && last.Name == ranBy && last.LastAttemptedCommit != "" {
		from.Digest, from.Revision = last.LastAttemptedCommit, stack.Status.LastAttemptedRevision
	}
}

// requestArtifact asks the store for the artifact of the operation, and starts to fetch or make it when it is not there. If somebody wrote
// a URL by hand, the agent fetches the artifact from there, with the rights of its workspace.
func (r *Reconciler) requestArtifact(ctx context.Context, o *observation) error {
	if o.source == nil {
		o.artifact = artifactView{ready: true}
		return nil
	}
	if o.source.URL != "" {
		o.artifact = artifactView{ready: true, digest: o.source.Digest, url: o.source.URL}
		return nil
	}
	kind := r.Sources.OfUpdate(o.source)
	if kind == nil {
		// The API server should have refused such a source.
		return errors.New("spec.source names neither a source, a URL, a git repository nor a Program")
	}
	reference, err := kind.Reference(o.update.Namespace, o.source)
	if err != nil {
		return fmt.Errorf("find the artifact of the update: %w", err)
	}
	stored := r.Store.Stored(reference)
	if stored == "" {
		if reference, err = kind.Locate(ctx, o.update.Namespace, o.source); err != nil {
			return fmt.Errorf("find the artifact of the update: %w", err)
		}
		stored, err = r.Artifacts.Request(reference, ctrlclient.ObjectKeyFromObject(o.update))
	}
	reference.Digest = stored
	o.artifact = artifactView{ready: err == nil && stored != "", digest: stored, reference: reference, err: err}
	return nil
}
