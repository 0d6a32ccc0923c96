package workspace

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

// unreachable is a runtime whose Ensure returns the error that errors has for the name of the Workspace; without one, the agent starts
// forever. Real agents cannot show this: they reject no user that a test of one process can be, and are always in reach of it.
type unreachable struct {
	errors map[string]error
	events chan event.GenericEvent
}

func (u *unreachable) Ensure(_ context.Context, workspace *autov1alpha1.Workspace, _ bool) (agentruntime.Status, error) {
	return agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the agent is starting"}, u.errors[workspace.Name]
}

func (u *unreachable) Connect(context.Context, *autov1alpha1.Workspace) (*client.Client, error) {
	return nil, agentruntime.ErrNoAgent
}

func (u *unreachable) Wake(context.Context, *autov1alpha1.Workspace) (*client.Client, error) {
	return nil, agentruntime.ErrNoAgent
}

func (u *unreachable) Delete(context.Context, types.NamespacedName) error { return nil }

func (u *unreachable) Events() <-chan event.GenericEvent { return u.events }

func TestAgentThatCannotBeReachedOrRefusesIsReported(t *testing.T) {
	s := newFixture(t)
	reasons := map[string]string{
		"away":     autov1alpha1.ConnectionFailedReason,
		"stranger": autov1alpha1.UnauthenticatedReason,
		"denied":   autov1alpha1.PermissionDeniedReason,
	}
	s.startControllerOf(&unreachable{events: make(chan event.GenericEvent), errors: map[string]error{
		"away":     errors.New("connection refused"),
		"stranger": &client.Error{Code: codes.Unauthenticated, Message: "the token is not accepted"},
		"denied":   &client.Error{Code: codes.PermissionDenied, Message: "no such permission"},
	}})
	for name, reason := range reasons {
		workspace := s.create(name, autov1alpha1.WorkspaceSpec{})
		s.await(workspace, beUnready(reason))
		s.Expect(conditions.GetReason(workspace, meta.ReconcilingCondition)).To(Equal(meta.ProgressingWithRetryReason))
		s.Expect(conditions.GetMessage(workspace, autov1alpha1.WorkspaceReady)).To(ContainSubstring("trying again"))
	}
}

func TestAgentThatStartsIsNoFailure(t *testing.T) {
	s := newFixture(t)
	s.startControllerOf(&unreachable{events: make(chan event.GenericEvent)})
	workspace := s.create("starting", autov1alpha1.WorkspaceSpec{})
	s.await(workspace, beUnready(autov1alpha1.InitializingReason))
	s.Expect(conditions.GetReason(workspace, meta.ReconcilingCondition)).To(Equal(meta.ProgressingReason))
}

// rests is a runtime whose agents rest, and cannot be called.
type rests struct{ unreachable }

func (*rests) Ensure(context.Context, *autov1alpha1.Workspace, bool) (agentruntime.Status, error) {
	return agentruntime.Status{Ready: true, Resting: true, Reason: autov1alpha1.IdleReason}, nil
}

func TestIdleWorkspaceWhoseVersionOfPulumiMattersIsStarted(t *testing.T) {
	g := NewWithT(t)
	workspace := &autov1alpha1.Workspace{}
	conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.IdleReason, "")
	workspace.Status.PulumiVersion = "v3.150.0"
	r := &Reconciler{Client: withoutUpdates{}, Runtime: &rests{}, IdleTimeout: time.Nanosecond}
	decided := func() decision { return decide(r.ensureAgent(t.Context(), workspace)) }
	g.Expect(decided().state).To(Equal(stateReady))
	workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Config: []autov1alpha1.ConfigItem{{Key: "a", Value: &apiextensionsv1.JSON{Raw: []byte("1")}}}}}
	g.Expect(decided().state).To(Equal(stateFailing), "no longer idle, so its agent starts")
}

func TestWorkspaceOnlyWorksWithoutTheAPIServerWhereAnAgentRuns(t *testing.T) {
	g := NewWithT(t)
	r := &Reconciler{Client: withoutUpdates{}, Runtime: &unreachable{errors: map[string]error{"": errServerBusy}}}
	workspace := &autov1alpha1.Workspace{Generation: 3}
	decided := func() decision { return decide(r.ensureAgent(t.Context(), workspace)) }
	decide(observation{agent: running, pulumiVersion: supportedPulumi}).apply(workspace)
	g.Expect(decided().state).To(Equal(stateUnchanged))
	workspace.Generation++
	g.Expect(decided().state).To(Equal(stateFailing), "it was edited")
	decide(observation{agent: agentruntime.Status{Ready: true, Resting: true, Reason: autov1alpha1.IdleReason}, pulumiVersion: supportedPulumi}).apply(workspace)
	g.Expect(decided().state).To(Equal(stateFailing), "an update needs it, and its agent is to be started")
	g.Expect(decided().message).To(ContainSubstring(errServerBusy.Error()))
}
