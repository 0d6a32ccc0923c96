package update

import (
	"errors"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/patch"
)

const (
	// storeTimeout bounds how long a plan, or outputs, wait until they can be stored. The agent keeps them meanwhile.
	storeTimeout = 10 * time.Minute
	// refusedTimeout is the same for outputs that the API server refuses, as with a quota. A right that is missing while an upgrade replaces a role is
	// back sooner. The Stack counts as being updated meanwhile, also if nobody needs its outputs.
	refusedTimeout = time.Minute
	// storeRetryInterval and storeRetryLimit are the shortest and the longest time between two attempts to store them.
	storeRetryInterval = 2 * time.Second
	storeRetryLimit    = time.Minute
)

// savesPlan reports whether the operation succeeded and has a plan to store.
func savesPlan(update *autov1alpha1.Update, operation *agentpb.Operation) bool {
	return update.SavesPlan() && operation.GetState() == agentpb.OperationState_OPERATION_STATE_SUCCEEDED
}

// decideOnStorage stores the plan of an operation that succeeded before its result is recorded.
func decideOnStorage(o *observation) decision {
	ended := o.agent.operation.GetEndTime()
	switch err := o.stored.err; {
	case o.agent.operation.GetPlan() == nil:
		return interrupted("the agent made no plan: it is of an earlier version, and is about to be replaced")
	case o.stored.plan != nil:
		return decision{action: actionRecord, wake: byNothing}
	case err == nil:
		return decision{action: actionStorePlan, message: "the plan is being stored", wake: byDelivery, after: 2 * planTimeout}
	case errors.Is(err, client.ErrTooLarge):
		return finish(autov1alpha1.PlanTooLargeReason, "the plan is too large to be kept: "+err.Error()+". Use `enforce: Inputs`, which needs no file of Pulumi")
	case ended != nil && o.now.Sub(ended.AsTime()) > storeTimeout:
		return finish(autov1alpha1.UpdateFailedReason, "the plan was made and cannot be stored: "+err.Error())
	default:
		since := storeRetryInterval
		if ended != nil {
			since = o.now.Sub(ended.AsTime())
		}
		delay := backoff.Proportional(since, storeRetryInterval, storeRetryLimit)
		message := "the plan cannot be stored, which is tried again: " + err.Error()
		if left := backoff.Left(delay, o.stored.at, o.now); left > 0 {
			return retryAfter(autov1alpha1.UpdateTransientFailureReason, message, left)
		}
		return decision{action: actionStorePlan, message: message, wake: byDelivery, after: 2 * planTimeout}
	}
}

// decideOnOutputs stores the outputs of an operation that succeeded before its result is recorded, because the agent forgets them then.
func decideOnOutputs(o *observation) decision {
	since, limit := o.now.Sub(o.agent.operation.GetEndTime().AsTime()), storeTimeout
	if patch.IsRefused(o.outputs.err) {
		limit = refusedTimeout
	}
	switch err := o.outputs.err; {
	case !o.outputs.tried:
		return decision{action: actionStoreOutputs, wake: byDecision}
	case err == nil, errors.Is(err, errForeignOutputs), since > limit:
		return decision{action: actionRecord, wake: byNothing}
	default:
		return retryAfter(autov1alpha1.UpdateTransientFailureReason, "the outputs cannot be stored, which is tried again: "+err.Error(),
			backoff.Proportional(since, storeRetryInterval, storeRetryLimit))
	}
}

// decideOnPlanDelivery sends the plan to an agent that asks for it. A plan that differs from the one that was saved ends the Update.
func decideOnPlanDelivery(o *observation) decision {
	problem := (*planProblem)(nil)
	switch err := o.delivery.err; {
	case errors.As(err, &problem):
		return finish(problem.reason, problem.Error())
	case errors.Is(err, client.ErrDigestMismatch), errors.Is(err, client.ErrInvalid):
		return finish(autov1alpha1.PlanStaleReason, "the plan is not as it was saved: "+err.Error()+"; nothing was changed")
	case errors.Is(err, client.ErrTooLarge):
		return finish(autov1alpha1.PlanTooLargeReason, err.Error())
	}
	return deliverTo(o, actionDeliverPlan, "plan", o.plan.saved.FileDigest, planTimeout)
}
