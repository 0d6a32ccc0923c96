package stack

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// watchful is a Stack that is up to date and looks for drift.
func watchful(mode pulumiv1.DriftMode) *observation {
	o := upToDate()
	o.stack.Spec.Drift = &pulumiv1.DriftSpec{Mode: mode, Interval: metav1.Duration{Duration: time.Hour}}
	o.stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}
	return o
}

// checked is a check of what the Stack's last update deployed. The check ended the given time ago and found these changes.
func checked(since time.Duration, changes ...autov1alpha1.ResourceChange) *autov1alpha1.Update {
	check := &autov1alpha1.Update{
		Name: "app-drift", Labels: map[string]string{pulumiv1.ComponentLabel: pulumiv1.ComponentDriftCheck},
		Annotations: map[string]string{pulumiv1.DriftUpdateAnnotation: "app-1"},
		Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeRefresh, PreviewOnly: new(true), StackName: "dev",
			ProjectInfo: &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}}}
	check.Status.Changes, check.Status.EndTime = changes, new(ago(since))
	conditions.MarkTrue(check, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "done")
	return check
}

func urnOf(kind, name string) string { return "urn:pulumi:dev::shop::" + kind + "::" + name }

func changed(kind, name string, paths ...string) autov1alpha1.ResourceChange {
	return autov1alpha1.ResourceChange{Operation: "update", URN: urnOf(kind, name), Paths: paths}
}

func gone(kind, name string) autov1alpha1.ResourceChange {
	return autov1alpha1.ResourceChange{Operation: "delete", URN: urnOf(kind, name)}
}

// sees records a check in the status, as if it had ended the given time ago.
func (o *observation) sees(since time.Duration, changes ...autov1alpha1.ResourceChange) {
	o.driftCheck = checked(since, changes...)
	recordDrift(o)
	o.driftCheck = nil
}

// inTurn returns the observation with a turn that lasts until the Stack has looked for drift.
func inTurn(o *observation, changes ...func(*observation)) *observation {
	o.stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "shop", Runtime: "yaml"}
	o.stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "waves"}
	o.rollout = &autov1alpha1.StackRollout{Namespace: o.stack.Namespace, Name: "waves"}
	o.rollout.Spec.Waves = []autov1alpha1.RolloutWave{{Name: "all", NoDrift: true}}
	o.rollout.Status = autov1alpha1.StackRolloutStatus{
		Target: &autov1alpha1.RolloutTarget{Revision: o.stack.Status.LastUpdate.Revision, Digest: o.stack.Status.LastUpdate.LastAttemptedCommit},
		Turns:  []autov1alpha1.RolloutTurn{{Stack: waves.Name(o.stack.Namespace, o.stack.Name), CheckDrift: true}},
	}
	return with(o, changes...)
}

func TestDriftThatATurnAskedForIsKeptUntilTheNextUpdate(t *testing.T) {
	g := NewWithT(t)
	o := inTurn(upToDate())
	o.sees(time.Second)
	o.rollout.Status.Turns = nil
	d := decideOnDrift(*o, decide(*o))
	g.Expect(d).To(Equal(driftDecision{step: driftNone}), "the StackRollout reads it")
	o.stack.Status.LastUpdate.Name = "app-2"
	g.Expect(decideOnDrift(*o, decide(*o)).forget).To(BeTrue())
	o.stack.Status.LastUpdate.Name = "app-1"
	o.rollout.Spec.Waves[0].NoDrift = false
	g.Expect(decideOnDrift(*o, decide(*o)).forget).To(BeTrue())
	o.rollout = nil
	g.Expect(decideOnDrift(*o, decide(*o)).forget).To(BeTrue())
}

func TestDriftIsLookedForWhenNothingElseIsToDo(t *testing.T) {
	waiting, running := checked(0), checked(0)
	waiting.Status = autov1alpha1.UpdateStatus{}
	running.Status = autov1alpha1.UpdateStatus{StartTime: new(ago(time.Second))}
	overdue := func(o *observation) {
		o.stack.Status.Drift = &pulumiv1.DriftStatus{FirstCheckTime: new(ago(time.Minute))}
	}
	created := func(since time.Duration) func(*observation) {
		return func(o *observation) {
			o.driftCheck = waiting.DeepCopy()
			o.driftCheck.CreationTimestamp = ago(since)
		}
	}
	requested := func(o *observation) { o.stack.Annotations = map[string]string{pulumiv1.DriftCheckAnnotation: "now"} }
	for name, tt := range map[string]struct {
		given *observation
		step  driftStep
		waits bool
	}{
		"not without being asked for":            {given: upToDate(), step: driftNone},
		"at some time in the first interval":     {given: watchful(""), step: driftNone, waits: true},
		"when its time has come":                 {given: with(watchful(""), overdue), step: driftStart},
		"on request":                             {given: with(watchful(""), requested), step: driftStart},
		"not while one is on its way":            {given: with(watchful(""), overdue, func(o *observation) { o.driftCheck = running }), step: driftNone, waits: true},
		"one that waits for a Workspace is left": {given: with(watchful(""), created(5*time.Second)), step: driftNone, waits: true},
		"but not for one that was deleted":       {given: with(watchful(""), created(time.Minute)), step: driftDiscard},
		"one that waits for something else is left": {given: with(watchful(""), created(10*time.Minute), func(o *observation) {
			o.workspace = &autov1alpha1.Workspace{}
		}), step: driftNone, waits: true},
		"but not without an end": {given: with(watchful(""), created(16*time.Minute), func(o *observation) {
			o.workspace = &autov1alpha1.Workspace{}
		}), step: driftRecord},
		"not while it is suspended":        {given: with(watchful(""), overdue, func(o *observation) { o.stack.Spec.Suspend = true }), step: driftNone},
		"nor is one that runs left":        {given: with(watchful(""), func(o *observation) { o.stack.Spec.Suspend, o.driftCheck = true, running }), step: driftDiscard},
		"not after a failure":              {given: with(watchful(""), overdue, func(o *observation) { o.stack.Status.LastUpdate.State = pulumiv1.StackUpdateFailed }), step: driftNone},
		"not before anything was deployed": {given: with(watchful(""), overdue, func(o *observation) { o.stack.Status.Deployed = false }), step: driftNone},
		"not with half a state":            {given: with(watchful(""), overdue, func(o *observation) { o.stack.Status.LastUpdate.PendingOperations = true }), step: driftNone},
		"it makes way for an update":       {given: with(watchful(""), func(o *observation) { o.stack.Generation, o.driftCheck = 3, running }), step: driftDiscard},
		"and for one that waits": {given: with(watchful(""), func(o *observation) {
			o.update, o.driftCheck, o.stack.Status.CurrentUpdate = &autov1alpha1.Update{}, waiting, new(pulumiv1.CurrentStackUpdate)
		}), step: driftDiscard},
		"and for a deletion":                         {given: with(watchful(""), func(o *observation) { o.stack.DeletionTimestamp, o.driftCheck = new(ago(0)), waiting }), step: driftDiscard},
		"it ends when nobody asks for it any longer": {given: with(upToDate(), func(o *observation) { o.driftCheck = running }), step: driftDiscard},
		"its result is recorded":                     {given: with(watchful(""), func(o *observation) { o.driftCheck = checked(0) }), step: driftRecord},
		"once": {given: with(watchful(""), func(o *observation) {
			o.sees(0)
			o.driftCheck = checked(0)
		}), step: driftDiscard},
		"a failure to start, too": {given: with(watchful(""), created(16*time.Minute), func(o *observation) {
			o.workspace = &autov1alpha1.Workspace{}
			o.stack.Status.Drift = &pulumiv1.DriftStatus{LastCheckTime: new(ago(time.Minute)), CheckedUpdate: "app-1", Failures: 1}
		}), step: driftDiscard},
		"but one that started after all goes on": {given: with(watchful(""), func(o *observation) {
			o.driftCheck = running.DeepCopy()
			o.driftCheck.CreationTimestamp = ago(16 * time.Minute)
			o.stack.Status.Drift = &pulumiv1.DriftStatus{LastCheckTime: new(ago(time.Minute)), CheckedUpdate: "app-1", Failures: 1}
		}), step: driftNone, waits: true},
		"not when an update ended meanwhile": {given: with(watchful(""), func(o *observation) {
			o.driftCheck = checked(0)
			o.stack.Status.LastUpdate.Name = "app-2"
		}), step: driftDiscard},
		"not when it was for other resources": {given: with(watchful(""), func(o *observation) {
			o.driftCheck = checked(0)
			o.stack.Spec.Targets = []string{urnOf("a:b:C", "x")}
		}), step: driftDiscard},
		"nor is such a one left to run": {given: with(watchful(""), func(o *observation) {
			o.driftCheck = running
			o.stack.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Exclude: []string{"**x"}}}
		}), step: driftDiscard},
		"not when somebody cancelled it": {given: with(watchful(""), func(o *observation) {
			o.driftCheck = checked(0)
			conditions.MarkTrue(o.driftCheck, autov1alpha1.UpdateFailed, autov1alpha1.CanceledReason, "cancelled")
		}), step: driftDiscard},
		"again after the interval": {given: with(watchful(""), func(o *observation) { o.sees(2 * time.Hour) }), step: driftStart},
		"not before":               {given: with(watchful(""), func(o *observation) { o.sees(30 * time.Minute) }), step: driftNone, waits: true},
		"soon, to confirm":         {given: with(watchful(""), func(o *observation) { o.sees(confirmDelay, gone("a:b:C", "x")) }), step: driftStart},
		"at once after an update of a Stack with drift": {given: with(watchful(""), func(o *observation) {
			o.sees(time.Minute, gone("a:b:C", "x"))
			o.sees(time.Second, gone("a:b:C", "x"))
			o.stack.Status.LastUpdate.Name = "app-2"
		}), step: driftStart},
		"at once when a turn asks for it":            {given: inTurn(upToDate()), step: driftStart},
		"also with a longer interval":                {given: inTurn(watchful("")), step: driftStart},
		"not before the update that it is given for": {given: inTurn(upToDate(), func(o *observation) { o.stack.Status.LastUpdate.LastAttemptedCommit = "other" }), step: driftNone},
		"once for a turn":                            {given: inTurn(upToDate(), func(o *observation) { o.sees(time.Second) }), step: driftNone, waits: true},
		"soon, to confirm, for a turn":               {given: inTurn(upToDate(), func(o *observation) { o.sees(confirmDelay, gone("a:b:C", "x")) }), step: driftStart},
		"its result is recorded for a turn":          {given: inTurn(upToDate(), func(o *observation) { o.driftCheck = checked(0) }), step: driftRecord},
		"later and later after failures": {given: with(watchful(""), func(o *observation) {
			o.sees(2 * time.Minute)
			o.stack.Status.Drift.Failures = 3
		}), step: driftNone, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := decideOnDrift(*tt.given, decide(*tt.given))
			g.Expect(d.step).To(Equal(tt.step))
			g.Expect(d.after > 0).To(Equal(tt.waits), "%s", d.after)
			g.Expect(d.after).To(BeNumerically("<=", 70*time.Minute))
		})
	}
}

func TestDriftIsReportedWhenTwoChecksSeeTheSame(t *testing.T) {
	g := NewWithT(t)
	o := watchful("")
	shown := func() *metav1.Condition { return conditions.Get(o.stack, pulumiv1.DriftedCondition) }
	o.sees(time.Hour)
	g.Expect(shown()).To(HaveField("Reason", pulumiv1.NoDriftReason))
	o.sees(50*time.Minute, changed("a:b:C", "x", "tags.owner"))
	g.Expect(shown()).To(HaveField("Reason", pulumiv1.NoDriftReason), "once may be chance")
	o.sees(49*time.Minute, changed("a:b:C", "x", "tags.owner"), gone("a:b:C", "y"))
	g.Expect(shown()).To(HaveField("Reason", pulumiv1.NoDriftReason), "it is still changing")
	o.sees(48*time.Minute, gone("a:b:C", "y"), changed("a:b:C", "x", "tags.owner"))
	g.Expect(shown()).To(And(HaveField("Reason", pulumiv1.DriftDetectedReason), HaveField("Status", metav1.ConditionTrue),
		HaveField("Message", HavePrefix("2 resources were changed outside of Pulumi: a:b:C x (tags.owner), a:b:C y (gone)."))))
	since := o.stack.Status.Drift.Since
	g.Expect(since.Time).To(Equal(ago(48 * time.Minute).Time))
	g.Expect(o.stack.Status.Drift.Resources).To(HaveExactElements(
		pulumiv1.DriftedResource{URN: urnOf("a:b:C", "x"), Change: pulumiv1.DriftChanged, Paths: []string{"tags.owner"}},
		pulumiv1.DriftedResource{URN: urnOf("a:b:C", "y"), Change: pulumiv1.DriftGone}))
	o.sees(40*time.Minute, gone("a:b:C", "y"), changed("a:b:C", "x", "tags.owner"))
	g.Expect(o.stack.Status.Drift.Since).To(Equal(since))

	// A check that fails does not change what is known about drift. Later checks continue from the last one that succeeded.
	o.driftCheck = checked(30 * time.Minute)
	conditions.MarkTrue(o.driftCheck, autov1alpha1.UpdateFailed, autov1alpha1.UpdateFailedReason, "no credentials")
	o.driftCheck.Status.Message = "no credentials"
	recordDrift(o)
	g.Expect(shown()).To(And(HaveField("Reason", pulumiv1.DriftCheckFailedReason), HaveField("Status", metav1.ConditionUnknown), HaveField("Message", HaveSuffix("no credentials"))))
	g.Expect(o.stack.Status.Drift.Digest).NotTo(BeEmpty())
	o.sees(20*time.Minute, gone("a:b:C", "y"), changed("a:b:C", "x", "tags.owner"))
	g.Expect(shown()).To(HaveField("Reason", pulumiv1.DriftDetectedReason))
	o.sees(time.Minute)
	g.Expect(shown()).To(And(HaveField("Reason", pulumiv1.NoDriftReason), HaveField("Status", metav1.ConditionFalse)))
	g.Expect(o.stack.Status.Drift.Resources).To(BeEmpty())
}

func TestIgnoredDriftIsNone(t *testing.T) {
	rules := []pulumiv1.DriftIgnore{
		{Target: &pulumiv1.DriftTarget{Type: "aws:autoscaling/*"}, Paths: []string{"desiredCapacity", "tags"}},
		{Target: &pulumiv1.DriftTarget{Name: "scratch-*"}}, {Paths: []string{"maxAge"}},
	}
	many := make([]string, maxListedPaths)
	for i := range many {
		many[i] = fmt.Sprintf("tags.t%d", i)
	}
	const group = "aws:autoscaling/group:Group"
	for name, tt := range map[string]struct {
		change autov1alpha1.ResourceChange
		left   []string
		counts bool
	}{
		"a path":                    {change: changed(group, "web", "desiredCapacity")},
		"what is below a path":      {change: changed(group, "web", "tags.owner", `tags["a.b"]`)},
		"another path is left":      {change: changed(group, "web", "tags.owner", "maxSize"), left: []string{"maxSize"}, counts: true},
		"a longer name is another":  {change: changed(group, "web", "tagsAll"), left: []string{"tagsAll"}, counts: true},
		"another type":              {change: changed("aws:s3/bucket:Bucket", "web", "tags"), left: []string{"tags"}, counts: true},
		"a name, all of it":         {change: gone("a:b:C", "scratch-1")},
		"one that is gone":          {change: gone(group, "web"), counts: true},
		"one without known paths":   {change: changed(group, "web"), counts: true},
		"one with too many to tell": {change: changed(group, "web", many...), counts: true},
		"too many, by two rules":    {change: changed(group, "web", append(many[1:], "maxAge")...), counts: true},
		"what is no URN":            {change: autov1alpha1.ResourceChange{Operation: "update", URN: "odd"}, counts: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			resources, _, digest := driftOf(checked(0, tt.change), rules)
			g.Expect(digest != "").To(Equal(tt.counts))
			if tt.counts {
				g.Expect(resources).To(HaveLen(1))
				g.Expect(resources[0].Paths).To(HaveExactElements(tt.left))
			}
		})
	}
	resources, omitted, _ := driftOf(checked(0, make([]autov1alpha1.ResourceChange, 60)...), nil)
	NewWithT(t).Expect(resources).To(HaveLen(maxDriftedResources))
	NewWithT(t).Expect(omitted).To(BeEquivalentTo(10))
	resources, omitted, _ = driftOf(checked(0, gone("a:b:C", strings.Repeat("x", 10<<10)), gone("a:b:C", strings.Repeat("y", 10<<10))), nil)
	NewWithT(t).Expect(resources).To(HaveLen(1))
	NewWithT(t).Expect(omitted).To(BeEquivalentTo(1))
}

func TestWildcardsMatchWholeTexts(t *testing.T) {
	for pattern, tt := range map[string]struct{ matched, other string }{
		"aws:s3/*":   {"aws:s3/bucket:Bucket", "aws:s3"},
		"*:Bucket":   {"aws:s3/bucket:Bucket", "aws:s3/bucket:BucketPolicy"},
		"a*b*c":      {"a-b-b-c", "acb"},
		"ab*ba":      {"abba", "aba"},
		"exact":      {"exact", "exactly"},
		"*":          {"anything", ""},
		"a.c":        {"a.c", "abc"},
		"web-*-tmp*": {"web-1-tmp", "web-tmp"},
	} {
		if !matches(pattern, tt.matched) {
			t.Errorf("%q does not match %q", pattern, tt.matched)
		}
		if tt.other != "" && matches(pattern, tt.other) {
			t.Errorf("%q matches %q", pattern, tt.other)
		}
	}
}

func TestDriftCheckThatCannotBeMadeSaysWhy(t *testing.T) {
	g := NewWithT(t)
	o := watchful("")
	showCheckProblem(o.stack, errors.New("connection refused"))
	g.Expect(conditions.Has(o.stack, pulumiv1.DriftedCondition)).To(BeFalse(), "it passes by itself")
	showCheckProblem(o.stack, fmt.Errorf("create: %w", &notOwnedError{kind: autov1alpha1.UpdateKind, name: "app-drift", goes: "is being deleted"}))
	g.Expect(conditions.Has(o.stack, pulumiv1.DriftedCondition)).To(BeFalse(), "it goes by itself")
	showCheckProblem(o.stack, fmt.Errorf("create: %w", &notOwnedError{kind: autov1alpha1.UpdateKind, name: "app-drift"}))
	g.Expect(conditions.GetReason(o.stack, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.DriftCheckFailedReason))
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(ContainSubstring("Update app-drift exists already and was not made for this Stack"))
	showCheckProblem(o.stack, fmt.Errorf("create: %w", denied()))
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(ContainSubstring(denied().Error()))
}

func TestDriftIsCorrectedOnce(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	o.sees(time.Minute, changed("a:b:C", "x", "size"))
	g.Expect(decide(*o).action).To(Equal(actionReady))
	o.sees(time.Second, changed("a:b:C", "x", "size"))
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeUp))
	g.Expect(d.driftDigest).To(Equal(o.stack.Status.Drift.Digest))
	g.Expect(d.message).To(Equal("Correcting drift: 1 resource was changed outside of Pulumi: a:b:C x (size)"))
	o.workspace, o.desired = &autov1alpha1.Workspace{}, &desired{}
	update, err := desiredUpdate(o, d)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.Spec.Target).To(HaveExactElements(urnOf("a:b:C", "x")))
	g.Expect(update.Spec.Refresh).To(HaveValue(BeTrue()))

	// With the dependents of what drifted, excluded resources would be updated.
	o.stack.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Exclude: []string{"**y"}}}
	update, err = desiredUpdate(o, d)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(update.Spec.Selection).To(Equal(autov1alpha1.Selection{Exclude: []string{"**y"}}))
	g.Expect(driftOptions(o.stack)).To(HaveField("Selection", update.Spec.Selection), "a check for drift is for the same resources")
	o.stack.Spec.UpdateTemplate = nil

	// After the update, another check decides.
	o.stack.Status.LastUpdate.Name = "app-2"
	g.Expect(decide(*o).action).To(Equal(actionReady))
	g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart))

	detect := watchful(pulumiv1.DriftModeDetect)
	detect.stack.Status.Drift = o.stack.Status.Drift
	detect.stack.Status.LastUpdate.Name = "app-1"
	g.Expect(decide(*detect).action).To(Equal(actionReady), "nobody asked for a correction")
}

func TestDriftThatComesBackIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	o := watchful(pulumiv1.DriftModeCorrect)
	change := changed("a:b:C", "x", "size")
	o.sees(50*time.Minute, change)
	o.sees(49*time.Minute, change)
	for i := range maxCorrections {
		g.Expect(decide(*o).action).To(Equal(actionUpdate), "correction %d", i)
		update := checked(time.Duration(40-5*i) * time.Minute)
		recordCorrection(o.stack, &pulumiv1.CurrentStackUpdate{Drift: o.stack.Status.Drift.Digest}, update)
		o.sees(time.Duration(39-5*i)*time.Minute, change)
	}
	g.Expect(conditions.GetReason(o.stack, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.DriftComesBackReason))
	g.Expect(decide(*o).action).To(Equal(actionReady))

	// Different drift is corrected, and so is the same drift when somebody requests a check.
	other := *o
	other.stack = o.stack.DeepCopy()
	other.sees(2*time.Minute, change, gone("a:b:C", "y"))
	other.sees(time.Minute, change, gone("a:b:C", "y"))
	g.Expect(decide(other).action).To(Equal(actionUpdate))
	o.stack.Annotations = map[string]string{pulumiv1.DriftCheckAnnotation: "again"}
	g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart))
	o.driftCheck = checked(time.Second, change)
	o.driftCheck.Annotations[pulumiv1.DriftCheckAnnotation] = "again"
	recordDrift(o)
	o.driftCheck = nil
	g.Expect(decide(*o).action).To(Equal(actionUpdate))

	// Corrections that are more than an hour apart do not count as drift that comes back.
	long := &pulumiv1.DriftStatus{Correction: &pulumiv1.DriftCorrection{Digest: "d", Count: 2, Since: ago(2 * time.Hour)}}
	g.Expect(countCorrection(long, "d", now).Count).To(BeEquivalentTo(1))
}

func TestFirstChecksAreSpreadOverTheInterval(t *testing.T) {
	g := NewWithT(t)
	quarters := [4]int{}
	for range 400 {
		o := watchful("")
		o.stack.UID = uuid.NewUUID()
		d := decideOnDrift(*o, decide(*o))
		g.Expect(d.begin).To(BeTrue())
		quarters[min(int(d.after/(15*time.Minute)), 3)]++
	}
	g.Expect(quarters).To(HaveEach(BeNumerically("~", 100, 40)))

	// Once the time of the first check is set, no update delays it.
	o := watchful("")
	o.stack.Status.Drift = &pulumiv1.DriftStatus{FirstCheckTime: new(ago(time.Second))}
	o.stack.Status.LastUpdate.LastResyncTime = ago(0)
	g.Expect(decideOnDrift(*o, decide(*o)).step).To(Equal(driftStart))
}

func TestDriftCheckThatIsNeverStartedIsAFailure(t *testing.T) {
	g := NewWithT(t)
	o := watchful("")
	o.driftCheck = checked(0)
	// What its Update says while it waits is part of the progress.
	o.driftCheck.Status = autov1alpha1.UpdateStatus{Message: "the workspace is not ready"}
	conditions.MarkTrue(o.driftCheck, autov1alpha1.UpdateProgressing, "WorkspaceNotReady", "the workspace is not ready")
	recordDrift(o)
	g.Expect(conditions.GetReason(o.stack, pulumiv1.DriftedCondition)).To(Equal(pulumiv1.DriftCheckFailedReason))
	g.Expect(conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)).To(Equal("cannot look for changes that were made outside of Pulumi: " +
		"it was not started within 15m0s: waiting for workspace readiness: the workspace is not ready"))
	g.Expect(o.stack.Status.Drift.LastCheckTime.Time).To(BeTemporally("~", now, time.Second))
}

// TestDriftChecksNeverStandInTheWay combines the states of the model with every kind of check.
func TestDriftChecksNeverStandInTheWay(t *testing.T) {
	suite.WithoutRaceDetector(t)
	running := checked(0)
	running.Status = autov1alpha1.UpdateStatus{StartTime: new(ago(time.Second))}
	checks := map[string]*autov1alpha1.Update{"none": nil, "runs": running, "ended": checked(0, gone("a:b:C", "x"))}
	specs := map[string]*pulumiv1.DriftSpec{"none": nil, "detect": {}, "correct": {Mode: pulumiv1.DriftModeCorrect}}
	wrong := map[string]int{}
	modelSpaces(func(s *modelState) {
		if s.dependency != "met" && !s.deleting || s.source != "same" && s.source != "new" {
			return // they differ in why there is something to wait for
		}
		seen := s.observe()
		for checkName, check := range checks {
			for specName, spec := range specs {
				o := copyOf(seen)
				if o.stack.Spec.Drift, o.driftCheck = spec, check; check != nil {
					check.Spec.StackName, check.Spec.ProjectInfo = o.stack.Spec.Stack, o.stack.Status.ProjectInfo
				}
				plain := decide(o)
				if specName == "correct" && o.stack.Status.LastUpdate != nil {
					o.stack.Status.Drift = &pulumiv1.DriftStatus{Digest: "d", Resources: []pulumiv1.DriftedResource{{URN: urnOf("a:b:C", "x")}},
						CheckedUpdate: o.stack.Status.LastUpdate.Name, LastCheckTime: new(ago(2 * time.Hour))}
				}
				d := decide(o)
				drift := decideOnDrift(o, d)
				for name, kept := range map[string]bool{
					"drift changes no decision but that there is nothing to do": d.action == plain.action || plain.action == actionReady && d.driftDigest != "",
					"nothing is corrected that nobody asks for":                 d.driftDigest == "" || specName == "correct" && !s.suspended && !s.deleting && !s.preview,
					"a check starts only when there is nothing to do":           drift.step != driftStart || (d.action == actionReady || d.action == actionHold && d.quiet) && check == nil && spec != nil,
					"an update finds no check in its way":                       check == nil || d.action != actionUpdate && s.update == "none" || drift.step == driftDiscard,
					"every check is ended or recorded":                          checkName != "ended" || drift.step == driftRecord || drift.step == driftDiscard,
				} {
					if !kept {
						if wrong[name]++; wrong[name] == 1 {
							t.Errorf("%s: %+v, check %s, spec %s: %s, %s", name, *s, checkName, specName, d.action, drift.step)
						}
					}
				}
			}
		}
	})
	NewWithT(t).Expect(wrong).To(BeEmpty())
}

func TestDriftIsDescribedWithinBounds(t *testing.T) {
	o := watchful("")
	var changes []autov1alpha1.ResourceChange
	for i := range 200 {
		changes = append(changes, changed("a:b:C", fmt.Sprintf("x%d%s", i, strings.Repeat("y", 1000)), strings.Repeat("p", 250)))
	}
	o.sees(time.Minute, changes...)
	o.sees(time.Second, changes...)
	message := conditions.GetMessage(o.stack, pulumiv1.DriftedCondition)
	NewWithT(t).Expect(len(message)).To(BeNumerically("<", maxDriftText+200))
}

func TestCheckForDriftHasTheProgramThatHasProviders(t *testing.T) {
	o := watchful(pulumiv1.DriftModeDetect)
	check := func(change func(*autov1alpha1.UpdateSpec)) *autov1alpha1.Update {
		update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeRefresh, PreviewOnly: new(true), StackName: "dev"}}
		change(&update.Spec)
		return update
	}
	fromState := check(func(spec *autov1alpha1.UpdateSpec) { spec.ProjectInfo = o.stack.Status.ProjectInfo.DeepCopy() })
	deployed := check(func(spec *autov1alpha1.UpdateSpec) { spec.Source = o.artifact.UpdateSource("") })
	other := check(func(spec *autov1alpha1.UpdateSpec) { spec.Source = &autov1alpha1.UpdateSource{Digest: "sha256:other"} })
	elsewhere := check(func(spec *autov1alpha1.UpdateSpec) { spec.Source = o.artifact.UpdateSource("other") })
	g := NewWithT(t)
	g.Expect(onlyChecksDrift(o.stack, fromState)).To(BeTrue())
	g.Expect(onlyChecksDrift(o.stack, deployed)).To(BeFalse(), "nothing needs the program")
	g.Expect(destroyableFromState(o.stack)).To(BeTrue())
	o.stack.Status.ProjectInfo.NeedsProgram = true
	fromState.Spec.ProjectInfo.NeedsProgram = true
	g.Expect(onlyChecksDrift(o.stack, fromState)).To(BeTrue(), "the program is not there")
	g.Expect(onlyChecksDrift(o.stack, deployed)).To(BeTrue())
	g.Expect(onlyChecksDrift(o.stack, other)).To(BeFalse(), "somebody else made it")
	g.Expect(onlyChecksDrift(o.stack, elsewhere)).To(BeFalse())
	g.Expect(destroyableFromState(o.stack)).To(BeFalse())
	g.Expect(cannotDestroy(o.stack, "the source is gone")).To(ContainSubstring("the program has the provider"))
}
