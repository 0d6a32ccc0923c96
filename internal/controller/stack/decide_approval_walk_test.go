package stack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// approvalSimulation is a Stack with spec.approval, its Updates and Approvals, and the world that they change. Its steps are those of the
// controllers, of users, and random faults, in any order.
type approvalSimulation struct {
	random  *rand.Rand
	stack   *pulumiv1.Stack
	updates map[string]*autov1alpha1.Update
	// approvals are all Approvals that were created, also those with other digests.
	approvals []autov1alpha1.Approval
	// content identifies the content of the source, and state the state of the Pulumi stack.
	content, state int
	// made has the digests of the plans by their names. carried has, by the name of a plan, the plan whose approvals it took over. applied
	// counts the plans that were carried out.
	made, carried map[string]string
	applied       int
	// spent has the names of the plans whose approvals do not count any longer: the plan was carried out, or somebody deleted its Update.
	spent map[string]bool
	// created counts the Updates that were created, by anybody, for their UIDs.
	created int
	wrong   []string
	// decided is what the last reconcile decided. calm is true when no more faults happen.
	decided decision
	calm    bool
}

func newWalk(seed uint64) *approvalSimulation {
	o := guarded("", func(o *observation) { o.stack.Status.Plan = nil })
	o.stack.Status.LastUpdate.ContentDigest, o.stack.Spec.DestroyOnFinalize = "sha256:content-0", true
	o.stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop"}
	if seed%2 == 1 {
		// What claims to be a correction of drift then needs no approval.
		o.stack.Spec.Approval.Operations = []pulumiv1.ApprovedOperation{pulumiv1.ApprovedUp, pulumiv1.ApprovedDestroy}
	}
	return &approvalSimulation{random: rand.New(rand.NewPCG(seed, 1)), stack: o.stack, updates: map[string]*autov1alpha1.Update{}, made: map[string]string{}, carried: map[string]string{}, spent: map[string]bool{}}
}

// Get and List make the walk an API server.
func (w *approvalSimulation) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	update, found := w.updates[key.Name]
	if !found {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "updates"}, key.Name)
	}
	update.DeepCopyInto(into.(*autov1alpha1.Update))
	return nil
}

func (w *approvalSimulation) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return nil
}

// current returns the Update that is in progress, nil when there is none.
func (w *approvalSimulation) current() *autov1alpha1.Update {
	if current := w.stack.Status.CurrentUpdate; current != nil {
		return w.updates[current.Name]
	}
	return nil
}

// reconcile is one reconcile of the Stack. When it is cut off, everything is lost except the Update that it created.
func (w *approvalSimulation) reconcile(cutOff bool) {
	before := w.stack.DeepCopy()
	o := &observation{now: time.Now(), waitInterval: time.Second, stack: w.stack, workspace: &autov1alpha1.Workspace{}, desired: &desired{}}
	o.artifact = &source.Artifact{Digest: fmt.Sprintf("sha256:artifact-%d", w.content), Revision: fmt.Sprintf("main@sha1:%d", w.content)}
	o.content = content{requested: true, stored: true, digest: fmt.Sprintf("sha256:content-%d", w.content)}
	o.update = w.current()
	if o.update != nil && !isTrusted(w.stack, o.update) {
		o.update = nil
	}
	named := w.stack.Status.CurrentUpdate
	o.updateRemoved = named != nil && (o.update == nil || o.update.UID != named.UID)
	if next := w.updates[updateName(w.stack)]; o.update == nil && next != nil && isTrusted(w.stack, next) && !o.updateRemoved {
		o.update = next
	}
	restoreStatus(o)
	if plan := w.stack.Status.Plan; plan != nil {
		o.planGone = w.updates[plan.Name] == nil || !isPlanOf(w.stack, w.updates[plan.Name])
		for i := range w.approvals {
			if w.approvals[i].Spec.Update == plan.Name {
				o.approvals = append(o.approvals, w.approvals[i])
			}
		}
	}
	followGeneration(w.stack)
	d := decide(*o)
	w.stack.Status.Plan = d.plan
	if d.action == actionRecord {
		if _, err := (&Reconciler{APIReader: w}).record(context.Background(), o); err != nil {
			w.wrong = append(w.wrong, err.Error())
		}
		d = decide(*o)
		w.stack.Status.Plan = d.plan
	}
	w.act(o, d)
	w.decided = d
	if plan := w.stack.Status.Plan; plan != nil {
		w.carried[plan.Name] = plan.CarriedFrom
	}
	if cutOff {
		w.stack = before
	}
	if plan := w.stack.Status.Plan; plan != nil && plan.State == pulumiv1.PlanApplied {
		for name := plan.Name; name != ""; name = w.carried[name] {
			w.spent[name] = true
		}
	}
}

func (w *approvalSimulation) act(o *observation, d decision) {
	switch d.action {
	case actionSupersede:
		delete(w.updates, o.update.Name)
		recordWithdrawal(w.stack, o.update)
	case actionAwaitApproval:
		acceptCommit(o)
	case actionUpdate:
		update, err := desiredUpdate(o, d)
		if err != nil {
			w.wrong = append(w.wrong, err.Error())
			return
		}
		if d.applies {
			constrainToPlan(update, w.stack.Status.Plan, w.updates[w.stack.Status.Plan.Name])
		}
		if known := w.updates[update.Name]; known != nil && !isTrusted(w.stack, known) {
			delete(w.updates, update.Name)
			return
		} else if known != nil {
			update = known
		} else {
			w.create(update)
		}
		recordPlanStart(o, d)
		recordStart(w.stack, d, update)
		if update.HasStarted() {
			restoreInputs(w.stack, update)
		}
	}
}

// create is what the API server does when somebody creates an Update.
func (w *approvalSimulation) create(update *autov1alpha1.Update) {
	w.created++
	update.UID, update.Generation = types.UID(fmt.Sprint("uid-", w.created)), 1
	w.updates[update.Name] = update
	delete(w.spent, update.Name) // its plan is another one
}

// evil is the digest of a program that is not that of the Stack.
const evil = "sha256:evil"

// forge creates an Update under the name of the next one of the Stack, or edits the one that is in progress or made the plan: what somebody
// can do who may create and edit Updates, and nothing else.
func (w *approvalSimulation) forge() {
	source := &autov1alpha1.UpdateSource{Digest: evil, Revision: fmt.Sprintf("main@sha1:%d", w.content)}
	annotations := map[string]string{
		pulumiv1.SpecDigestAnnotation: specDigest(w.stack), pulumiv1.StackGenerationAnnotation: fmt.Sprint(w.stack.Generation),
		pulumiv1.ContentDigestAnnotation: fmt.Sprintf("sha256:content-%d", w.content),
	}
	if w.random.IntN(2) == 0 {
		annotations[pulumiv1.DriftUpdateAnnotation], annotations[pulumiv1.PlanCauseAnnotation] = "sha256:drift", string(pulumiv1.PlanForDrift)
	}
	target := w.current()
	if plan := w.stack.Status.Plan; target == nil && plan != nil {
		target = w.updates[plan.Name]
	}
	switch name := updateName(w.stack); {
	case w.random.IntN(2) == 0 && w.updates[name] == nil:
		forged := &autov1alpha1.Update{Name: name, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{UID: w.stack.UID, Kind: pulumiv1.StackKind, APIVersion: pulumiv1.GroupVersion.String()}}}
		forged.Spec = autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypePreview, SavePlan: new(true), Source: source}
		w.create(forged)
	case target == nil:
	case w.random.IntN(2) == 0:
		target.Annotations = annotations
	default:
		target.Spec.Source, target.Generation = source, target.Generation+1
	}
}

// start starts the current Update. Like the Update controller, it starts only what is approved in the status of the Stack.
func (w *approvalSimulation) start() {
	update := w.current()
	if update == nil {
		update = w.updates[updateName(w.stack)] // somebody else's
	}
	if update == nil || update.HasStarted() {
		return
	}
	plan := w.stack.Status.Plan
	if !update.ChangesNothing() {
		judged := plans.Case{Plan: plan, Policy: w.stack.Spec.Approval, Reference: plans.CarriedOutBy(update), Now: time.Now()}
		if plans.Judge(judged).State != plans.Approved || plan.Generation != w.stack.Generation {
			return
		}
		if from := w.updates[plan.Name]; from == nil || from.UID != plan.UID || update.Spec.Source.Digest != from.Status.Plan.InputsDigest[1:] {
			// The Update controller and the agent compare the plan and its inputs.
			conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "done")
			conditions.MarkTrue(update, autov1alpha1.UpdateFailed, autov1alpha1.PlanStaleReason, "it failed")
			return
		}
		w.check(update)
	}
	update.Status.StartTime = &metav1.Time{Time: time.Now()}
}

// check checks that the Update that starts was approved: its plan with exactly this digest, or a plan whose approvals its plan took over.
func (w *approvalSimulation) check(update *autov1alpha1.Update) {
	w.applied++
	wanted, plan := update.Spec.Plan, w.stack.Status.Plan
	said := func(name string, decision autov1alpha1.ApprovalDecision) bool {
		return slices.ContainsFunc(w.approvals, func(a autov1alpha1.Approval) bool {
			return a.Spec.Update == name && a.Spec.Digest == w.made[name] && a.Spec.Decision == decision && plans.Counts(&a)
		})
	}
	approved, rejected := false, false
	for name := wanted.Name; name != "" && !approved; name = w.carried[name] {
		approved = said(name, autov1alpha1.ApprovalApprove) && !w.spent[name]
	}
	for name := w.carried[wanted.Name]; name != ""; name = w.carried[name] {
		rejected = rejected || said(name, autov1alpha1.ApprovalReject)
	}
	switch {
	case update.Spec.Source.Digest == evil:
		w.wrong = append(w.wrong, "another program is carried out by "+update.Name)
	case rejected:
		w.wrong = append(w.wrong, "the plan was rejected whose approvals it took over: "+wanted.Name)
	case wanted.Digest != w.made[wanted.Name]:
		w.wrong = append(w.wrong, "another digest than that of the plan")
	case plan.Changes > 0 && !approved:
		w.wrong = append(w.wrong, "nobody approved "+wanted.Name)
	}
}

// end ends the current Update, with any result.
func (w *approvalSimulation) end() {
	update := w.current()
	if update == nil {
		update = w.updates[updateName(w.stack)]
	}
	if update == nil || !update.HasStarted() || update.IsComplete() {
		return
	}
	outcome := []string{"", "", autov1alpha1.UpdateFailedReason, autov1alpha1.InterruptedReason, autov1alpha1.PlanStaleReason, autov1alpha1.UpdateConflictReason}[w.random.IntN(6)]
	if w.calm {
		outcome = ""
	}
	if update.Spec.Plan != nil && outcome == "" && update.Spec.Plan.Digest != w.digest(w.updates[update.Spec.Plan.Name]) {
		outcome = autov1alpha1.PlanStaleReason // as the agent finds
	}
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "done")
	update.Status.EndTime = &metav1.Time{Time: time.Now()}
	if outcome != "" {
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, outcome, "it failed")
		return
	}
	if !update.SavesPlan() {
		w.state++
		return
	}
	update.Status.ResourceChanges = map[string]int64{"create": int64(w.random.IntN(3))}
	if changes := update.Status.ResourceChanges["create"]; changes > 0 {
		update.Status.Changes = []autov1alpha1.ResourceChange{{Operation: "create", URN: "x", Digest: "x"}}
	}
	digest := w.digest(update)
	update.Status.Plan = &autov1alpha1.SavedPlan{Digest: digest, ChangesDigest: "c" + update.Spec.Source.Digest, InputsDigest: "i" + update.Spec.Source.Digest}
	w.made[update.Name] = digest
}

// digest returns the digest that a plan of what the Update runs would have now.
func (w *approvalSimulation) digest(update *autov1alpha1.Update) string {
	if update == nil {
		return ""
	}
	return fmt.Sprintf("sha256:%s-%s-%d-%s", update.Spec.Type, update.Spec.Source.Digest, w.state, update.Annotations[pulumiv1.SpecDigestAnnotation])
}

// createApproval creates an Approval or a rejection of any plan, with any digest.
func (w *approvalSimulation) createApproval() {
	names := []string{"app-nothing"}
	for name := range w.made {
		names = append(names, name)
	}
	slices.Sort(names)
	named, digestOf := names[w.random.IntN(len(names))], names[w.random.IntN(len(names))]
	if plan := w.stack.Status.Plan; plan != nil && w.random.IntN(2) == 0 {
		named, digestOf = plan.Name, plan.Name
	}
	approval := autov1alpha1.Approval{Spec: autov1alpha1.ApprovalSpec{Update: named, Digest: w.made[digestOf], By: []string{"alice", "bob"}[w.random.IntN(2)],
		Decision: autov1alpha1.ApprovalApprove}}
	if w.random.IntN(5) == 0 {
		approval.Spec.Decision = autov1alpha1.ApprovalReject
	}
	status := metav1.ConditionTrue
	if approval.Spec.Digest != w.made[named] || approval.Spec.Digest == "" || !w.isJudgable(named) {
		status = metav1.ConditionFalse
	}
	approval.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.ApprovalAccepted, Status: status}}
	w.approvals = append(w.approvals, approval)
}

// isJudgable reports whether the Approval controller accepts an Approval of the plan: the plan is the one of the Stack, has not expired,
// and is not superseded.
func (w *approvalSimulation) isJudgable(name string) bool {
	judged := plans.Judge(plans.Case{
		Plan: w.stack.Status.Plan, Policy: w.stack.Spec.Approval, Reference: &plans.Reference{Name: name, Digest: w.made[name]}, Now: time.Now(),
	})
	return slices.Contains([]plans.State{plans.Pending, plans.Approved, plans.Rejected}, judged.State)
}

// step makes one random thing happen.
func (w *approvalSimulation) step() {
	switch n := w.random.IntN(41); {
	case n < 14:
		w.reconcile(n == 0)
	case n < 20:
		w.start()
	case n < 26:
		w.end()
	case n < 32:
		w.createApproval()
	case n < 34:
		w.content = w.random.IntN(2)
	case n < 35:
		w.stack.Generation++
		w.stack.Spec.Refresh = !w.stack.Spec.Refresh
	case n < 36:
		w.state++
	case n < 37:
		time.Sleep(25 * time.Hour)
	case n < 38:
		time.Sleep(time.Minute)
	case n < 39 && w.stack.Status.Plan != nil:
		delete(w.updates, w.stack.Status.Plan.Name)
		w.spent[w.stack.Status.Plan.Name] = true
	case n < 40:
		w.forge()
	case w.random.IntN(10) == 0:
		w.stack.Status.Plan = nil // the status was lost
	}
}

// runWithoutFaults runs the controllers without any further faults. A user approves each plan that waits, and requests another one in place
// of a rejected one. Each approved plan has to be carried out before any other, and the Stack has to become ready.
func (w *approvalSimulation) runWithoutFaults() {
	w.calm = true
	for range 30 {
		w.reconcile(false)
		plan, applied := w.stack.Status.Plan, w.applied
		w.start()
		if w.applied > applied && w.current().Spec.Plan.Name != plan.Name {
			w.wrong = append(w.wrong, "another plan than "+plan.Name+" was carried out")
		}
		w.end()
		switch d := w.decided; {
		case d.action == actionReady:
			if last := w.stack.Status.LastUpdate; last.ContentDigest != fmt.Sprintf("sha256:content-%d", w.content) || last.State != pulumiv1.StackUpdateSucceeded {
				w.wrong = append(w.wrong, "ready without what the source has")
			}
			return
		case d.action == actionAwaitApproval && w.updates[updateName(w.stack)] != nil && isTrusted(w.stack, w.updates[updateName(w.stack)]):
			// The status was lost. The next reconcile restores it from the Update that followed.
		case d.action == actionAwaitApproval && plan.State == pulumiv1.PlanRejected:
			w.stack.Generation++
			w.stack.Spec.Refresh = !w.stack.Spec.Refresh
		case d.action == actionAwaitApproval:
			w.approve(plan.Name)
			w.reconcile(false)
			if !w.decided.applies && w.stack.Status.Plan.RejectedBy == "" {
				w.wrong = append(w.wrong, "plan "+plan.Name+" was approved and is not carried out")
			}
		case d.after > 0:
			time.Sleep(d.after)
		}
	}
	w.wrong = append(w.wrong, fmt.Sprintf("not settled: %s, %s", w.decided.action, w.decided.reason))
}

// approve creates an accepted Approval of exactly this plan.
func (w *approvalSimulation) approve(name string) {
	approval := autov1alpha1.Approval{Spec: autov1alpha1.ApprovalSpec{Update: name, Digest: w.made[name], By: "carol", Decision: autov1alpha1.ApprovalApprove}}
	approval.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.ApprovalAccepted, Status: metav1.ConditionTrue}}
	w.approvals = append(w.approvals, approval)
}

// TestNothingIsCarriedOutUnapprovedWhateverHappens runs many random steps, very often. Then it calls settle, which checks that what is
// approved is carried out. The test has a clock of its own: with the clock of the machine, all plans would have expired as soon as they
// were recorded.
func TestNothingIsCarriedOutUnapprovedWhateverHappens(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g, byChance, settling := NewWithT(t), 0, 0
	for seed := range uint64(3000) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(now))
			w := newWalk(seed)
			for range 150 {
				w.step()
			}
			byChance += w.applied
			settling -= w.applied
			w.runWithoutFaults()
			settling += w.applied
			NewWithT(t).Expect(w.wrong).To(BeEmpty(), "seed %d", seed)
		})
	}
	t.Logf("%d plans were carried out by chance, and %d when all settled", byChance, settling)
	g.Expect(byChance).To(BeNumerically(">", 1000))
	g.Expect(settling).To(BeNumerically(">", 2000))
}
