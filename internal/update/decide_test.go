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
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// ready is an observation of an Update that can start.
func ready(changes ...func(*observation)) *observation {
	o := &observation{
		now: testTime,
		update: &autov1alpha1.Update{
			ObjectMeta: metav1.ObjectMeta{Name: "up", Generation: 1},
			Spec:       autov1alpha1.UpdateSpec{WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
		},
		workspace: &autov1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: "app", Generation: 2},
			Status:     autov1alpha1.WorkspaceStatus{ObservedGeneration: 2},
		},
		artifact: artifactView{ready: true},
		request:  &proto.StartOperationRequest{},
	}
	conditions.MarkTrue(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.SucceededReason, "ready")
	for _, change := range changes {
		change(o)
	}
	return o
}

func started(o *observation) { o.update.Status.StartTime = &metav1.Time{Time: testTime} }

func deleted(ago time.Duration) func(*observation) {
	return func(o *observation) { o.update.DeletionTimestamp = &metav1.Time{Time: testTime.Add(-ago)} }
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

func operationIs(state proto.OperationState) func(*observation) {
	return func(o *observation) { o.agent.operation = &proto.Operation{State: state} }
}

func agentFails(err error) func(*observation) {
	return func(o *observation) { o.agent.err = err }
}

func fetchFails(kind artifact.Kind) func(*observation) {
	return func(o *observation) { o.artifact = artifactView{err: &artifact.FetchError{Kind: kind}} }
}

func requestFails(err error) func(*observation) {
	return func(o *observation) { o.request, o.requestError = nil, err }
}

// waiting gives the Update the condition of having waited for that reason.
func waiting(reason string, since time.Duration) func(*observation) {
	return func(o *observation) {
		markWaiting(o.update, reason, "as before")
		for i := range o.update.Status.Conditions {
			o.update.Status.Conditions[i].LastTransitionTime = metav1.NewTime(testTime.Add(-since))
		}
	}
}

func TestDecide(t *testing.T) {
	unavailable := &client.Error{What: "get operation", Kind: client.ErrUnavailable, Message: "refused"}
	missing := &missingError{kind: "secret", name: "token", key: "value", usedBy: "it"}
	running, succeeded := proto.OperationState_OPERATION_STATE_RUNNING, proto.OperationState_OPERATION_STATE_SUCCEEDED

	tests := []struct {
		name    string
		o       *observation
		action  action
		reason  string
		wake    waker
		after   time.Duration
		message string
	}{
		{name: "all is there", o: ready(), action: actionStart, wake: byObserver},
		{name: "complete", o: ready(func(o *observation) { markSucceeded(o.update, testTime, "done") }), action: actionRetire, wake: byNothing},
		{name: "complete and deleted", o: ready(func(o *observation) { markSucceeded(o.update, testTime, "done") }, deleted(0)),
			action: actionRetire, wake: byNothing},

		{name: "no workspace", o: ready(noWorkspace), action: actionWait, reason: "WorkspaceNotFound", wake: byWorkspace, message: `"app" does not exist`},
		{name: "workspace not ready", o: ready(workspaceUnready), action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace,
			message: "Initializing: the agent starts"},
		{name: "workspace with a pulumi CLI that is too old", o: ready(func(o *observation) {
			conditions.MarkFalse(o.workspace, autov1alpha1.WorkspaceReady, autov1alpha1.IncompatibleConfigurationReason, "pulumi CLI v3.1.0 is not supported")
		}), action: actionWait, reason: "IncompatibleConfiguration", wake: byWorkspace, message: "v3.1.0"},
		{name: "workspace ready for an earlier generation", o: ready(func(o *observation) { o.workspace.Generation++ }),
			action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "is being changed"},
		{name: "workspace without status", o: ready(func(o *observation) { o.workspace.Status.Conditions = nil }),
			action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "not ready yet"},
		{name: "workspace deleted", o: ready(workspaceDeleted), action: actionWait, reason: "WorkspaceNotReady", wake: byWorkspace, message: "being deleted"},
		{name: "another update first", o: ready(func(o *observation) { o.ahead = "earlier" }), action: actionWait, reason: reasonQueued, wake: byUpdates,
			message: `"earlier"`},

		{name: "agent unavailable", o: ready(agentFails(unavailable)), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},
		{name: "agent unavailable for long", o: ready(agentFails(unavailable), waiting("TransientFailure", 40*time.Second)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 20 * time.Second},
		{name: "agent unavailable for very long", o: ready(agentFails(unavailable), waiting("TransientFailure", time.Hour)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: time.Minute},
		{name: "agent not found yet", o: ready(agentFails(runtime.ErrNoAgent)), action: actionWait, reason: "TransientFailure", wake: byTime, after: time.Second},

		{name: "artifact being fetched", o: ready(func(o *observation) { o.artifact.ready = false }),
			action: actionWait, reason: reasonArtifactPending, wake: byFetch},
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
		{name: "configuration invalid", o: ready(requestFails(fmt.Errorf("config: %w", invalidf("no such thing")))),
			action: actionFinish, reason: "ConfigInvalid", wake: byNothing, message: "no such thing"},
		{name: "secret cannot be read", o: ready(requestFails(errors.New("forbidden"))), action: actionWait, reason: "TransientFailure", wake: byTime, after: 5 * time.Second},

		{name: "running", o: ready(started, operationIs(running)), action: actionFollow, wake: byObserver, after: followInterval},
		{name: "running, and the start was not recorded", o: ready(operationIs(running)), action: actionFollow, wake: byObserver, after: followInterval},
		{name: "running in a workspace that is not ready", o: ready(started, workspaceUnready, operationIs(running)),
			action: actionFollow, wake: byObserver, after: followInterval},
		{name: "ended", o: ready(started, operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "ended, and the start was not recorded", o: ready(operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "lost with the workspace's directory", o: ready(started), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "lost with the workspace", o: ready(started, noWorkspace), action: actionFinish, reason: "Interrupted", wake: byNothing},
		{name: "running where the agent does not answer", o: ready(started, agentFails(unavailable)), action: actionReconnect, wake: byObserver, after: reconnectInterval},
		{name: "running where there is no agent right now", o: ready(started, agentFails(runtime.ErrNoAgent)),
			action: actionReconnect, wake: byObserver, after: reconnectInterval},

		{name: "started by another controller", o: ready(abandoned), action: actionFinish, reason: "Interrupted", wake: byNothing, message: "a controller that is gone"},
		{name: "started by another controller, and deleted", o: ready(abandoned, deleted(0), agentFails(unavailable)),
			action: actionFinish, reason: "Interrupted", wake: byNothing},

		{name: "deleted before the start", o: ready(deleted(0)), action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted before there was an agent", o: ready(deleted(0), workspaceUnready, agentFails(runtime.ErrNoAgent)),
			action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted without workspace", o: ready(started, deleted(0), noWorkspace), action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted while the workspace goes", o: ready(started, deleted(0), workspaceDeleted, agentFails(runtime.ErrNoAgent)),
			action: actionFinish, reason: "Canceled", wake: byNothing},
		{name: "deleted while it runs", o: ready(started, deleted(0), operationIs(running)), action: actionCancel, wake: byObserver, after: reconnectInterval},
		{name: "deleted as it ended", o: ready(started, deleted(0), operationIs(succeeded)), action: actionRecord, wake: byNothing},
		{name: "deleted where the agent does not answer", o: ready(started, deleted(20*time.Second), agentFails(unavailable)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 10 * time.Second},
		{name: "deleted where the agent was not found yet", o: ready(started, deleted(0), agentFails(runtime.ErrNoAgent)),
			action: actionWait, reason: "TransientFailure", wake: byTime, after: 2 * time.Second},
		{name: "deleted where the agent never answers", o: ready(started, deleted(cancelPatience+time.Second), agentFails(unavailable)),
			action: actionFinish, reason: "Canceled", wake: byNothing, message: "is not known"},
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

func TestDecisionsOnRefusals(t *testing.T) {
	refusal := func(kind error) error { return &client.Error{What: "call", Kind: kind, Message: "because"} }
	tests := []struct {
		name   string
		decide func(*observation, error) decision
		err    error
		action action
		reason string
		after  time.Duration
	}{
		{"start while the agent is busy", decideOnStartError, refusal(client.ErrBusy), actionWait, reasonQueued, busyInterval},
		{"start of what is invalid", decideOnStartError, refusal(client.ErrInvalid), actionFinish, "ConfigInvalid", 0},
		{"start of what is too large", decideOnStartError, refusal(client.ErrTooLarge), actionFinish, "ConfigInvalid", 0},
		{"start without agent", decideOnStartError, refusal(client.ErrUnavailable), actionWait, "TransientFailure", 5 * time.Second},
		{"start without permission", decideOnStartError, refusal(client.ErrDenied), actionWait, "TransientFailure", 5 * time.Second},
		{"delivery while the agent is busy", decideOnDeliveryError, refusal(client.ErrBusy), actionWait, reasonQueued, busyInterval},
		{"delivery of other bytes", decideOnDeliveryError, refusal(client.ErrDigestMismatch), actionWait, "ArtifactDigestMismatch", artifactRetryInterval},
		{"delivery of too much", decideOnDeliveryError, refusal(client.ErrTooLarge), actionWait, "ArtifactTooLarge", artifactRetryInterval},
		{"delivery of what cannot be unpacked", decideOnDeliveryError, refusal(client.ErrInvalid), actionWait, "ArtifactUnusable", artifactRetryInterval},
		{"delivery without agent", decideOnDeliveryError, refusal(client.ErrUnavailable), actionWait, "TransientFailure", 5 * time.Second},
		{"delivery by a store that fails", decideOnDeliveryError, errors.New("disk"), actionWait, "TransientFailure", 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			d := tt.decide(ready(), tt.err)
			g.Expect(d.action).To(Equal(tt.action))
			g.Expect(d.reason).To(Equal(tt.reason))
			g.Expect(d.after).To(Equal(tt.after))
			g.Expect(d.message).NotTo(BeEmpty())
			// Nothing ends in a state that nobody wakes.
			g.Expect(d.after > 0 || d.action == actionFinish).To(BeTrue())
		})
	}
}

func TestEveryWaitHasAWaker(t *testing.T) {
	g := NewWithT(t)
	for _, change := range []func(*observation){noWorkspace, workspaceUnready, workspaceDeleted,
		func(o *observation) { o.ahead = "x" }, func(o *observation) { o.artifact.ready = false },
		agentFails(errors.New("x")), fetchFails(artifact.Unusable), requestFails(errors.New("x"))} {
		d := decide(ready(change))
		g.Expect(d.action).To(Equal(actionWait))
		g.Expect(d.after > 0 || d.wake != byTime && d.wake != byNothing).To(BeTrue(), "%+v", d)
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
	unshown := func(changes ...func(*observation)) time.Duration {
		o := ready(changes...)
		return decide(o).unshown(o)
	}
	g.Expect(unshown(created(0), changing)).To(Equal(briefWait))
	g.Expect(unshown(created(briefWait-time.Second), fetching)).To(Equal(time.Second))
	delivered := ready(created(0))
	g.Expect(delivering(delivered).unshown(delivered)).To(Equal(briefWait))

	g.Expect(unshown(created(briefWait), changing)).To(BeZero(), "it lasts")
	g.Expect(unshown(created(0), changing, waiting(pulumiv1.ArtifactDigestMismatchReason, 0))).To(BeZero(), "something was shown before")
	for _, problem := range []func(*observation){noWorkspace, workspaceUnready, fetchFails(artifact.Integrity), requestFails(errors.New("x"))} {
		g.Expect(unshown(created(0), problem)).To(BeZero(), "nothing that is missing is kept back")
	}
}
