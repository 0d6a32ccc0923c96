package stack

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// wakersFile has the wakers of each reason that a Stack can show. The page docs/conditions.md is made from it.
const wakersFile = "../../report/reasons/wakers/stack.json"

var updateWakers = flag.Bool("update-wakers", false, "write "+wakersFile)

// wakers are the wakers of each reason.
type wakers map[string][]waker

func (w wakers) add(reason string, all ...waker) {
	for _, one := range all {
		if one != byNothing && !slices.Contains(w[reason], one) {
			w[reason] = append(w[reason], one)
			slices.Sort(w[reason])
		}
	}
}

// addDecision adds what a decision leaves in the conditions.
func (w wakers) addDecision(d decision) {
	reason := d.reason
	switch d.action {
	case actionRecord, actionRelease, actionSuspend:
		return
	case actionReady:
		reason = pulumiv1.ProcessingCompletedReason
	case actionFetch, actionFollow, actionSupersede, actionUpdate:
		reason = pulumiv1.NotReadyInProgressReason
	case actionWait:
		reason = cmp.Or(reason, pulumiv1.NotReadyInProgressReason)
	}
	w.add(reason, d.wake)
	if slices.Contains([]action{actionStall, actionAwaitApproval, actionHold}, d.action) {
		w.add(reasons.StalledReasons, waker(reason))
	}
	if d.after > 0 {
		w.add(reason, byTime)
	}
}

// sourceProblems are the problems that package source returns. A problem of a Flux source or a Program is watched if its kind is.
func sourceProblems() (problems []*source.Problem) {
	for _, reason := range []string{pulumiv1.SourceNotFoundReason, pulumiv1.SourceNotReadyReason, pulumiv1.ArtifactNotFoundReason} {
		problems = append(problems, &source.Problem{Reason: reason}, &source.Problem{Reason: reason, Watched: true})
	}
	for _, reason := range []string{
		pulumiv1.SourceUnavailableReason, pulumiv1.AuthenticationFailedReason, pulumiv1.HostKeyUnknownReason, pulumiv1.RepositoryNotFoundReason,
		pulumiv1.RevisionNotFoundReason, pulumiv1.RateLimitedReason, pulumiv1.LFSPointersReason, pulumiv1.ArtifactTooLargeReason,
		pulumiv1.SecretNotFoundReason, pulumiv1.AccessDeniedReason,
	} {
		problems = append(problems, &source.Problem{Reason: reason, Watched: true})
	}
	return append(problems, &source.Problem{Reason: pulumiv1.SourceKindNotInstalledReason}, &source.Problem{Reason: pulumiv1.AccessDeniedReason},
		&source.Problem{Reason: pulumiv1.AccessDeniedReason, Permanent: true}, &source.Problem{Reason: pulumiv1.SpecInvalidReason, Permanent: true})
}

// findWakers makes every decision that shows a reason, and collects their wakers.
func findWakers(t *testing.T) wakers {
	found := wakers{}
	modelSpaces(func(s *modelState) {
		o := s.observe()
		d := decide(o)
		if o.sourceProblem == nil || d.reason != o.sourceProblem.Reason {
			found.addDecision(d)
		}
	})
	found.addDecision(decide(*guarded(pulumiv1.PlanPending, rejectedBy("bob"))))
	found.addDecision(decide(*guarded(pulumiv1.PlanPending, rejectedBy("bob"), func(o *observation) { o.stack.Status.Plan.Cause = pulumiv1.PlanForResync })))
	for _, state := range []pulumiv1.PlanState{pulumiv1.PlanPending, pulumiv1.PlanStale} {
		found.addDecision(decide(*guarded(state, func(o *observation) { o.stack.Status.Plan.Stale, o.stack.Status.Plan.StaleSince = 2, new(ago(0)) })))
	}
	o := observation{stack: &pulumiv1.Stack{}, waitInterval: time.Second}
	for _, problem := range sourceProblems() {
		found.addDecision(*blockedBySource(o, problem))
		if problem.Watched && !slices.Contains([]string{pulumiv1.ArtifactNotFoundReason, pulumiv1.SourceNotFoundReason}, problem.Reason) {
			found.addDecision(*fetchProblem(o, problem)) // of a checkout
		}
	}
	for _, kind := range []artifact.Kind{artifact.NotFound, artifact.Integrity, artifact.TooLarge, artifact.Unavailable, artifact.Unusable} {
		found.addDecision(*fetchProblem(o, &artifact.FetchError{Kind: kind}))
	}
	found.addDecision(*blockedByDependency(o, &dependencyProblem{reason: pulumiv1.InvalidCELExpressionReason, permanent: true}))
	// The Stack shows what its Update waits for, and the watch on the Update reports the end of the wait.
	for _, reason := range problemsOfUpdates() {
		found.add(reason, byUpdate)
	}
	for _, workspace := range []*autov1alpha1.Workspace{
		workspaceThat(stalled(autov1alpha1.ImagePullFailedReason)), workspaceThat(stalled(autov1alpha1.IncompatibleConfigurationReason)),
		workspaceThat(failing(autov1alpha1.UnschedulableReason, "no node")),
	} {
		found.add(workspaceFailureOf(workspace).reason, byUpdate)
	}
	findRefusals(t, found)
	for _, last := range []pulumiv1.StackUpdateStatus{
		{Interruptions: freeInterruptions + 1}, {Reason: autov1alpha1.StackLostReason, Failures: 1},
		{Reason: autov1alpha1.StateUpgradeRequiredReason, State: pulumiv1.StackUpdateFailed},
		{Reason: autov1alpha1.PolicyViolationReason, State: pulumiv1.StackUpdateFailed},
		{Reason: autov1alpha1.AwaitingResourcesReason, State: pulumiv1.StackUpdateFailed},
		{Reason: autov1alpha1.PlanViolatedReason, Failures: 1}, {Reason: autov1alpha1.PlanTooLargeReason, Failures: 1},
	} {
		last.LastResyncTime = metav1.Time{Time: now}
		stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: "dev"}, Status: pulumiv1.StackStatus{LastUpdate: &last, DeployedStack: "dev"}}
		found.addDecision(decideOnFailure(observation{now: now, stack: stack}, decision{}))
	}
	return found
}

// problemsOfUpdates are the reasons of Updates that wait, without those of steps that end by themselves.
func problemsOfUpdates() (problems []string) {
	updates := reasons.Of("Update")
	for reason := range updates.Wakers() {
		update := updating(metav1.Condition{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionFalse, Reason: reason, Message: "why"}).update
		shown, message := update.WaitingProblem()
		if shown == reason && message == "why" {
			problems = append(problems, reason)
		}
	}
	return problems
}

// findRefusals adds the wakers when the API server rejects what the Stack needs.
func findRefusals(t *testing.T, found wakers) {
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "updates"}, "app", errors.New("the namespace goes"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for reason, refusal := range map[string]error{
		pulumiv1.NamespaceTerminatingReason: terminating,
		pulumiv1.WorkspaceFailedReason:      apierrors.NewInvalid(schema.GroupKind{Kind: "Workspace"}, "app", nil),
	} {
		outcome, err := (&Reconciler{WaitInterval: time.Second}).handleRejection(&observation{stack: &pulumiv1.Stack{}}, refusal)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(outcome.after).To(BeNumerically(">", 0))
		found.add(reason, byTime)
	}
}

// TestWakersOfEachReasonAreWrittenDown checks that wakersFile has the wakers of each reason, and no others.
func TestWakersOfEachReasonAreWrittenDown(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	found := findWakers(t)
	for reason, all := range found {
		g.Expect(all).NotTo(BeEmpty(), "nothing wakes a Stack with the reason %s", reason)
	}
	content, err := json.MarshalIndent(found, "", "  ")
	g.Expect(err).NotTo(HaveOccurred())
	if *updateWakers {
		g.Expect(os.WriteFile(wakersFile, append(content, '\n'), 0o644)).To(Succeed())
	}
	written, err := os.ReadFile(wakersFile)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(written)).To(Equal(string(content)+"\n"), "run make generate, then mend internal/report/reasons")
	g.Expect(slices.Sorted(maps.Keys(found))).To(ContainElement(pulumiv1.UpdateFailedReason))
}
