package update

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/controller/hashkey"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/patch"
)

// Reasons of events. The Stack controller records the event about the end of an Update that belongs to a Stack.
const (
	eventSucceeded = "UpdateSucceeded"
	eventFailed    = "UpdateFailed"
	eventExpired   = "UpdateExpired"
	// eventOutputsNotStored warns that an operation succeeded but that some or all of its outputs are not in a Secret.
	eventOutputsNotStored = "OutputsNotStored"
	// eventPulumiWarning shows, at the Stack, what pulumi warned about in an operation that succeeded, such as a misspelled field in a
	// program.
	eventPulumiWarning = "PulumiWarning"
)

// act carries out one decision and writes the status.
func (r *Reconciler) act(ctx context.Context, o *observation, d decision) (ctrl.Result, error) {
	before := o.update.DeepCopy()
	r.measure(o, d)
	switch {
	case d.action == actionWait && d.wake != byTurn && !o.turn.tried, d.action == actionRepeat, d.action == actionReconnect && isLost(o):
		r.turns.leave(ctrlclient.ObjectKeyFromObject(o.update))
	case d.action == actionFollow, d.action == actionStorePlan, d.action == actionCancel, d.action == actionReconnect:
		r.turns.hold(o.update)
	}
	switch d.action {
	case actionFinalize:
		return r.finalize(ctx, o.update)
	case actionFinish:
		o.update.Status.NotRun = !mayHaveRun(o)
		markFailed(o.update, d.reason, o.now, d.message)
		return r.complete(ctx, before, o.update, &agentpb.Operation{}, "")
	case actionRecord:
		return r.record(ctx, before, o)
	case actionCancel:
		if err := r.cancel(ctx, o); err != nil {
			return ctrl.Result{}, err
		}
		r.ensureWatched(o.update)
	case actionFollow:
		markProgressing(o.update, o.agent.operation)
		r.ensureWatched(o.update)
	case actionRepeat:
		r.background.stop(ctrlclient.ObjectKeyFromObject(o.update))
		markRepeated(o.update, d.reason, d.message)
	case actionReconnect:
		o.update.Status.Message = d.message
		r.ensureWatched(o.update)
	case actionStorePlan:
		markProgressing(o.update, o.agent.operation)
		// The operation does not count as succeeded before its plan is stored.
		o.update.Status.State, o.update.Status.Message = autov1alpha1.UpdateStateRunning, d.message
		r.storePlan(o)
	case actionDeliver, actionDeliverPlan, actionWait:
		if o.deliveryRead {
			r.background.forgetDelivery(o.update) // the next reconcile makes another attempt
		}
		switch d.action {
		case actionDeliver:
			r.deliver(o)
		case actionDeliverPlan:
			r.deliverPlan(o)
		}
		if left := d.hiddenFor(o); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
		if o.outputs.tried {
			// The operation does not count as succeeded before its outputs are stored.
			markProgressing(o.update, o.agent.operation)
			o.update.Status.State = autov1alpha1.UpdateStateRunning
		}
		markWaiting(o.update, d.reason, d.message)
	}
	return comeBack(d), patch.Status(ctx, r, before, o.update)
}

// comeBack returns when the Update comes back. The jitter keeps Updates that wait for the same thing from coming back all at once.
func comeBack(d decision) ctrl.Result {
	return ctrl.Result{RequeueAfter: time.Duration(float64(d.after) * (0.9 + 0.2*rand.Float64()))}
}

// startAndFollow starts the operation, which happens once (see once.go), and watches it. If the agent does not start it, the observation has the reason afterwards, and nothing
// else has happened.
func (r *Reconciler) startAndFollow(ctx context.Context, o *observation, d decision) (ctrl.Result, error) {
	claimed, err := r.identifyInputs(ctx, o)
	if err != nil {
		return r.notStarted(o, err)
	}
	if err := r.claim(ctx, o.update, claimed); err != nil {
		return ctrl.Result{}, err
	}
	before := o.update.DeepCopy()
	if err := r.start(ctx, o); err != nil {
		return r.notStarted(o, err)
	}
	r.ensureWatched(o.update)
	return comeBack(d), patch.Status(ctx, r, before, o.update)
}

// notStarted adds to the observation why the operation was not started.
func (r *Reconciler) notStarted(o *observation, err error) (ctrl.Result, error) {
	o.startError = err
	o.delivery, o.deliveryRead = r.background.lastDelivery(o.update), true
	return ctrl.Result{}, nil
}

// identifyInputs returns the annotations that identify the values of the inputs in the request. It also adds the key of the hashes to a request
// about a plan.
func (r *Reconciler) identifyInputs(ctx context.Context, o *observation) (map[string]string, error) {
	if o.request.GetPlan() == nil && len(o.inputs.items) == 0 {
		return nil, nil
	}
	key, err := hashkey.Keys{APIReader: r.APIReader, Writer: r.Client}.Of(ctx, o.workspace)
	if err != nil {
		return nil, err
	}
	if o.request.GetPlan() != nil {
		o.request.Plan.Key = key
	}
	if len(o.inputs.items) == 0 {
		return nil, nil
	}
	return map[string]string{
		pulumiv1.InputValuesDigestAnnotation:   inputs.Digest(inputs.ValueIDs(key, o.inputs.items)),
		pulumiv1.InputVersionsDigestAnnotation: o.inputs.versions,
	}, nil
}

// start asks the agent to start the operation, and sets the status afterwards. If the controller ends in between, the next one finds the
// operation at the agent. If an operation with this id has already ended, its watch reports that.
func (r *Reconciler) start(ctx context.Context, o *observation) error {
	agent, err := r.Runtime.Wake(ctx, o.workspace)
	if err != nil {
		return err
	}
	r.turns.trying(o.update)
	operation, err := agent.StartOperation(ctx, o.request)
	switch {
	case client.Unanswered(err):
		o.turn.tried = true
	case err != nil:
		r.turns.settle(ctrlclient.ObjectKeyFromObject(o.update))
	}
	if refusal := (*client.Error)(nil); errors.As(err, &refusal) {
		// The message of an agent that refuses a request may quote the request, and those who read a status may not read Secrets. Nobody knows
		// which agent is in the image, so the controller does not rely on it. To leave every message out would leave users without the reason:
		// most requests have secrets. All tenants share this worker, so only a bounded amount is looked for. If there is more, the message is
		// withheld, and the kind of the refusal remains.
		refusal.Message = redact.Brief(refusal.Message, secretsOf(o.request))
	}
	if err != nil {
		return err
	}
	r.Metrics.Started(o.update)
	markProgressing(o.update, operation)
	o.update.Status.ReferencesDigest = o.references
	if o.source != nil {
		o.update.Status.Revision = o.source.Revision
	}
	r.Git.Forget(ctrlclient.ObjectKeyFromObject(o.update))
	return nil
}

// secretsOf returns the values in the request that must not be seen anywhere, those inside JSON documents, too. It copies none.
func secretsOf(request *agentpb.StartOperationRequest) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, variable := range request.GetEnv() {
			if variable.GetSecret() && !yield(variable.GetText()) {
				return
			}
		}
		for _, item := range request.GetConfig() {
			if !item.GetSecret() {
				continue
			}
			if !yield(item.GetText()) || !yield(item.GetJson()) {
				return
			}
			for leaf := range redact.Leaves(item.GetJson()) {
				if !yield(leaf) {
					return
				}
			}
		}
	}
}

// cancel asks the agent to end the operation. The watch of the operation reports its end.
func (r *Reconciler) cancel(ctx context.Context, o *observation) error {
	agent, err := r.Runtime.Wake(ctx, o.workspace)
	if err == nil {
		_, err = agent.CancelOperation(ctx, string(o.update.UID))
	}
	if err != nil {
		return fmt.Errorf("cancel the operation: %w", err)
	}
	markProgressing(o.update, o.agent.operation)
	o.update.Status.Message = "the operation is being cancelled"
	return nil
}

// record completes the Update with the result of its operation. The agent keeps the result until it is in the status, so a step that fails
// here is repeated.
func (r *Reconciler) record(ctx context.Context, before *autov1alpha1.Update, o *observation) (ctrl.Result, error) {
	operation, problem := o.agent.operation, o.outputs.omitted
	o.update.Status.Outputs = o.outputs.secret
	if hasOutputs(operation) && o.outputs.secret == "" {
		why := autov1alpha1.UpdateWasDeleted
		if o.outputs.err != nil {
			why = o.outputs.err.Error()
		}
		o.update.Status.OutputsNotStored, problem = why, "the outputs are not stored: "+why
	}
	markResult(o.update, operation, problem)
	o.update.Status.Plan = o.stored.plan
	return r.complete(ctx, before, o.update, operation, problem)
}

// subjectOf returns the Stack that the Update belongs to, for an event about it; the Update itself if it has none.
func subjectOf(update *autov1alpha1.Update) runtime.Object {
	owner := pulumiv1.OwningStack(update)
	if owner == nil {
		return update
	}
	return &pulumiv1.Stack{
		APIVersion: owner.APIVersion, Kind: owner.Kind,
		Namespace: update.Namespace, Name: owner.Name, UID: owner.UID,
	}
}

// warn records an event about what Pulumi warned about, if it was anything. What a program has in each of its updates is announced once, and again
// after a restart of the controller.
func (r *Reconciler) warn(update *autov1alpha1.Update, warnings string) {
	if owner := pulumiv1.OwningStack(update); owner != nil && !update.HasFailed() {
		key, text := warningKey{update.Namespace, owner.UID, update.Spec.Type, update.ChangesNothing()}, sha256.Sum256([]byte(warnings))
		if last, known := r.warned.Get(key); known && last == text {
			return
		}
		r.warned.Add(key, text)
	}
	if warnings != "" {
		r.Event(subjectOf(update), corev1.EventTypeWarning, eventPulumiWarning, warnings)
	}
}

// warningKey is a kind of operation on a Stack. A preview, or a check for drift, may have other warnings than an update. Anybody can write the UID of
// a Stack of another namespace.
type warningKey struct {
	namespace      string
	stack          types.UID
	kind           autov1alpha1.UpdateType
	changesNothing bool
}

// maxWarned is of how many kinds of operations the warnings are remembered, in 400 bytes each.
const maxWarned = 20_000

// complete writes the result, counts it, records events about it, and finalizes the Update. The operation is empty when there was none.
func (r *Reconciler) complete(ctx context.Context, before, update *autov1alpha1.Update, operation *agentpb.Operation, problem string) (ctrl.Result, error) {
	if err := patch.Status(ctx, r, before, update); err != nil {
		return ctrl.Result{}, err
	}
	r.Metrics.Ended(update, tookOf(operation))
	r.warn(update, strings.Join(operation.GetWarnings(), "; "))
	if problem != "" {
		r.Event(update, corev1.EventTypeWarning, eventOutputsNotStored, problem)
	}
	switch {
	case pulumiv1.OwningStack(update) != nil:
	case !update.DeletionTimestamp.IsZero() && update.Status.StartTime == nil:
		// The operation never ran, and the user who deleted the Update knows that.
	case update.HasFailed():
		r.Event(update, corev1.EventTypeWarning, eventFailed, update.Status.Message)
	default:
		r.Event(update, corev1.EventTypeNormal, eventSucceeded, update.Status.Message)
	}
	return r.finalize(ctx, update)
}
