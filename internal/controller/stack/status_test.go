package stack

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

func specOf(t *testing.T, text string) *pulumiv1.Stack {
	content, err := yaml.YAMLToJSON([]byte(text))
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	stack := &pulumiv1.Stack{}
	stack.Generation = 2
	g.Expect(json.Unmarshal(content, &stack.Spec)).To(Succeed())
	return stack
}

func TestSpecificationThatSaysTheSameHasTheSameDigest(t *testing.T) {
	const plain = "{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}}"
	for name, tt := range map[string]struct {
		spec string
		same bool
	}{
		"fields that are false":        {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, refresh: false, shallow: false, preview: false}", true},
		"fields that are empty":        {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, backend: '', targets: [], envs: [], secrets: {}, envRefs: {}}", true},
		"fields that are zero or null": {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, resyncFrequencySeconds: 0, gitAuth: null, timeout: null}", true},
		"another order":                {"{programRef: {name: app}, config: {a: {x: 1, y: [2]}}, stack: dev}", true},
		"a StackRollout":               {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, rolloutRef: {name: all}}", true},
		"windows":                      {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, windows: [{policy: Allow, cron: 0 8 * * *, window: 1h}]}", true},
		"another value":                {"{stack: dev, config: {a: {x: 1, y: [3]}}, programRef: {name: app}}", false},
		"configuration that is false":  {"{stack: dev, config: {a: {x: 1, y: [2]}, b: false}, programRef: {name: app}}", false},
		"a template that is false":     {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, workspaceTemplate: {spec: {stacks: [{name: dev, create: false}]}}}", false},
		"a field that is true":         {"{stack: dev, config: {a: {x: 1, y: [2]}}, programRef: {name: app}, refresh: true}", false},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(specDigest(specOf(t, tt.spec)) == specDigest(specOf(t, plain))).To(Equal(tt.same))
		})
	}
}

func TestGenerationIsFollowedWhenItSaysTheSame(t *testing.T) {
	stack := specOf(t, "{stack: dev}")
	digest := specDigest(stack)
	for name, tt := range map[string]struct {
		change   func(*pulumiv1.Stack)
		recorded string
		want     int64
	}{
		"the same":           {func(*pulumiv1.Stack) {}, digest, 2},
		"another one":        {func(s *pulumiv1.Stack) { s.Spec.Refresh = true }, digest, 1},
		"nothing is known":   {func(*pulumiv1.Stack) {}, "", 1},
		"the deletion":       {func(s *pulumiv1.Stack) { s.DeletionTimestamp = &metav1.Time{Time: now} }, digest, 1},
		"while suspended":    {func(s *pulumiv1.Stack) { s.Spec.Suspend = true }, digest, 1},
		"after a suspension": {dropSpecDigest, digest, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := stack.DeepCopy()
			stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{Generation: 1, SpecDigest: tt.recorded}
			tt.change(stack)
			followGeneration(stack)
			g.Expect(stack.Status.LastUpdate.Generation).To(Equal(tt.want))
		})
	}
}

// rewrite increases the generation of the Stack without changing its specification. What was recorded for another generation stays.
func (s *modelState) rewrite(stack *pulumiv1.Stack) {
	digest := specDigest(stack)
	last, current := stack.Status.LastUpdate, stack.Status.CurrentUpdate
	if last != nil && last.Generation == stack.Generation {
		last.SpecDigest = digest
	}
	if current != nil && current.Generation == stack.Generation {
		current.SpecDigest = digest
	}
	stack.Generation = 3
	followGeneration(stack)
}

// sameForRewritten reports whether the decision stays the same when the generation increases and the specification does not change.
func sameForRewritten(s modelState, d decision) bool {
	s.rewritten = true
	return decide(s.observe()) == d
}

func TestCancellationOfASuspendedStackIsNoFailure(t *testing.T) {
	for _, suspended := range both {
		g := NewWithT(t)
		o := failed(2, 0)
		o.stack.Spec.Suspend = suspended
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:b"}
		recordResult(o.stack, ended(autov1alpha1.CanceledReason), nil)
		last := o.stack.Status.LastUpdate
		g.Expect(last.Failures == 2).To(Equal(suspended), "a Stack that is not suspended tries again, with the backoff")
		g.Expect(o.stack.Status.History.Latest().LastReconciledStatus).To(Equal("cancelled"))
	}
}

func TestOperationThatWasCutOffIsRememberedUntilOneSucceeds(t *testing.T) {
	const up, preview = autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypePreview
	for _, test := range []struct {
		name              string
		kind              autov1alpha1.UpdateType
		reason            string
		unstarted, notRun bool
		before            bool
		after             bool
	}{
		{name: "interrupted", kind: up, reason: autov1alpha1.InterruptedReason, after: true},
		{name: "timed out", kind: up, reason: autov1alpha1.TimeoutReason, after: true},
		{name: "cancelled", kind: up, reason: autov1alpha1.CanceledReason, after: true},
		{name: "cancelled before it started", kind: up, reason: autov1alpha1.CanceledReason, unstarted: true, notRun: true},
		{name: "cancelled, and its start was perhaps not recorded", kind: up, reason: autov1alpha1.CanceledReason, unstarted: true, after: true},
		{name: "a destroy", kind: autov1alpha1.UpdateTypeDestroy, reason: autov1alpha1.InterruptedReason, after: true},
		{name: "a preview changes nothing", kind: preview, reason: autov1alpha1.InterruptedReason},
		{name: "failed", kind: up, reason: autov1alpha1.UpdateFailedReason, after: true},
		{name: "the access token has expired meanwhile", kind: up, reason: autov1alpha1.InvalidAccessTokenReason, after: true},
		{name: "failed before it ran", kind: up, reason: autov1alpha1.InstallFailedReason, notRun: true},
		{name: "locked", kind: up, reason: autov1alpha1.UpdateConflictReason},
		{name: "failed, after one that was cut off", kind: up, reason: autov1alpha1.InstallFailedReason, before: true, after: true},
		{name: "locked, after one that was cut off", kind: up, reason: autov1alpha1.UpdateConflictReason, before: true, after: true},
		{name: "succeeded", kind: up, before: true},
		{name: "previewed, after one that was cut off", kind: preview, before: true, after: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := failed(1, 0)
			o.stack.Status.LastUpdate.PendingOperations = test.before
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2"}
			update := ended(test.reason)
			update.Spec.Type, update.Status.NotRun = test.kind, test.notRun
			if !test.unstarted {
				update.Status.StartTime = &metav1.Time{Time: now}
			}
			g.Expect(leavesPendingOperations(update, o.stack.Status.LastUpdate)).To(Equal(test.after))
			if test.reason != "" {
				recordResult(o.stack, update, nil)
				g.Expect(mayHavePendingOperations(o.stack)).To(Equal(test.after))
			}
		})
	}
	g := NewWithT(t)
	g.Expect(mayHavePendingOperations(&pulumiv1.Stack{})).To(BeFalse())
	g.Expect(mayHavePendingOperations(&pulumiv1.Stack{Status: pulumiv1.StackStatus{Deployed: true}})).To(BeTrue(), "somebody removed the first Update while it ran")

	o := updating()
	o.stack.Status.LastUpdate = nil
	recordResult(o.stack, ended(autov1alpha1.UpdateConflictReason), nil)
	g.Expect(mayHavePendingOperations(o.stack)).To(BeTrue(), "nor did the next one succeed")
}

func TestSuspendedStackSaysHowTheUpdateEndedThatRan(t *testing.T) {
	for name, test := range map[string]struct {
		last *pulumiv1.StackUpdateStatus
		says string
	}{
		"none":   {nil, "it was never updated"},
		"one":    {&pulumiv1.StackUpdateStatus{Type: "up", State: pulumiv1.StackUpdateSucceeded, Revision: "main@sha1:a"}, "its last up succeeded, revision main@sha1:a"},
		"failed": {&pulumiv1.StackUpdateStatus{Type: "up", State: pulumiv1.StackUpdateFailed, Message: "why"}, "its last up did not succeed: why"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := &pulumiv1.Stack{}
			stack.Status.LastUpdate = test.last
			markProgressing(stack, "stack is being processed")
			markSuspended(stack)
			g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(HaveSuffix(test.says))
			g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.SuspendedReason))
			g.Expect(conditions.IsReconciling(stack)).To(BeFalse())

			// A Stack that was up to date stays Ready.
			markReady(stack)
			markSuspended(stack)
			g.Expect(conditions.IsReady(stack)).To(BeTrue())
		})
	}
}

func TestStackThatWasEditedAfterACheckForDriftIsReadyForItsGeneration(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Generation: 1}
	markReady(stack)
	g.Expect(conditions.Has(stack, pulumiv1.DriftedCondition)).To(BeFalse())
	conditions.MarkTrue(stack, pulumiv1.DriftedCondition, pulumiv1.DriftDetectedReason, "1 resource")
	stack.Generation = 2
	markReady(stack)
	g.Expect(statuscheck.Lint(t.Context(), stack)).To(Succeed())
	g.Expect(conditions.GetReason(stack, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.DriftDetectedReason))
}

func TestStackThatIsSuspendedFromTheStartIsNotTakenForDeployed(t *testing.T) {
	s := newFixture(t)
	stack := s.dependent("paused", func(stack *pulumiv1.Stack) {
		stack.Spec.Suspend, stack.Annotations = true, map[string]string{pulumiv1.ReconcileRequestAnnotation: "now"}
	})
	s.await(stack, func(stack *pulumiv1.Stack) bool { return stack.Status.ObservedReconcileRequest == "now" })
	s.Expect(stack.Status.Conditions).To(BeEmpty())
	s.Expect(stack.Status.ObservedGeneration).To(BeEquivalentTo(-1), "so that whoever waits for it goes on waiting")
}
