package update

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ready is an observation of an Update that can start.
func ready(changes ...func(*observation)) *observation {
	o := &observation{
		now: testTime,
		update: &autov1alpha1.Update{
			Name: "up", Generation: 1,
			Spec: autov1alpha1.UpdateSpec{WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
		},
		workspace: &autov1alpha1.Workspace{
			Name: "app", Generation: 2,
			Status: autov1alpha1.WorkspaceStatus{ObservedGeneration: 2},
		},
		artifact: artifactView{ready: true},
		turn:     turnView{asked: true},
		agent:    agentView{asked: true},
		request:  &agentpb.StartOperationRequest{},
	}
	conditions.MarkTrue(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.SucceededReason, "ready")
	for _, change := range changes {
		change(o)
	}
	return o
}

func started(o *observation) { o.update.Status.StartTime = &metav1.Time{Time: testTime} }

func previews(o *observation) { o.update.Spec.Type = autov1alpha1.UpdateTypePreview }

// repeated makes the Update one whose operation was lost and reset.
func repeated(o *observation) { markRepeated(o.update, autov1alpha1.QueuedReason, "once more") }

func deleted(ago time.Duration) func(*observation) {
	return func(o *observation) { o.update.DeletionTimestamp = &metav1.Time{Time: testTime.Add(-ago)} }
}

// cancelled makes the Update one whose cancellation is requested.
func cancelled(o *observation) {
	o.update.Annotations = map[string]string{pulumiv1.CancelUpdateAnnotation: "true"}
}

// abandoned makes the Update one that the Pulumi Kubernetes Operator started.
func abandoned(o *observation) {
	conditions.MarkTrue(o.update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "")
}

func noWorkspace(o *observation) { o.workspace = nil }

func workspaceDeleted(o *observation) { o.workspace.DeletionTimestamp = &metav1.Time{Time: testTime} }

func workspaceUnready(o *observation) {
	conditions.MarkFalse(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.InitializingReason, "the agent starts")
}

func operationIs(state agentpb.OperationState) func(*observation) {
	return func(o *observation) { o.agent.operation = &agentpb.Operation{State: state} }
}

func agentFails(err error) func(*observation) {
	return func(o *observation) { o.agent.err = err }
}

func fetchFails(kind artifact.Kind) func(*observation) {
	return func(o *observation) { o.artifact = artifactView{err: &artifact.FetchError{Kind: kind}} }
}

func sourceFails(problem *source.Problem) func(*observation) {
	return func(o *observation) { o.artifact.err = problem }
}

func startFails(err error) func(*observation) {
	return func(o *observation) { o.startError = err }
}

// deliveryFails makes the agent ask for an artifact whose last delivery ended with the error.
func deliveryFails(err error) func(*observation) {
	return func(o *observation) { o.startError, o.delivery = client.ErrSourceMissing, delivery{err: err} }
}

// with returns a copy of the observation with the changes.
func with(o *observation, changes ...func(*observation)) *observation {
	changed := *o
	for _, change := range changes {
		change(&changed)
	}
	return &changed
}

func requestFails(err error) func(*observation) {
	return func(o *observation) { o.request, o.requestError = nil, err }
}

// waiting makes the Update one that has waited for the reason for so long.
func waiting(reason string, since time.Duration) func(*observation) {
	return func(o *observation) {
		markWaiting(o.update, reason, "as before")
		for i := range o.update.Status.Conditions {
			o.update.Status.Conditions[i].LastTransitionTime = metav1.NewTime(testTime.Add(-since))
		}
	}
}

func TestDecide(t *testing.T) {
	refusal := func(kind error) error { return &client.Error{What: "call", Kind: kind, Message: "because"} }
	unavailable := &client.Error{What: "get operation", Kind: client.ErrUnavailable, Message: "refused"}
	missing := &inputs.MissingError{Kind: references.Secret, Name: "token", Key: "value", UsedBy: "it"}
	running, succeeded := agentpb.OperationState_OPERATION_STATE_RUNNING, agentpb.OperationState_OPERATION_STATE_SUCCEEDED

	tests := []struct {
		name    string
		o       *observation
		action  action
		reason  string
		wake    waker
		after   time.Duration
		message string
	}{
		{name: "all is there", o: ready(), action: actionStart, wake: byObserver, after: followInterval},
		{name: "complete", o: ready(func(o *observation) { markSucceeded(o.update, testTime, "done") }), action: actionFinalize, wake: byNothing},
		{name: "complete and deleted", o: ready(func(o *observation) { markSucceeded(o.update, testTime, "done") }, deleted(0)),
			action: actionFinalize, wake: byNothing},

		{name: "no workspace", o: ready(noWorkspace), action: actionWait, reason: "WorkspaceNotFound", wake: byWorkspace, message: `"app" does not exist`},
		{name: "workspace of another shard", o: ready(func(o *observation) { o.inOtherShard = true }), action: actionWait, reason: "WorkspaceNotFound",
			wake: byWorkspace, message: "give the update the labels of its workspace"},
		{name: "workspace not ready", o: ready(workspaceUnready), action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace,
			message: "Initializing: the agent starts"},
		{name: "workspace with a pulumi CLI that is too old", o: ready(func(o *observation) {
			conditions.MarkFalse(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.IncompatibleConfigurationReason, "pulumi CLI v3.1.0 is not supported")
		}), action: actionWait, reason: "IncompatibleConfiguration", wake: byWorkspace, message: "v3.1.0"},
		{name: "workspace ready for an earlier generation", o: ready(func(o *observation) { o.workspace.Generation++ }),
			action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "is being changed"},
		{name: "workspace idle", o: ready(func(o *observation) {
			conditions.MarkTrue(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.IdleReason, "no pod runs")
		}), action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "is idle"},
		{name: "workspace without status", o: ready(func(o *observation) { o.workspace.Status.Conditions = nil }),
			action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "not ready yet"},
		{name: "workspace deleted", o: ready(workspaceDeleted), action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "being deleted"},
		{name: "another update first", o: ready(func(o *observation) { o.ahead = "earlier" }), action: actionWait, reason: autov1alpha1.QueuedReason, wake: byUpdates,
			message: `"earlier"`},

		{name: "agent unavailable", o: ready(agentFails(unavailable)), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "agent unavailable for long", o: ready(agentFails(unavailable), waiting("TransientFailure", 40*time.Second)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 20 * time.Second},
		{name: "agent unavailable for very long", o: ready(agentFails(unavailable), waiting("TransientFailure", time.Hour)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: time.Minute},
		{name: "agent not found yet", o: ready(agentFails(agentruntime.ErrNoAgent)), action: actionWait, reason: "TransientFailure", wake: byTime, after: time.Second},

		{name: "agent that rests", o: ready(agentFails(agentruntime.ErrResting)), action: actionWake, wake: byDecision},
		{name: "agent that rests, of an update that was deleted", o: ready(deleted(0), agentFails(agentruntime.ErrResting)), action: actionWake, wake: byDecision},
		{name: "agent that rests although it was woken", o: ready(agentFails(agentruntime.ErrResting), func(o *observation) { o.woken = &connection{} }),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: time.Second},

		{name: "artifact being fetched", o: ready(func(o *observation) { o.artifact.ready = false }),
			action: actionWait, reason: autov1alpha1.ArtifactPendingReason, wake: byFetch},
		{name: "artifact being fetched again", o: ready(func(o *observation) { o.artifact.ready = false }, waiting(pulumiv1.ArtifactDigestMismatchReason, time.Minute)),
			action: actionWait, reason: "ArtifactDigestMismatch", wake: byFetch, message: "as before"},
		{name: "artifact not found", o: ready(fetchFails(artifact.NotFound)), action: actionWait, reason: "ArtifactFetchFailed", wake: byTime, after: artifactRetryInterval},
		{name: "artifact unavailable", o: ready(fetchFails(artifact.Unavailable)), action: actionWait, reason: "ArtifactFetchFailed", wake: byTime, after: artifactRetryInterval},
		{name: "artifact with a wrong digest", o: ready(fetchFails(artifact.Integrity)), action: actionWait, reason: "ArtifactDigestMismatch", wake: byTime, after: artifactRetryInterval},
		{name: "artifact too large", o: ready(fetchFails(artifact.TooLarge)), action: actionWait, reason: "ArtifactTooLarge", wake: byTime, after: artifactRetryInterval},
		{name: "artifact unusable for long", o: ready(fetchFails(artifact.Unusable), waiting("ArtifactUnusable", 4*time.Minute)),
			action: actionWait, reason: "ArtifactUnusable", wake: byTime, after: 2 * time.Minute},

		{name: "secret missing", o: ready(requestFails(missing)), action: actionWait, reason: "SecretNotFound", wake: byTime, after: 2 * time.Second,
			message: `waiting for key "value" in secret "token", which it needs`},
		{name: "secret missing for long", o: ready(requestFails(missing), waiting("SecretNotFound", time.Hour)),
			action: actionWait, reason: "SecretNotFound", wake: byTime, after: 30 * time.Second},
		{name: "configuration invalid", o: ready(requestFails(fmt.Errorf("config: %w", inputs.Invalidf("no such thing")))),
			action: actionFinish, reason: "ConfigInvalid", wake: byNothing, message: "no such thing"},
		{name: "secret cannot be read", o: ready(requestFails(errors.New("forbidden"))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},

		{name: "running", o: ready(started, operationIs(running)), action: actionFollow, wake: byObserver, after: followInterval},
		{name: "running, and the start was not recorded", o: ready(operationIs(running)), action: actionFollow, wake: byObserver, after: followInterval},
		{name: "running in a workspace that is not ready", o: ready(started, workspaceUnready, operationIs(running)),
			action: actionFollow, wake: byObserver, after: followInterval},
		{name: "ended", o: ready(started, operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "ended, and the start was not recorded", o: ready(operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "lost with the workspace's directory", o: ready(started), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "preview lost", o: ready(previews, started), action: actionRepeat, reason: autov1alpha1.QueuedReason, wake: byTime, after: time.Second,
			message: "it is run once more"},
		{name: "preview of a destroy lost", o: ready(started, func(o *observation) {
			o.update.Spec.Type, o.update.Spec.PreviewOnly = autov1alpha1.UpdateTypeDestroy, new(true)
		}), action: actionRepeat, reason: autov1alpha1.QueuedReason, wake: byTime, after: time.Second},
		{name: "preview lost again", o: ready(previews, repeated, started), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "preview taken back", o: ready(previews, repeated), action: actionStart, wake: byObserver, after: followInterval},
		{name: "preview lost after it was cancelled", o: ready(previews, started, cancelled), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "preview lost as its workspace goes", o: ready(previews, started, workspaceDeleted), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "preview lost with the workspace", o: ready(previews, started, noWorkspace), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "lost with the workspace", o: ready(started, noWorkspace), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "running where the agent does not answer", o: ready(started, agentFails(unavailable)), action: actionReconnect, wake: byObserver, after: reconnectInterval},
		{name: "running where there is no agent right now", o: ready(started, agentFails(agentruntime.ErrNoAgent)),
			action: actionReconnect, wake: byObserver, after: reconnectInterval},
		{name: "cancelled where there is no agent right now", o: ready(started, cancelled, agentFails(agentruntime.ErrNoAgent)),
			action: actionReconnect, wake: byObserver, after: reconnectInterval},
		{name: "cancelled where no agent starts", o: ready(started, cancelled, workspaceUnready, agentFails(agentruntime.ErrNoAgent)),
			action: actionFinish, reason: "Interrupted", wake: byNothing, message: "its outcome is not known"},
		{name: "cancelled where an agent that may run does not answer", o: ready(started, cancelled, workspaceUnready, agentFails(unavailable)),
			action: actionReconnect, wake: byObserver, after: reconnectInterval},
		{name: "running where no agent starts", o: ready(started, workspaceUnready, agentFails(agentruntime.ErrNoAgent)),
			action: actionReconnect, wake: byObserver, after: reconnectInterval},

		{name: "started by another controller", o: ready(abandoned), action: actionFinish, reason: "Interrupted", wake: byNothing, message: "a controller that is gone"},
		{name: "started by another controller, and deleted", o: ready(abandoned, deleted(0), agentFails(unavailable)),
			action: actionFinish, reason: "Interrupted", wake: byNothing},

		{name: "deleted before the start", o: ready(deleted(0)), action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted before there was an agent", o: ready(deleted(0), workspaceUnready, agentFails(agentruntime.ErrNoAgent)),
			action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "cancelled before there was an agent", o: ready(cancelled, workspaceUnready, agentFails(agentruntime.ErrNoAgent)),
			action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "cancelled where the agent does not answer", o: ready(cancelled, agentFails(unavailable)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: transientInterval},
		{name: "deleted without workspace", o: ready(started, deleted(0), noWorkspace), action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted while the workspace goes", o: ready(started, deleted(0), workspaceDeleted, agentFails(agentruntime.ErrNoAgent)),
			action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted while it runs", o: ready(started, deleted(0), operationIs(running)), action: actionCancel, wake: byObserver, after: reconnectInterval},
		{name: "deleted as it ended", o: ready(started, deleted(0), operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "deleted where the agent does not answer", o: ready(started, deleted(20*time.Second), agentFails(unavailable)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 10 * time.Second},
		{name: "deleted where the agent was not found yet", o: ready(started, deleted(0), agentFails(agentruntime.ErrNoAgent)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 2 * time.Second},
		{name: "deleted where the agent never answers", o: ready(started, deleted(unreachableAgentTimeout+time.Second), agentFails(unavailable)),
			action: actionFinish, reason: "Canceled", wake: byNothing, message: "is not known"},
		{name: "turn not asked for yet", o: ready(func(o *observation) { o.turn, o.request = turnView{}, nil }), action: actionQueue, wake: byDecision},
		{name: "not its turn yet", o: ready(func(o *observation) {
			o.turn, o.request = turnView{asked: true, place: 30, limit: 8, again: 30 * time.Second}, nil
		}),
			action: actionWait, reason: autov1alpha1.QueuedReason, wake: byTurn, after: 30 * time.Second, message: "place 30 in the queue, 8 operations"},
		{name: "start while the agent is busy", o: ready(startFails(refusal(client.ErrBusy))), action: actionWait, reason: autov1alpha1.QueuedReason, wake: byTime, after: busyInterval},
		{name: "start of what is invalid", o: ready(startFails(refusal(client.ErrInvalid))), action: actionFinish, reason: "ConfigInvalid", wake: byNothing},
		{name: "start of what is too large", o: ready(startFails(refusal(client.ErrTooLarge))), action: actionFinish, reason: "ConfigInvalid", wake: byNothing},
		{name: "start without agent", o: ready(startFails(refusal(client.ErrUnavailable))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "start without permission", o: ready(startFails(refusal(client.ErrDenied))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "start without a plan that the operation does not have", o: ready(startFails(refusal(client.ErrPlanMissing))),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "start without the artifact", o: ready(startFails(refusal(client.ErrSourceMissing))),
			action: actionDeliver, reason: "SourceDelivery", wake: byDelivery, after: 2 * deliveryTimeout},
		{name: "delivery while the agent is busy", o: ready(deliveryFails(refusal(client.ErrBusy))), action: actionWait, reason: autov1alpha1.QueuedReason, wake: byTime, after: busyInterval},
		{name: "delivery of other bytes", o: ready(deliveryFails(refusal(client.ErrDigestMismatch))),
			action: actionWait, reason: "ArtifactDigestMismatch", wake: byTime, after: artifactRetryInterval},
		{name: "delivery of too much", o: ready(deliveryFails(refusal(client.ErrTooLarge))), action: actionWait, reason: "ArtifactTooLarge", wake: byTime, after: artifactRetryInterval},
		{name: "delivery of what cannot be unpacked", o: ready(deliveryFails(refusal(client.ErrInvalid))),
			action: actionWait, reason: "ArtifactUnusable", wake: byTime, after: artifactRetryInterval},
		{name: "delivery without agent", o: ready(deliveryFails(refusal(client.ErrUnavailable))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "delivery by a store that fails", o: ready(deliveryFails(errors.New("disk"))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "delivery that the agent does not keep", o: ready(startFails(client.ErrSourceMissing), func(o *observation) {
			o.artifact.digest, o.delivery = "sha256:a", delivery{digest: "sha256:a"}
		}), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second, message: "says that it does not have it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(tt.o)
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.reason).To(Equal(tt.reason))
			g.Expect(d.wake).To(Equal(tt.wake))
			g.Expect(d.after).To(Equal(tt.after))
			g.Expect(d.message).To(ContainSubstring(tt.message))
		})
	}
}

func TestBriefWaitOfANewUpdateIsShownOnlyWhenItLasts(t *testing.T) {
	g := NewWithT(t)
	created := func(age time.Duration) func(*observation) {
		return func(o *observation) {
			o.update.CreationTimestamp = metav1.NewTime(testTime.Add(-age))
			o.update.Status.ObservedGeneration = -1 // as the API server sets it
		}
	}
	changing := func(o *observation) { o.workspace.Generation++ }
	fetching := func(o *observation) { o.artifact.ready = false }
	hiddenFor := func(changes ...func(*observation)) time.Duration {
		o := ready(changes...)
		return decide(o).hiddenFor(o)
	}
	g.Expect(hiddenFor(created(0), changing)).To(Equal(briefWait))
	g.Expect(hiddenFor(created(briefWait-time.Second), fetching)).To(Equal(time.Second))
	g.Expect(hiddenFor(created(0), startFails(client.ErrSourceMissing))).To(Equal(briefWait), "the artifact is being delivered")

	g.Expect(hiddenFor(created(briefWait), changing)).To(BeZero(), "it lasts")
	g.Expect(hiddenFor(created(0), changing, waiting(pulumiv1.ArtifactDigestMismatchReason, 0))).To(BeZero(), "something was shown before")
	for _, problem := range []func(*observation){noWorkspace, workspaceUnready, fetchFails(artifact.Integrity), requestFails(errors.New("x"))} {
		g.Expect(hiddenFor(created(0), problem)).To(BeZero(), "nothing that is missing is kept back")
	}
}
