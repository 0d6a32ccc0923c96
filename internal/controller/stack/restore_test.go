package stack

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestAnnotationRestoresWhatALostStatusSaid(t *testing.T) {
	up := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded}
	preview := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypePreview, State: pulumiv1.StackUpdateSucceeded}
	destroyed := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeDestroy, State: pulumiv1.StackUpdateSucceeded}
	notDestroyed := &pulumiv1.StackUpdateStatus{Type: autov1alpha1.UpdateTypeDestroy, State: pulumiv1.StackUpdateFailed}
	for _, test := range []struct {
		name     string
		marked   bool
		status   pulumiv1.StackStatus
		deployed bool
		stack    string
		proof    bool
	}{
		{name: "a new Stack", proof: true},
		{name: "a status that is lost", marked: true, deployed: true, stack: "dev"},
		{name: "a status that lost what is deployed", marked: true, status: pulumiv1.StackStatus{LastUpdate: preview}, deployed: true, stack: "dev"},
		{name: "a status that says it", marked: true, status: pulumiv1.StackStatus{LastUpdate: up, Deployed: true, DeployedStack: "prod"}, deployed: true, stack: "prod"},
		{name: "one that was destroyed", marked: true, status: pulumiv1.StackStatus{LastUpdate: destroyed}, proof: true},
		{name: "one that was not quite", marked: true, status: pulumiv1.StackStatus{LastUpdate: notDestroyed}, deployed: true, stack: "dev"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			stack := deleting().stack
			stack.Status = test.status
			if test.marked {
				stack.Annotations = map[string]string{pulumiv1.DeployedStackAnnotation: "dev"}
			}
			restoreDeployed(stack)
			g.Expect(stack.Status.Deployed).To(Equal(test.deployed))
			g.Expect(stack.Status.DeployedStack).To(Equal(test.stack))
			g.Expect(nothingToDestroy(stack) != "").To(Equal(test.proof))
		})
	}
}

// former is an up-to-date Stack as the Pulumi Kubernetes Operator leaves it, with the commit that the operator recorded.
func former(commit string) *observation {
	o := upToDate()
	o.stack.Spec.FluxSource = &pulumiv1.FluxSource{}
	o.stack.Status.Deployed = false
	o.stack.Status.LastUpdate.LastAttemptedCommit, o.stack.Status.LastUpdate.LastSuccessfulCommit = commit, commit
	return o
}

// adopt does with the status what repair does when nothing is known of Updates.
func adopt(o *observation) {
	restoreStatus(o)
	adoptOperatorStatus(o)
}

// TestStackOfTheFormerControllerIsDestroyedAlthoughItsSourceIsGone: what the operator has deployed counts before its source is known.
func TestStackOfTheFormerControllerIsDestroyedAlthoughItsSourceIsGone(t *testing.T) {
	failed := func(o *observation) { o.stack.Status.LastUpdate.State = pulumiv1.StackUpdateFailed }
	unrecorded := func(o *observation) {
		o.stack.Status.LastUpdate = nil
		o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-x"}
	}
	for name, left := range map[string]func(*observation){
		"its last update failed": failed,
		"its update goes on":     unrecorded,
		"its update is gone":     func(o *observation) { unrecorded(o); o.updateRemoved = true },
		"the result of its failure": func(o *observation) {
			failed(o)
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-x"}
			o.updateRemoved = true
		},
	} {
		for source, observed := range map[string]func() *observation{
			"git": func() *observation {
				o := following("1")
				o.stack.Status.Deployed, o.stack.Status.History = false, nil
				awaitingGitServer(o)
				return o
			},
			"Flux": func() *observation {
				o := former("1")
				o.artifact = nil
				return o
			},
		} {
			t.Run(name+", "+source, func(t *testing.T) {
				g := NewWithT(t)
				o := observed()
				o.stack.Spec.DestroyOnFinalize, o.stack.DeletionTimestamp = true, new(metav1.Now())
				left(o)
				adopt(o)
				g.Expect(nothingToDestroy(o.stack)).To(BeEmpty())
				g.Expect(decide(*o).action).NotTo(Equal(actionRelease))
			})
		}
	}
	g := NewWithT(t)
	o := former("1")
	o.stack.Status.CurrentUpdate, o.stack.Status.LastUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-x"}, nil
	o.update = &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypePreview}}
	adopt(o)
	g.Expect(o.stack.Status.Deployed).To(BeFalse(), "a preview deploys nothing")
}

func TestStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	for name, commit := range map[string]string{"revision": "main@sha1:a", "digest": "sha256:a"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := former(commit)
			o.stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
			adopt(o)
			g.Expect(decide(*o).action).To(Equal(actionReady))
			g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("sha256:a"))
			g.Expect(o.stack.Status.LastUpdate.Revision).To(Equal("main@sha1:a"))
			g.Expect(o.stack.Status.Deployed).To(BeTrue())
			g.Expect(o.stack.Status.History).To(HaveLen(1))

			// From now on the Stack is like any other.
			o.stack.Annotations[meta.ReconcileRequestAnnotation] = "now"
			adopt(o)
			g.Expect(decide(*o).action).To(Equal(actionUpdate))
		})
	}
}

func TestGitStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	g := NewWithT(t)
	o := following("1")
	o.stack.Status.Deployed = false
	o.stack.Status.LastUpdate.Revision, o.stack.Status.LastUpdate.ContentDigest = "", ""
	awaitingGitServer(o)
	adopt(o)
	g.Expect(o.stack.Status.History).To(BeEmpty(), "it is not adopted before its repository was looked at")
	g.Expect(decide(*o).quiet).To(BeTrue())

	o.artifact, o.sourceProblem = commit("1"), nil
	adopt(o)
	g.Expect(decide(*o).action).To(Equal(actionReady))
	g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("1"))
	g.Expect(o.stack.Status.LastUpdate.Revision).To(Equal("main@sha1:1"))
	g.Expect(o.stack.Status.Deployed).To(BeTrue())

	o.artifact = commit("2")
	adopt(o)
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
}

func TestProgramStackOfTheFormerControllerIsNotUpdatedForThat(t *testing.T) {
	g := NewWithT(t)
	o := former("1") // the generation of the Program
	o.stack.Spec.FluxSource, o.stack.Spec.ProgramRef = nil, &pulumiv1.ProgramReference{Name: "app"}
	o.artifact.Origin.Program, o.artifact.Revision = &autov1alpha1.ProgramSource{Name: "app"}, "1"
	adopt(o)
	g.Expect(decide(*o).action).To(Equal(actionReady))
	g.Expect(o.stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal("sha256:a"))
}

// statusOf1x is a status that the Pulumi Kubernetes Operator wrote before 2.0. It contains neither the generation nor the type of the
// operation.
const statusOf1x = `{
	"observedGeneration": 1,
	"conditions": [{"type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "the stack has been processed and is up to date",
		"lastTransitionTime": "2023-03-01T10:00:00Z"}],
	"lastUpdate": {"state": "succeeded", "lastAttemptedCommit": "1", "lastSuccessfulCommit": "1", "lastResyncTime": "2023-03-01T10:00:00Z",
		"permalink": "https://app.pulumi.com/acme/app/dev/updates/7"},
	"outputs": {"address": "10.0.0.1", "token": "[secret]"}
}`

func TestStackOfVersion1OfTheFormerControllerIsUpdatedOnceAndDestroyed(t *testing.T) {
	g := NewWithT(t)
	o := following("1")
	o.artifact, o.sourceProblem = commit("1"), nil
	o.stack.Status = pulumiv1.StackStatus{}
	g.Expect(json.Unmarshal([]byte(statusOf1x), &o.stack.Status)).To(Succeed())
	adopt(o)
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeUp))
	g.Expect(o.stack.Status.Deployed).To(BeTrue())
	g.Expect(o.stack.Status.Outputs).To(HaveLen(2), "they stay until the update has others")

	toDestroy(o)
	d = decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeDestroy))
}

func TestStackOfTheFormerControllerFollowsItsSource(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:old")
	adopt(o)
	d := decide(*o)
	g.Expect(d.action).To(Equal(actionUpdate))
	g.Expect(d.fresh).To(BeTrue())
}

func TestStackOfTheFormerControllerIsNotAdoptedBeforeItsSourceIsKnown(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:a")
	o.artifact = nil
	adopt(o)
	g.Expect(o.stack.Status.History).To(BeEmpty())
}

func TestPreviewOfTheFormerControllerNeverDestroys(t *testing.T) {
	g := NewWithT(t)
	o := former("main@sha1:a")
	o.stack.Spec.Preview, o.stack.Spec.DestroyOnFinalize = true, true
	o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview
	adopt(o)
	g.Expect(nothingToDestroy(o.stack)).NotTo(BeEmpty())

	o = former("main@sha1:a")
	o.stack.Spec.DestroyOnFinalize = true
	adopt(o)
	g.Expect(nothingToDestroy(o.stack)).To(BeEmpty())
}

func TestConditionsOfTwoControllersBecomeThoseOfOne(t *testing.T) {
	for name, tt := range map[string]struct {
		reconciling, stalled time.Duration
		kept                 string
	}{
		"stalled last":     {reconciling: time.Hour, stalled: time.Minute, kept: meta.StalledCondition},
		"reconciling last": {reconciling: time.Minute, stalled: time.Hour, kept: meta.ReconcilingCondition},
		"at the same time": {reconciling: time.Minute, stalled: time.Minute, kept: meta.StalledCondition},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := &pulumiv1.Stack{}
			stack.Status.Conditions = []metav1.Condition{
				{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, LastTransitionTime: ago(time.Hour)},
				{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, LastTransitionTime: ago(tt.reconciling)},
				{Type: meta.StalledCondition, Status: metav1.ConditionTrue, LastTransitionTime: ago(tt.stalled)},
			}
			keepLaterCondition(stack)
			g.Expect(stack.Status.Conditions).To(ConsistOf(HaveField("Type", meta.ReadyCondition), HaveField("Type", tt.kept)))
		})
	}
}

// formerFailure is the message that the Pulumi Kubernetes Operator records for a failed update: more than 100 KB, with colours, and with
// the reason at the end.
var formerFailure = "failed to run update: exit status 255\ncode: 255\nstdout: Updating (dev):\n" +
	strings.Repeat("\x1b[0m\x1b[38;5;13m+  aws:s3:Bucket bücket \x1b[1mcreating\x1b[0m\r\n", 2000) +
	"Diagnostics:\n  \x1b[1maws:s3:Bucket (logs):\x1b[0m\n    \x1b[38;5;9merror: \x1b[0mBucketAlreadyExists: the bucket is somebody else's\n\n" +
	"Resources:\n    + 2 created\n\nstderr: \n"

func TestMessageOfTheFormerControllerKeepsTheError(t *testing.T) {
	g := NewWithT(t)
	g.Expect(len(formerFailure)).To(BeNumerically(">", 100_000))
	message := readableMessage(formerFailure)
	g.Expect(message).To(HavePrefix("failed to run update: exit status 255; …; "))
	g.Expect(message).To(HaveSuffix("error: BucketAlreadyExists: the bucket is somebody else's; Resources:; + 2 created; stderr:"))
	g.Expect(len(message)).To(BeNumerically("<=", maxMessage))

	// What follows the error may be long, too.
	message = readableMessage(formerFailure + strings.Repeat("more output\n", 2000))
	g.Expect(message).To(HavePrefix("failed to run update: exit status 255; …; error: BucketAlreadyExists"))
	g.Expect(len(message)).To(BeNumerically("<=", maxMessage))
	g.Expect(readableMessage(" short,\n\n \x1b[31mand red\x1b[0m ")).To(Equal("short,; and red"))
	g.Expect(readableMessage("")).To(BeEmpty())
}

func FuzzReadableMessage(f *testing.F) {
	f.Add(formerFailure[len(formerFailure)-9000:])
	f.Add(strings.Repeat("é; ", 3000))
	f.Fuzz(func(t *testing.T, text string) {
		message := readableMessage(text)
		if len(message) > maxMessage || !utf8.ValidString(message) || strings.ContainsAny(message, "\n\r\x1b") {
			t.Errorf("%q", message)
		}
		if again := readableMessage(message); again != message {
			t.Errorf("%q becomes %q", message, again)
		}
	})
}

func TestConditionsOfAFailedStackOfTheFormerControllerSayWhy(t *testing.T) {
	for name, failures := range map[string]int64{"retrying": 1, "stalled": 3} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := former("main@sha1:a")
			last := o.stack.Status.LastUpdate
			last.State, last.Message, last.Failures, last.LastResyncTime.Time = pulumiv1.StackUpdateFailed, formerFailure, failures, o.now
			adopt(o)
			d := decide(*o)
			g.Expect(d.action).To(Equal(actionRetry))
			retry(o, d)
			shown := []string{meta.ReadyCondition}
			if failures >= stalledAfterFailures {
				shown = append(shown, meta.StalledCondition)
			}
			for _, condition := range shown {
				message := conditions.GetMessage(o.stack, condition)
				g.Expect(message).To(ContainSubstring("error: BucketAlreadyExists: the bucket is somebody else's"))
				g.Expect(message).NotTo(ContainSubstring("\x1b"))
				g.Expect(len(message)).To(BeNumerically("<", 2*maxMessage))
			}
		})
	}
}

func TestStatusOfAStackThatMovesIsNotRepaired(t *testing.T) {
	g := NewWithT(t)
	o := with(updating(), func(o *observation) { o.update, o.updateRemoved = nil, true })
	before := o.stack.DeepCopy()
	repair(o)
	g.Expect(o.stack).To(Equal(before), "its Updates were not read")
	o.readUpdates = true
	repair(o)
	g.Expect(o.stack.Status.CurrentUpdate).To(BeNil())
}
