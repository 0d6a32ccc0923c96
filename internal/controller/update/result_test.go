package update

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestEveryFailureHasAReason(t *testing.T) {
	g := NewWithT(t)
	seen := map[string]bool{}
	for number, name := range agentpb.FailureReason_name {
		reason, known := updateReasons[agentpb.FailureReason(number)]
		g.Expect(known).To(BeTrue(), name)
		g.Expect(seen[reason]).To(BeFalse(), "%s shares the reason %s", name, reason)
		seen[reason] = true
	}
	g.Expect(failureReason(&agentpb.Operation{State: agentpb.OperationState_OPERATION_STATE_FAILED, Failure: 999})).To(Equal(autov1alpha1.UnknownReason))
}

func TestStackThatMustExistIsLostWhenItDoesNot(t *testing.T) {
	for required, reason := range map[bool]string{false: autov1alpha1.StackNotFoundReason, true: autov1alpha1.StackLostReason} {
		g := NewWithT(t)
		update := &autov1alpha1.Update{}
		update.Spec.StackName, update.Spec.RequireStack = "dev", &required
		markResult(update, &agentpb.Operation{
			State: agentpb.OperationState_OPERATION_STATE_FAILED, Failure: agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, Message: "no stack named 'dev' found",
		}, "")
		g.Expect(conditions.GetReason(update, autov1alpha1.UpdateFailed)).To(Equal(reason))
		g.Expect(update.Status.Message).To(ContainSubstring("dev"))
	}
}

func TestALostStackMayHaveBeenRemovedByADestroyThatWasInterrupted(t *testing.T) {
	for _, test := range []struct {
		kind                       autov1alpha1.UpdateType
		removes, afterInterruption bool
		says                       bool
	}{
		{autov1alpha1.UpdateTypeDestroy, true, true, true},
		{autov1alpha1.UpdateTypeDestroy, true, false, false},
		{autov1alpha1.UpdateTypeDestroy, false, true, false},
		{autov1alpha1.UpdateTypeUp, true, true, false},
	} {
		message := describeMissing(&autov1alpha1.UpdateSpec{StackName: "dev", Type: test.kind, Remove: &test.removes, AfterInterruption: &test.afterInterruption})
		NewWithT(t).Expect(strings.Contains(message, pulumiv1.OrphanAnnotation+"=true")).To(Equal(test.says), "%+v", test)
	}
}

func TestEveryStateIsShown(t *testing.T) {
	g := NewWithT(t)
	for number, name := range agentpb.OperationState_name {
		if number == 0 {
			continue
		}
		g.Expect(updateStates).To(HaveKey(agentpb.OperationState(number)), name)
	}
}

func TestResultIsShownInConditions(t *testing.T) {
	start, end := testTime, testTime.Add(time.Minute)
	operation := func(state agentpb.OperationState, failure agentpb.FailureReason) *agentpb.Operation {
		return &agentpb.Operation{
			Kind: agentpb.OperationKind_OPERATION_KIND_UP, State: state, Failure: failure, Message: "what happened",
			StartTime: timestamppb.New(start), EndTime: timestamppb.New(end), ResourceChanges: map[string]int64{"create": 2},
			Permalink: "https://console/1", Project: &agentpb.ProjectSource{Name: "p", Runtime: "yaml"},
		}
	}
	type condition struct{ status, reason string }
	tests := []struct {
		name                          string
		operation                     *agentpb.Operation
		progressing, failed, complete condition
		state                         autov1alpha1.UpdateState
	}{
		{"success", operation(agentpb.OperationState_OPERATION_STATE_SUCCEEDED, 0),
			condition{"False", "Complete"}, condition{"False", "UpdateSucceeded"}, condition{"True", "Updated"}, autov1alpha1.UpdateStateSucceeded},
		{"failure", operation(agentpb.OperationState_OPERATION_STATE_FAILED, agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED),
			condition{"False", "Failed"}, condition{"True", "InvalidAccessToken"}, condition{"True", "Failed"}, autov1alpha1.UpdateStateFailed},
		{"interruption", operation(agentpb.OperationState_OPERATION_STATE_INTERRUPTED, 0),
			condition{"False", "Failed"}, condition{"True", "Interrupted"}, condition{"True", "Failed"}, autov1alpha1.UpdateStateInterrupted},
		{"cancellation", operation(agentpb.OperationState_OPERATION_STATE_CANCELLED, 0),
			condition{"False", "Failed"}, condition{"True", "Canceled"}, condition{"True", "Failed"}, autov1alpha1.UpdateStateCancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			update := &autov1alpha1.Update{}
			update.Generation = 3
			markResult(update, tt.operation, "")
			for kind, want := range map[string]condition{
				autov1alpha1.UpdateProgressing: tt.progressing, autov1alpha1.UpdateFailed: tt.failed, autov1alpha1.UpdateComplete: tt.complete,
			} {
				got := conditions.Get(update, kind)
				g.Expect(got).NotTo(BeNil(), kind)
				g.Expect(condition{string(got.Status), got.Reason}).To(Equal(want), kind)
				g.Expect(got.Message).To(Equal("what happened"))
				g.Expect(got.ObservedGeneration).To(BeEquivalentTo(3))
			}
			status := update.Status
			g.Expect(status.ObservedGeneration).To(BeEquivalentTo(3))
			g.Expect(status.State).To(Equal(tt.state))
			g.Expect(status.StartTime.Time).To(BeTemporally("==", start))
			g.Expect(status.EndTime.Time).To(BeTemporally("==", end))
			g.Expect(status.ResourceChanges).To(HaveKeyWithValue("create", int64(2)))
			g.Expect(status.Permalink).To(Equal("https://console/1"))
			g.Expect(status.ProjectInfo).To(Equal(&autov1alpha1.ProjectInfo{Name: "p", Runtime: "yaml"}))
		})
	}
}

func TestConflictNamesTheHolderOfTheLock(t *testing.T) {
	g := NewWithT(t)
	message := resultMessage(&agentpb.Operation{
		Failure: agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT,
		Message: "the stack is locked",
		LockHolder: &agentpb.LockHolder{
			User: "alice", Host: "laptop", Pid: 7, Since: timestamppb.New(testTime),
		},
	})
	g.Expect(message).To(Equal("the stack is locked by alice@laptop (pid 7) since 2026-03-01T12:00:00Z: " +
		"it goes on when that process has ended; a lock that is left over is removed with `pulumi cancel`"))
}

func TestResultAlwaysHasAMessage(t *testing.T) {
	g := NewWithT(t)
	g.Expect(resultMessage(&agentpb.Operation{
		Kind: agentpb.OperationKind_OPERATION_KIND_UP, State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED,
	})).To(Equal("up succeeded"))
}
