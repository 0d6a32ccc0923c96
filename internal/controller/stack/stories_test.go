package stack

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The files in testdata/stories tell what a user sees while a Stack goes through a plan, drift, or its deletion: after each thing that happens,
// the conditions, the plan, new Updates, and new events. Read them before the tables and models in the other files.
//
//	go test ./internal/controller/stack -run Story -update-stories

var updateStories = flag.Bool("update-stories", false, "write testdata/stories")

// story is a Stack to which things happen, and what a user has seen of it.
type story struct {
	*fixture
	stack *pulumiv1.Stack
	text  strings.Builder
	// seen are the Updates and events that were told. names has short names for those of Updates, which have a hash.
	seen  map[string]bool
	names []string
	// written is the text that is in the file; empty when it is to be written.
	written string
}

func tell(t *testing.T, file string, happens func(*story)) {
	s := &story{fixture: newFixture(t), seen: map[string]bool{}}
	path := filepath.Join("testdata", "stories", file)
	if !*updateStories {
		written, err := os.ReadFile(path)
		s.Expect(err).NotTo(HaveOccurred())
		s.written = string(written)
	}
	happens(s)
	if *updateStories {
		s.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		s.Expect(os.WriteFile(path, []byte(s.text.String()), 0o644)).To(Succeed())
	}
	if !*updateStories {
		s.Expect(s.text.String()).To(Equal(s.written), asWritten)
	}
}

const asWritten = "if this is what a user should see, run the test with -update-stories"

// when makes something happen, waits until the Stack shows what follows from it, and tells it. Events are written in the background, and a
// reconcile may follow the one that was waited for.
func (s *story) when(what string, happens func(), until func(*pulumiv1.Stack) bool) {
	s.t.Helper()
	happens()
	s.await(s.stack, until)
	var text string
	var lines []string
	tells := func() string {
		s.Expect(s.client.Get(s.t.Context(), client.ObjectKeyFromObject(s.stack), s.stack)).To(Succeed())
		lines = append(s.newUpdates(), s.newEvents()...)
		text = fmt.Sprintf("# %s\n\n%s%s\n", what, s.shows(), strings.Join(lines, ""))
		return strings.TrimRight(text, "\n")
	}
	if *updateStories {
		time.Sleep(2 * time.Second)
		tells()
	} else {
		// What is written next begins with another heading.
		rest := strings.TrimPrefix(s.written, s.text.String())
		next, _, _ := strings.Cut(strings.TrimPrefix(rest, "# "), "\n# ")
		s.Eventually(tells).Should(Equal("# "+strings.TrimRight(next, "\n")), asWritten)
	}
	s.text.WriteString(text)
	for _, line := range lines {
		s.seen[line] = true
	}
}

// shows returns the conditions and the plan.
func (s *story) shows() string {
	var out strings.Builder
	for _, name := range []string{meta.ReadyCondition, meta.ReconcilingCondition, meta.StalledCondition, pulumiv1.DriftedCondition} {
		if condition := conditions.Get(s.stack, name); condition != nil {
			fmt.Fprintf(&out, "%-11s %-5s %s: %s\n", name, condition.Status, condition.Reason, condition.Message)
		}
	}
	if plan := s.stack.Status.Plan; plan != nil {
		fmt.Fprintf(&out, "%-11s %s %s", "Plan", plan.Name, plan.State)
		for _, approval := range plan.Approvals {
			out.WriteString(", approved by " + approval.By)
		}
		out.WriteString("\n")
	}
	return s.readable(out.String())
}

// newUpdates returns the Updates that were not told yet.
func (s *story) newUpdates() (lines []string) {
	updates := slices.DeleteFunc(s.updates(), func(update autov1alpha1.Update) bool { return update.Spec.WorkspaceName != s.stack.Name })
	slices.SortFunc(updates, func(a, b autov1alpha1.Update) int { return cmp.Compare(a.ResourceVersion, b.ResourceVersion) })
	for i := range updates {
		update := &updates[i]
		what := string(update.Spec.Type)
		switch {
		case update.SavesPlan():
			what += " that saves a plan"
		case update.Spec.Plan != nil:
			what += " that carries out a plan"
		case isDriftCheck(update):
			what += " that looks for drift"
		}
		line := fmt.Sprintf("%-11s %s: %s", "Update", update.Name, what)
		if message := update.Spec.Message; message != nil {
			line += ": " + *message
		}
		if line = s.readable(line + "\n"); !s.seen[line] {
			lines = append(lines, line)
		}
	}
	return lines
}

// newEvents returns the events about the Stack that were not told yet.
func (s *story) newEvents() (lines []string) {
	list := &corev1.EventList{}
	s.Expect(s.client.List(s.t.Context(), list, client.InNamespace(s.namespace))).To(Succeed())
	for i := range list.Items {
		event := &list.Items[i]
		line := s.readable(fmt.Sprintf("%-11s %s %s: %s\n", "Event", event.Type, event.Reason, event.Message))
		if event.InvolvedObject.Kind == pulumiv1.StackKind && event.InvolvedObject.Name == s.stack.Name && !s.seen[line] {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

var (
	updateNames = regexp.MustCompile(`app-[0-9a-f]{10}`)
	digests     = regexp.MustCompile(`(sha256:[0-9a-f]{4})[0-9a-f]{60}`)
	moments     = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ|\b\d+(m\d+)?(\.\d+)?s\b`)
)

// readable replaces what differs from run to run.
func (s *story) readable(text string) string {
	text = updateNames.ReplaceAllStringFunc(text, func(name string) string {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
		return fmt.Sprint("app-", slices.Index(s.names, name)+1)
	})
	text = strings.ReplaceAll(text, s.namespace, "team")
	text = digests.ReplaceAllString(text, "$1…")
	return moments.ReplaceAllString(text, "SOME TIME")
}

// create returns a function that creates the Stack.
func (s *story) create(change func(*pulumiv1.Stack)) func() {
	return func() {
		s.stack = &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Spec: pulumiv1.StackSpec{Stack: "dev"}}
		withImage("one")(s.stack)
		change(s.stack)
		s.Expect(s.client.Create(s.t.Context(), s.stack)).To(Succeed())
	}
}

// editing returns a function that changes the Stack.
func (s *story) editing(change func(*pulumiv1.Stack)) func() {
	return func() { s.edit(s.stack, change) }
}

// ends returns a function that ends the Update that is in progress, as the Update controller does.
func (s *story) ends(marks ...func(*autov1alpha1.Update)) func() {
	return func() {
		update := &autov1alpha1.Update{}
		s.Eventually(func() bool {
			for _, update = range pointers(s.updates()) {
				if update.Spec.WorkspaceName == s.stack.Name && !update.IsComplete() {
					return true
				}
			}
			return false
		}).Should(BeTrue())
		s.mark(update, append([]func(*autov1alpha1.Update){started}, marks...)...)
	}
}

func pointers(updates []autov1alpha1.Update) (all []*autov1alpha1.Update) {
	for i := range updates {
		all = append(all, &updates[i])
	}
	return all
}

// savesPlan makes an Update that has planned to create one resource.
func savesPlan(digest string) func(*autov1alpha1.Update) {
	return func(update *autov1alpha1.Update) {
		update.Status.Plan = &autov1alpha1.SavedPlan{
			Digest: "sha256:" + strings.Repeat(digest, 64), ChangesDigest: "sha256:" + digest, InputsDigest: "sha256:" + digest, StateDigest: "sha256:s",
		}
		update.Status.ResourceChanges = map[string]int64{"create": 1}
	}
}

func succeeds(update *autov1alpha1.Update) {
	update.Status.EndTime, update.Status.Message = new(metav1.Now()), "done"
	if update.Status.ResourceChanges == nil {
		change := map[autov1alpha1.UpdateType]string{autov1alpha1.UpdateTypeUp: "create", autov1alpha1.UpdateTypeDestroy: "delete"}[update.Spec.Type]
		update.Status.ResourceChanges = map[string]int64{change: 1}
	}
	update.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}
	conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateUpdatedReason, "done")
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "done")
}

func fails(message string) func(*autov1alpha1.Update) {
	return func(update *autov1alpha1.Update) {
		update.Status.EndTime, update.Status.Message = new(metav1.Now()), message
		conditions.MarkFalse(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateEndedFailedReason, "%s", message)
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "%s", message)
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "%s", message)
	}
}

// decides returns a function that creates an Approval of the plan in the status, and accepts it as the Approval controller does.
func (s *story) decides(by string, decision autov1alpha1.ApprovalDecision) func() {
	return func() {
		plan := s.stack.Status.Plan
		approval := &autov1alpha1.Approval{Namespace: s.namespace, GenerateName: "app-", Spec: autov1alpha1.ApprovalSpec{
			Update: plan.Name, Digest: plan.Digest, Decision: decision, By: by,
		}}
		s.Expect(s.client.Create(s.t.Context(), approval)).To(Succeed())
		judged := approval.DeepCopy()
		conditions.MarkTrue(judged, autov1alpha1.ApprovalAccepted, autov1alpha1.ApprovalCountsReason, "it counts")
		s.Expect(s.client.Status().Patch(s.t.Context(), judged, client.MergeFrom(approval))).To(Succeed())
	}
}

func idle(stack *pulumiv1.Stack) bool {
	return conditions.IsReady(stack) && stack.Status.CurrentUpdate == nil
}

func TestStoryOfAPlan(t *testing.T) {
	tell(t, "plan.txt", func(s *story) {
		s.when("A Stack with spec.approval is created", s.create(func(stack *pulumiv1.Stack) { stack.Spec.Approval = &pulumiv1.ApprovalPolicy{} }), working)
		s.when("Its first update has been planned: one resource would be created", s.ends(savesPlan("a"), succeeds), reasonIs(meta.ReadyCondition, pulumiv1.ApprovalRequiredReason))
		s.when("Alice approves the plan", s.decides("alice", autov1alpha1.ApprovalApprove), working)
		s.when("The plan has been carried out", s.ends(succeeds), idle)
		s.when("The spec is edited", s.editing(withImage("two")), working)
		s.when("The change has been planned", s.ends(savesPlan("b"), succeeds), reasonIs(meta.ReadyCondition, pulumiv1.ApprovalRequiredReason))
		s.when("Bob rejects the plan", s.decides("bob", autov1alpha1.ApprovalReject), reasonIs(meta.ReadyCondition, pulumiv1.PlanRejectedReason))
		s.when("The edit is taken back, which is a change like any other", s.editing(withImage("one")), working)
	})
}

func TestStoryOfDrift(t *testing.T) {
	check := func(value string) func(*pulumiv1.Stack) {
		return func(stack *pulumiv1.Stack) {
			metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.DriftCheckAnnotation, value)
		}
	}
	finds := func(update *autov1alpha1.Update) {
		update.Status.ResourceChanges = map[string]int64{"update": 1, "same": 3}
		update.Status.Changes = []autov1alpha1.ResourceChange{{Operation: "update", URN: "urn:pulumi:dev::shop::test:index:Bucket::assets", Digest: "sha256:d"}}
	}
	findsNothing := func(update *autov1alpha1.Update) { update.Status.ResourceChanges = map[string]int64{"same": 4} }
	tell(t, "drift.txt", func(s *story) {
		checks := func(*pulumiv1.Stack) bool {
			return slices.ContainsFunc(s.updates(), func(update autov1alpha1.Update) bool { return isDriftCheck(&update) && !update.IsComplete() })
		}
		drifted := func(stack *pulumiv1.Stack) bool { return conditions.IsTrue(stack, pulumiv1.DriftedCondition) }
		s.when("A Stack with spec.drift is created", s.create(func(stack *pulumiv1.Stack) {
			stack.Spec.Drift = &pulumiv1.DriftSpec{Interval: metav1.Duration{Duration: time.Hour}}
		}), working)
		s.when("Its first update has succeeded", s.ends(succeeds), idle)
		s.when("Somebody asks for a check", s.editing(check("1")), checks)
		s.when("The check has found that somebody changed a resource", s.ends(finds, succeeds), checks)
		s.when("A second check has found the same", s.ends(finds, succeeds), drifted)
		s.when("The spec asks to correct drift", s.editing(func(stack *pulumiv1.Stack) { stack.Spec.Drift.Mode = pulumiv1.DriftModeCorrect }), working)
		s.when("The correction has succeeded, and another check follows at once", s.ends(succeeds), func(stack *pulumiv1.Stack) bool {
			return idle(stack) && stack.Status.Drift.Correction != nil && checks(stack)
		})
		s.when("The check has found nothing", s.ends(findsNothing, succeeds), func(stack *pulumiv1.Stack) bool { return !drifted(stack) && !checks(stack) })
	})
}

func TestStoryOfADeletion(t *testing.T) {
	tell(t, "deletion.txt", func(s *story) {
		s.when("A Stack with destroyOnFinalize and destroyAfterDependents has been deployed", func() {
			s.create(func(stack *pulumiv1.Stack) {
				stack.Spec.DestroyOnFinalize, stack.Spec.DestroyAfterDependents = true, true
			})()
			s.ends(succeeds)()
		}, idle)
		s.when("It is deleted while another Stack depends on it", func() {
			web := s.dependent("web", requires("app"))
			s.succeed(web, time.Now())
			s.Expect(s.client.Delete(s.t.Context(), s.stack)).To(Succeed())
		}, reasonIs(meta.ReadyCondition, pulumiv1.DependentsExistReason))
		s.when("The other Stack no longer depends on it", func() {
			s.edit(&pulumiv1.Stack{Namespace: s.namespace, Name: "web"}, requires())
		}, working)
		s.when("The destroy has failed", s.ends(fails("deleting bucket assets: it is not empty")), func(stack *pulumiv1.Stack) bool {
			return stack.Status.LastUpdate.Type == autov1alpha1.UpdateTypeDestroy
		})
		s.when("Somebody asks for another attempt at once", s.editing(func(stack *pulumiv1.Stack) {
			metav1.SetMetaDataAnnotation(&stack.ObjectMeta, meta.ReconcileRequestAnnotation, "1")
		}), working)
		s.ends(succeeds)()
		s.awaitGone(s.stack)
		// Events are written in the background, in no order.
		s.Eventually(s.newEvents).Should(ContainElements(ContainSubstring(eventStackReleased), ContainSubstring(eventUpdateSuccess)))
		fmt.Fprintf(&s.text, "# The destroy has succeeded: the Stack is gone\n\n%s", strings.Join(s.newEvents(), ""))
	})
}
