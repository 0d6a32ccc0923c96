package update

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

// act carries out one decision and writes the status.
func (r *Reconciler) act(ctx context.Context, o *observation, d decision) (ctrl.Result, error) {
	before := o.update.DeepCopy()
	switch d.action {
	case actionRetire:
		return r.retire(ctx, o.update)
	case actionFinish:
		markFailed(o.update, d.reason, o.now, d.message)
		return r.complete(ctx, before, o.update, "")
	case actionRecord:
		return r.record(ctx, before, o)
	case actionStart:
		return r.start(ctx, o)
	case actionCancel:
		return r.cancel(ctx, before, o, d)
	case actionFollow:
		markProgressing(o.update, o.agent.operation)
		r.ensureObserved(o.update)
	case actionReconnect:
		o.update.Status.Message = d.message
		r.ensureObserved(o.update)
	case actionWait:
		if left := d.unshown(o); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
		showWait(o.update, d)
	}
	return d.result(), r.patchStatus(ctx, before, o.update)
}

// result comes back after the time of the decision, with 10 % of jitter so that Updates which wait for the same thing do
// not come back all at once.
func (d decision) result() ctrl.Result {
	return ctrl.Result{RequeueAfter: time.Duration(float64(d.after) * (0.9 + 0.2*rand.Float64()))}
}

// showWait shows why nothing goes on. The conditions of an operation that was started say so until it ended.
func showWait(update *autov1alpha1.Update, d decision) {
	if update.HasStarted() {
		update.Status.Message = d.message
		return
	}
	markWaiting(update, d.reason, d.message)
}

// start hands the operation to the agent, and writes down that it has it afterwards: when the controller ends in between,
// the next one finds the operation at the agent.
func (r *Reconciler) start(ctx context.Context, o *observation) (ctrl.Result, error) {
	if err := r.claim(ctx, o.update); err != nil {
		return ctrl.Result{}, err
	}
	operation, err := r.startOperation(ctx, o)
	switch {
	case errors.Is(err, client.ErrSourceMissing):
		return r.act(ctx, o, r.deliver(o))
	case err != nil:
		return r.act(ctx, o, decideOnStartError(o, err))
	}
	before := o.update.DeepCopy()
	markProgressing(o.update, operation)
	o.update.Status.ReferencesDigest = o.references
	if o.source != nil {
		o.update.Status.Revision = o.source.Revision
	}
	r.commits.Forget(ctrlclient.ObjectKeyFromObject(o.update))
	// An operation of that id that has ended already is seen as such by the observer.
	r.ensureObserved(o.update)
	return ctrl.Result{RequeueAfter: followInterval}, r.patchStatus(ctx, before, o.update)
}

// startOperation makes the call. An agent that refuses a request may quote it, so the answer passes through a filter.
func (r *Reconciler) startOperation(ctx context.Context, o *observation) (*proto.Operation, error) {
	agent, err := r.runtime.Connect(ctx, o.workspace)
	if err != nil {
		return nil, err
	}
	operation, err := agent.StartOperation(ctx, o.request)
	var refusal *client.Error
	if errors.As(err, &refusal) {
		refusal.Message = redact.New(secretsOf(o.request)...).String(refusal.Message)
	}
	return operation, err
}

// secretsOf returns the values in the request that must not be seen anywhere.
func secretsOf(request *proto.StartOperationRequest) []string {
	var secrets []string
	for _, variable := range request.GetEnv() {
		if variable.GetSecret() {
			secrets = append(secrets, variable.GetText())
		}
	}
	for _, item := range request.GetConfig() {
		if item.GetSecret() {
			secrets = append(secrets, item.GetText(), item.GetJson())
		}
	}
	return secrets
}

// cancel asks the agent to end the operation of an Update that is deleted. The observer tells when it has ended.
func (r *Reconciler) cancel(ctx context.Context, before *autov1alpha1.Update, o *observation, d decision) (ctrl.Result, error) {
	agent, err := r.runtime.Connect(ctx, o.workspace)
	if err == nil {
		_, err = agent.CancelOperation(ctx, string(o.update.UID))
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cancel the operation: %w", err)
	}
	markProgressing(o.update, o.agent.operation)
	o.update.Status.Message = "the operation is being cancelled"
	r.ensureObserved(o.update)
	return d.result(), r.patchStatus(ctx, before, o.update)
}

// record completes the Update with the result of its operation. Its outputs are stored first: the agent keeps the result
// until the status has it, so whatever fails here is done again.
func (r *Reconciler) record(ctx context.Context, before *autov1alpha1.Update, o *observation) (ctrl.Result, error) {
	operation := o.agent.operation
	problem := ""
	if o.agent.resultLost {
		problem = "the outputs are lost: the agent cannot read them any more"
	}
	if hasOutputs(operation) && o.update.DeletionTimestamp.IsZero() {
		var stored bool
		var err error
		stored, problem, err = r.storeOutputs(ctx, o.update, operation)
		leftover := errors.Is(err, errLeftoverOutputs)
		switch {
		case leftover && o.now.Sub(operation.GetEndTime().AsTime()) < leftoverPatience:
			// The garbage collector gives no sign, so only time brings the Update back.
			return ctrl.Result{RequeueAfter: 2 * time.Second}, nil
		case leftover:
			problem = "the outputs are not stored: " + err.Error()
		case err != nil:
			return ctrl.Result{}, err
		}
		if stored {
			o.update.Status.Outputs = outputsSecretName(o.update)
		}
	}
	markResult(o.update, operation, problem)
	return r.complete(ctx, before, o.update, problem)
}

// complete writes the result, tells about it, and ends the care for the Update.
func (r *Reconciler) complete(ctx context.Context, before, update *autov1alpha1.Update, problem string) (ctrl.Result, error) {
	if err := r.patchStatus(ctx, before, update); err != nil {
		return ctrl.Result{}, err
	}
	if problem != "" {
		r.recorder.Event(update, corev1.EventTypeWarning, eventOutputsNotStored, problem)
	}
	if update.HasFailed() {
		r.recorder.Event(update, corev1.EventTypeWarning, eventFailed, update.Status.Message)
	} else {
		r.recorder.Event(update, corev1.EventTypeNormal, eventSucceeded, update.Status.Message)
	}
	return r.retire(ctx, update)
}
