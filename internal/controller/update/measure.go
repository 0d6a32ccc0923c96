package update

import (
	"errors"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

// measure reports the phase of the Update after this decision to the metrics. The start and the end of an operation are reported where they
// happen.
func (r *Reconciler) measure(o *observation, d decision) {
	switch d.action {
	case actionFinalize:
		// The Update was counted when it was completed. A cache that was behind may have added it again since.
		r.Metrics.Forget(ctrlclient.ObjectKeyFromObject(o.update))
	case actionFollow, actionCancel, actionReconnect, actionStorePlan:
		r.Metrics.Running(o.update)
	case actionWait, actionDeliver, actionDeliverPlan:
		if o.update.HasStarted() {
			r.Metrics.Running(o.update)
			return
		}
		r.Metrics.Waiting(o.update, phaseOf(o, d), waitingSince(o.update))
	}
}

// phaseOf returns what an Update that has not started waits for, in the order of decideOnStart.
func phaseOf(o *observation, d decision) metrics.Phase {
	switch {
	case d.reason == autov1alpha1.QueuedReason:
		return metrics.PhaseQueue
	case o.workspace == nil, o.inOtherShard, workspaceProblem(o.workspace) != "", o.agent.err != nil:
		return metrics.PhaseWorkspace
	case o.artifact.err != nil, !o.artifact.ready:
		return metrics.PhaseFetch
	case errors.Is(o.startError, client.ErrSourceMissing), errors.Is(o.startError, client.ErrPlanMissing):
		return metrics.PhaseDelivery
	}
	return metrics.PhaseOther
}

// waitingSince is since when the status says that the Update waits; zero when it says nothing.
func waitingSince(update *autov1alpha1.Update) time.Time {
	if progressing := conditions.Get(update, autov1alpha1.UpdateProgressing); progressing != nil {
		return progressing.LastTransitionTime.Time
	}
	return time.Time{}
}

// tookOf is how long the operation took; zero when there was none.
func tookOf(operation *agentpb.Operation) metrics.Took {
	if operation.GetStartTime() == nil || operation.GetEndTime() == nil {
		return metrics.Took{}
	}
	took := metrics.Took{
		Total: operation.GetEndTime().AsTime().Sub(operation.GetStartTime().AsTime()),
		Run:   operation.GetRunTime().AsDuration(),
	}
	if operation.GetRunTime() == nil && operation.GetState() == agentpb.OperationState_OPERATION_STATE_SUCCEEDED {
		// An agent of an earlier version does not report the run time. For an operation that succeeded, all of its time counts.
		took.Run = took.Total
	}
	return took
}
