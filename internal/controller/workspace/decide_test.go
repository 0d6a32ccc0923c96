package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/runtime/conditions/check"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

// linted names the conditions with negative polarity, for conditions/check.
var linted = &check.Conditions{NegativePolarity: []string{meta.StalledCondition, meta.ReconcilingCondition}}

const address = "unix:/agent.sock"

var (
	running  = agentruntime.Status{Ready: true, Reason: autov1alpha1.SucceededReason, Address: address}
	starting = agentruntime.Status{Reason: autov1alpha1.InitializingReason, Message: "the agent is starting"}
	failed   = agentruntime.Status{Failing: true, Reason: autov1alpha1.InitializationFailedReason, Message: "exit status 3"}
	stalled  = agentruntime.Status{Failing: true, Reason: autov1alpha1.InitializationFailedReason, Message: "exit status 3", Stalled: true}
)

func TestStatusSaysWhatWasObserved(t *testing.T) {
	silent := errors.New("no answer")
	for _, tt := range []struct {
		name     string
		observed observation
		// ready is the reason of Ready, and whether it is True; the other two are the reasons of conditions that are True.
		ready                bool
		reason               string
		reconciling, stalled string
		// ended is true when the generation counts as observed.
		ended   bool
		address string
		retry   error
	}{
		{
			name:     "an agent that answers",
			observed: observation{agent: running, pulumiVersion: "v3.250.0"},
			ready:    true, reason: autov1alpha1.SucceededReason, ended: true, address: address,
		},
		{
			name:     "an agent with an old pulumi CLI",
			observed: observation{agent: running, pulumiVersion: "v3.201.0"},
			ready:    true, reason: autov1alpha1.SucceededReason, ended: true, address: address,
		},
		{
			name:     "an agent with a pulumi CLI that is too old for the configuration",
			observed: observation{agent: running, pulumiVersion: "v3.201.0", structured: true},
			reason:   autov1alpha1.IncompatibleConfigurationReason, stalled: autov1alpha1.IncompatibleConfigurationReason, ended: true, address: address,
		},
		{
			name:     "an agent that starts",
			observed: observation{agent: starting, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.InitializingReason, reconciling: meta.ProgressingReason,
		},
		{
			name:     "an agent of an earlier workspace that ends",
			observed: observation{agent: agentruntime.Status{Reason: autov1alpha1.DeletingReason, Message: "m"}, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.DeletingReason, reconciling: meta.ProgressingReason,
		},
		{
			name:     "an agent that crashed",
			observed: observation{agent: failed, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.InitializationFailedReason, reconciling: meta.ProgressingWithRetryReason,
		},
		{
			name:     "an agent that crashed often",
			observed: observation{agent: stalled, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.InitializationFailedReason, stalled: autov1alpha1.InitializationFailedReason, ended: true,
		},
		{
			name:     "a runtime that fails",
			observed: observation{err: silent, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.ConnectionFailedReason, reconciling: meta.ProgressingWithRetryReason, retry: silent,
		},
		{
			name:     "an agent that does not answer",
			observed: observation{agent: running, err: silent, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.ConnectionFailedReason, reconciling: meta.ProgressingWithRetryReason, retry: silent, address: address,
		},
		{
			name:     "an agent that does not accept the controller",
			observed: observation{agent: running, err: &client.Error{Code: codes.PermissionDenied}, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.PermissionDeniedReason, reconciling: meta.ProgressingWithRetryReason,
			retry: &client.Error{Code: codes.PermissionDenied}, address: address,
		},
		{
			name:     "an agent that does not know the controller",
			observed: observation{agent: running, err: &client.Error{Code: codes.Unauthenticated}, pulumiVersion: "v3.250.0"},
			reason:   autov1alpha1.UnauthenticatedReason, reconciling: meta.ProgressingWithRetryReason,
			retry: &client.Error{Code: codes.Unauthenticated}, address: address,
		},
		{
			name:     "a workspace that is being deleted",
			observed: observation{deleting: true},
			reason:   autov1alpha1.DeletingReason, reconciling: meta.ProgressingReason, address: "unix:/before",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, before := range []func(*autov1alpha1.Workspace){wasNew, wasReady, wasStalled} {
				g := NewWithT(t)
				workspace := &autov1alpha1.Workspace{Generation: 3}
				before(workspace)
				observedBefore := workspace.Status.ObservedGeneration
				if tt.observed.deleting {
					workspace.Status.Address = tt.address
				}

				d := decide(tt.observed)
				d.apply(workspace)

				g.Expect(conditions.IsTrue(workspace, meta.ReadyCondition)).To(Equal(tt.ready))
				g.Expect(conditions.IsUnknown(workspace, meta.ReadyCondition)).To(BeFalse())
				g.Expect(conditions.GetReason(workspace, meta.ReadyCondition)).To(Equal(tt.reason))
				g.Expect(conditions.GetReason(workspace, meta.ReconcilingCondition)).To(Equal(tt.reconciling))
				g.Expect(conditions.GetReason(workspace, meta.StalledCondition)).To(Equal(tt.stalled))
				g.Expect(workspace.Status.Address).To(Equal(tt.address))
				g.Expect(workspace.Status.PulumiVersion).To(Equal(cmp.Or(tt.observed.pulumiVersion, "v3.250.0")), "a version that is known is kept")
				if tt.ended {
					g.Expect(workspace.Status.ObservedGeneration).To(Equal(int64(3)))
				} else {
					g.Expect(workspace.Status.ObservedGeneration).To(Equal(observedBefore))
				}
				if tt.retry == nil {
					g.Expect(d.retry).NotTo(HaveOccurred())
				} else {
					g.Expect(d.retry).To(Equal(tt.retry))
					g.Expect(strings.HasPrefix(d.message, "cannot talk to the agent")).To(Equal(tt.observed.agent.Ready), "that says who fails: %s", d.message)
				}
				lint(g, workspace)
			}
		})
	}
}

func TestStatusStaysWhenNothingWasLearnt(t *testing.T) {
	g := NewWithT(t)
	away := errors.New("the API server is away")
	crowded := &client.Error{Kind: client.ErrUnasked}
	resting := agentruntime.Status{Ready: true, Resting: true, Reason: autov1alpha1.IdleReason, Message: "nothing to do"}
	refused := agentruntime.Status{Failing: true, Reason: autov1alpha1.ObjectRejectedReason, Message: "forbidden", RetryAfter: time.Minute}
	for name, tt := range map[string]struct {
		was      agentruntime.Status
		observed observation
		retry    error
		after    time.Duration
	}{
		"idle, no answer of the API server":    {resting, observation{idle: true, ready: true, err: away}, away, 0},
		"idle, refused by the API server":      {resting, observation{idle: true, ready: true, agent: refused}, nil, time.Minute},
		"ready, calls to other agents waiting": {running, observation{ready: true, agent: running, err: crowded}, crowded, 0},
		"ready, the API server is busy":        {running, observation{ready: true, works: true, err: errServerBusy}, errServerBusy, 0},
	} {
		workspace := &autov1alpha1.Workspace{Generation: 3}
		decide(observation{agent: tt.was, pulumiVersion: "v3.250.0"}).apply(workspace)
		workspace.Generation++
		before := workspace.DeepCopy()
		d := decide(tt.observed)
		d.apply(workspace)
		g.Expect(workspace).To(Equal(before), name)
		if tt.retry == nil {
			g.Expect(d.retry).NotTo(HaveOccurred(), name)
		} else {
			g.Expect(d.retry).To(Equal(tt.retry), name)
		}
		g.Expect(d.after).To(Equal(tt.after), name)
	}
	mendable := agentruntime.Status{Failing: true, Stalled: true, Reason: autov1alpha1.PodTemplateInvalidReason, Message: "change it"}
	g.Expect(decide(observation{idle: true, ready: true, agent: mendable}).state).To(Equal(stateStalled), "somebody has to change the workspace")
	g.Expect(decide(observation{agent: running, err: crowded}).state).To(Equal(stateFailing), "it has never answered")
}

// wasNew, wasReady and wasStalled give a Workspace the status of an earlier reconcile.
func wasNew(workspace *autov1alpha1.Workspace) {
	workspace.Status = autov1alpha1.WorkspaceStatus{ObservedGeneration: -1, PulumiVersion: "v3.250.0"}
}

func wasReady(workspace *autov1alpha1.Workspace) {
	workspace.Generation--
	decide(observation{agent: running, pulumiVersion: "v3.250.0"}).apply(workspace)
	workspace.Generation++
}

func wasStalled(workspace *autov1alpha1.Workspace) {
	decide(observation{agent: stalled, pulumiVersion: "v3.250.0"}).apply(workspace)
}

// lint checks the rules for statuses.
func lint(g *WithT, workspace *autov1alpha1.Workspace) {
	checker := check.NewChecker(nil, linted)
	checker.DisableFetch = true
	failures, warnings := checker.Check(context.Background(), workspace)
	g.Expect(warnings).NotTo(HaveOccurred())
	g.Expect(failures).NotTo(HaveOccurred())
}

func TestConfigurationIsStructuredWhenAValueIsNotText(t *testing.T) {
	value := func(raw string) autov1alpha1.ConfigItem {
		return autov1alpha1.ConfigItem{Key: "k", Value: &apiextensionsv1.JSON{Raw: []byte(raw)}}
	}
	for _, test := range []struct {
		item autov1alpha1.ConfigItem
		want bool
	}{
		{value(`"text"`), false},
		{value(` "text"`), false},
		{value(`"{\"a\": 1}"`), false},
		{value(`1`), true},
		{value(`true`), true},
		{value(`null`), true},
		{value(`{"a": 1}`), true},
		{value(`["a"]`), true},
		{autov1alpha1.ConfigItem{Key: "k", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "E"}}, false},
		{autov1alpha1.ConfigItem{Key: "k", ValueFrom: &autov1alpha1.ConfigValueFrom{Env: "E", JSON: true}}, true},
		{autov1alpha1.ConfigItem{Key: "k"}, false},
	} {
		workspace := &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{Stacks: []autov1alpha1.WorkspaceStack{
			{Name: "plain", Config: []autov1alpha1.ConfigItem{value(`"text"`)}}, {Name: "dev", Config: []autov1alpha1.ConfigItem{test.item}},
		}}}
		NewWithT(t).Expect(structured(workspace)).To(Equal(test.want), "%v", test.item)
	}
}

func TestNewWorkspaceIsNotShownToBeOnItsWayForAMoment(t *testing.T) {
	g := NewWithT(t)
	now := time.Now()
	workspace := &autov1alpha1.Workspace{CreationTimestamp: metav1.NewTime(now)}
	starting, failing := decision{state: stateStarting}, decision{state: stateFailing}
	g.Expect(starting.hiddenFor(workspace, now)).To(Equal(showAfter))
	g.Expect(starting.hiddenFor(workspace, now.Add(showAfter))).To(BeZero())
	g.Expect(failing.hiddenFor(workspace, now)).To(BeZero())
	g.Expect(decision{state: stateStarting, after: time.Millisecond}.hiddenFor(workspace, now)).To(Equal(time.Millisecond), "the runtime looks again before")
	conditions.MarkFalse(workspace, meta.ReadyCondition, autov1alpha1.InitializingReason, "the agent is starting")
	g.Expect(starting.hiddenFor(workspace, now)).To(BeZero(), "a status is kept up to date")
}

func TestServerThatDoesNotAnswerIsToldFromOneThatRefuses(t *testing.T) {
	g := NewWithT(t)
	resource := schema.GroupResource{Resource: "secrets"}
	for _, err := range []error{
		&url.Error{Op: "Get", URL: "https://10.0.0.1", Err: io.EOF}, apierrors.NewTooManyRequests("", 1), apierrors.NewServerTimeout(resource, "get", 1),
		apierrors.NewTimeoutError("", 1), apierrors.NewServiceUnavailable(""), apierrors.NewInternalError(errors.New("webhook")),
	} {
		g.Expect(isServerBusy(fmt.Errorf("read: %w", err))).To(BeTrue(), "%T: %v", err, err)
	}
	for _, err := range []error{nil, errors.New("no image"), context.DeadlineExceeded, apierrors.NewForbidden(resource, "a", nil), apierrors.NewNotFound(resource, "a")} {
		g.Expect(isServerBusy(err)).To(BeFalse(), "%T: %v", err, err)
	}
}
