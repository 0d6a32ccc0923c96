package update

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

func TestEveryWaitIsInAPhase(t *testing.T) {
	tests := map[string]struct {
		change func(*observation)
		want   metrics.Phase
	}{
		"no workspace":            {noWorkspace, metrics.PhaseWorkspace},
		"no agent":                {func(o *observation) { o.agent.err = agentruntime.ErrNoAgent }, metrics.PhaseWorkspace},
		"another update is ahead": {func(o *observation) { o.ahead = "first" }, metrics.PhaseQueue},
		"not its turn":            {func(o *observation) { o.turn = turnView{asked: true, place: 1, limit: 1} }, metrics.PhaseQueue},
		"the agent is busy":       {func(o *observation) { o.startError = client.ErrBusy }, metrics.PhaseQueue},
		"artifact on its way":     {func(o *observation) { o.artifact.ready = false }, metrics.PhaseFetch},
		"artifact refused":        {func(o *observation) { o.artifact = artifactView{err: errors.New("x")} }, metrics.PhaseFetch},
		"artifact to be pushed":   {func(o *observation) { o.startError = client.ErrSourceMissing }, metrics.PhaseDelivery},
		"a Secret is missing":     {func(o *observation) { o.requestError = &inputs.MissingError{} }, metrics.PhaseOther},
		"something else":          {func(o *observation) { o.startError = errors.New("x") }, metrics.PhaseOther},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := ready(tt.change)
			d := decide(o)
			g.Expect(d.action).To(Or(Equal(actionWait), Equal(actionDeliver)))
			g.Expect(phaseOf(o, d)).To(Equal(tt.want))
		})
	}
}

func TestTimeOfAnOperationIsThatOfPulumiAndOfItsPreparation(t *testing.T) {
	start := timestamppb.New(testTime)
	end := timestamppb.New(testTime.Add(10 * time.Second))
	const succeeded, failed = agentpb.OperationState_OPERATION_STATE_SUCCEEDED, agentpb.OperationState_OPERATION_STATE_FAILED
	tests := map[string]struct {
		operation *agentpb.Operation
		want      metrics.Took
	}{
		"none":               {&agentpb.Operation{}, metrics.Took{}},
		"one that ran":       {&agentpb.Operation{State: failed, StartTime: start, EndTime: end, RunTime: durationpb.New(7 * time.Second)}, metrics.Took{Total: 10 * time.Second, Run: 7 * time.Second}},
		"one that did not":   {&agentpb.Operation{State: failed, StartTime: start, EndTime: end}, metrics.Took{Total: 10 * time.Second}},
		"of an older agent":  {&agentpb.Operation{State: succeeded, StartTime: start, EndTime: end}, metrics.Took{Total: 10 * time.Second, Run: 10 * time.Second}},
		"without a start":    {&agentpb.Operation{State: failed, EndTime: end, RunTime: durationpb.New(time.Second)}, metrics.Took{}},
		"cut off by the end": {&agentpb.Operation{State: failed, StartTime: start}, metrics.Took{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tookOf(tt.operation)).To(Equal(tt.want))
		})
	}
}
