package stack

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time {
	return metav1.NewTime(now.Add(-d))
}

// stored are the files of the artifact that the last attempt ran.
var stored = content{requested: true, stored: true, digest: "sha256:content"}

// upToDate is a Stack that was deployed a minute ago and whose inputs are the same as then.
func upToDate() *observation {
	return &observation{
		now:          now,
		waitInterval: 30 * time.Second,
		stack: &pulumiv1.Stack{
			Name: "app", Namespace: "team", UID: "1234", Generation: 2,
			Spec: pulumiv1.StackSpec{Stack: "dev"},
			Status: pulumiv1.StackStatus{
				Deployed: true,
				LastUpdate: &pulumiv1.StackUpdateStatus{
					Name: "app-1", Generation: 2, Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded,
					LastAttemptedCommit: "sha256:a", LastSuccessfulCommit: "sha256:a", LastResyncTime: ago(time.Minute),
				},
			},
		},
		artifact: &source.Artifact{Digest: "sha256:a", Revision: "main@sha1:a"},
		content:  stored,
	}
}

// failed is a Stack whose last attempts on the current inputs failed: so many of them, the last one the given time ago.
func failed(failures int64, since time.Duration) *observation {
	o := upToDate()
	o.stack.Status.LastUpdate.State = pulumiv1.StackUpdateFailed
	o.stack.Status.LastUpdate.Failures = failures
	o.stack.Status.LastUpdate.LastResyncTime = ago(since)
	return o
}

// interrupted is a Stack whose last attempts on the current inputs were interrupted: so many of them, the last one the given time ago.
func interrupted(interruptions int64, since time.Duration) *observation {
	o := failed(2, since)
	o.stack.Status.LastUpdate.Interruptions = interruptions
	return o
}

// deleting is an up-to-date Stack that is being deleted and has to destroy its resources.
func deleting() *observation {
	return with(upToDate(), toDestroy)
}

// updating is a Stack whose current Update has the given conditions.
func updating(conditions ...metav1.Condition) *observation {
	o := upToDate()
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Name: "app-2", Generation: 2, Commit: "sha256:a"}
	o.update = &autov1alpha1.Update{
		Name:   "app-2",
		Spec:   autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeUp, Source: &autov1alpha1.UpdateSource{Digest: "sha256:a"}},
		Status: autov1alpha1.UpdateStatus{Conditions: conditions},
	}
	return o
}

// destroying is a Stack that is being deleted and whose destroy has not started.
func destroying() *observation {
	o := with(updating(), toDestroy)
	o.update.Spec.Type = autov1alpha1.UpdateTypeDestroy
	return o
}

func with(o *observation, changes ...func(*observation)) *observation {
	for _, change := range changes {
		change(o)
	}
	return o
}

// The following functions are changes of a state, for use in tables.

// toDestroy is a Stack that is being deleted and has to destroy its resources.
func toDestroy(o *observation) {
	beingDeleted(o)
	o.stack.Spec.DestroyOnFinalize = true
}

func beingDeleted(o *observation)    { o.stack.DeletionTimestamp = &metav1.Time{Time: now} }
func leavesResources(o *observation) { o.stack.Spec.DestroyOnFinalize = false }
func suspended(o *observation)       { o.stack.Spec.Suspend = true }
func previewing(o *observation)      { o.stack.Spec.Preview = true }
func edited(o *observation)          { o.stack.Generation++ }
func neverUpdated(o *observation)    { o.stack.Status.LastUpdate = nil }
func lastDestroys(o *observation)    { o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypeDestroy }
func contentUnknown(o *observation)  { o.stack.Status.LastUpdate.ContentDigest = "" }
func newDigest(o *observation)       { o.artifact.Digest = "sha256:b" }
func running(o *observation)         { o.update.Status.StartTime = &metav1.Time{Time: now} }
func removed(o *observation)         { o.update.DeletionTimestamp = &metav1.Time{Time: now} }
func unverified(o *observation)      { waitsWith(o, pulumiv1.SourceNotVerifiedReason) }

// packed makes the Update one that waits for a commit with the digest sha256:a, while the commit is stored under another one.
func packed(digest string) func(*observation) {
	return func(o *observation) {
		waitsWith(o, pulumiv1.ArtifactDigestMismatchReason)
		git := &autov1alpha1.GitSource{Ref: "c"}
		o.update.Spec.Source.Git, o.stack.Status.CurrentUpdate.Commit = git, git.Ref
		o.artifact.Origin.Git, o.artifact.Digest = git, digest
	}
}

// waitsWith makes the Update one that waits because of the reason.
func waitsWith(o *observation, reason string) {
	conditions.MarkFalse(o.update, autov1alpha1.UpdateProgressing, reason, "why")
}

func workspaceFails(o *observation) {
	o.workspace = workspaceThat(failing(autov1alpha1.ImagePullFailedReason, "no such image"))
}

func agentIsUnreachable(o *observation) {
	o.workspace = workspaceThat(failing(autov1alpha1.ConnectionFailedReason, "connection refused"))
}

func resyncIsDue(o *observation) {
	o.stack.Spec.ContinueResyncOnCommitMatch = true
	o.stack.Status.LastUpdate.LastResyncTime = ago(time.Hour)
}

// requested asks for something with an annotation.
func requested(annotation string) func(*observation) {
	return func(o *observation) { o.stack.Annotations = map[string]string{annotation: "now"} }
}

func noSource(problem *source.Problem) func(*observation) {
	return func(o *observation) { o.artifact, o.sourceProblem = nil, problem }
}

// waitsFor is a Stack with a dependency that is not ready.
func waitsFor(reason string) func(*observation) {
	return func(o *observation) { o.dependency = &dependencyProblem{reason: reason, message: "x is not ready"} }
}

// complete is the condition of an Update that has ended.
var complete = metav1.Condition{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}

// decisionCase is a state and the decision that is expected for it.
type decisionCase struct {
	name   string
	given  *observation
	action action
	// kind is the type of the update. Empty stands for a destroy if the Stack is being deleted, and for an up otherwise.
	kind   autov1alpha1.UpdateType
	reason string
	// says are parts of the message.
	says         []string
	fresh, quiet bool
	// wake is what wakes the Stack. If it is empty, wakes says whether the decision has a time.
	wake  waker
	wakes bool
}

func expectDecisions(t *testing.T, cases []decisionCase) {
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			d := decide(*test.given)
			g.Expect(d.action).To(Equal(test.action))
			g.Expect(d.fresh).To(Equal(test.fresh))
			g.Expect(d.quiet).To(Equal(test.quiet))
			if test.reason != "" {
				g.Expect(d.reason).To(Equal(test.reason))
			}
			for _, text := range test.says {
				g.Expect(d.message).To(ContainSubstring(text))
			}
			switch {
			case d.action != actionUpdate:
				g.Expect(d.kind).To(BeEmpty())
			case test.kind != "":
				g.Expect(d.kind).To(Equal(test.kind))
			case !test.given.stack.DeletionTimestamp.IsZero():
				g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeDestroy))
			default:
				g.Expect(d.kind).To(Equal(autov1alpha1.UpdateTypeUp))
			}
			if test.wake != "" {
				g.Expect(d.wake).To(Equal(test.wake))
			} else {
				g.Expect(d.after > 0).To(Equal(test.wakes))
			}
		})
	}
}

func TestDecideChoosesOneActionForEveryState(t *testing.T) {
	expectDecisions(t, []decisionCase{
		{name: "a new Stack is deployed", given: with(upToDate(), neverUpdated), action: actionUpdate, fresh: true},
		{name: "a Stack that is up to date rests", given: upToDate(), action: actionReady},
		{name: "a new digest is deployed", given: with(upToDate(), newDigest), action: actionUpdate, fresh: true},
		{name: "a new revision of the same content is not", given: with(upToDate(), func(o *observation) { o.artifact.Revision = "main@sha1:b" }), action: actionReady},
		{name: "a new generation is deployed", given: with(upToDate(), edited), action: actionUpdate, fresh: true},
		{name: "a request in Pulumi's annotation is answered", given: with(upToDate(), requested(pulumiv1.ReconcileRequestAnnotation)), action: actionUpdate, fresh: true},
		{name: "a request in Flux's annotation is answered", given: with(upToDate(), requested(meta.ReconcileRequestAnnotation)), action: actionUpdate, fresh: true},
		{name: "a request is answered once", given: with(upToDate(), func(o *observation) {
			o.stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now", pulumiv1.ReconcileRequestAnnotation: "now"}
			o.stack.Status.LastHandledReconcileAt, o.stack.Status.ObservedReconcileRequest = "now", "now"
		}), action: actionReady},
		{name: "a preview Stack previews", given: with(upToDate(), neverUpdated, previewing), action: actionUpdate, kind: autov1alpha1.UpdateTypePreview, fresh: true},
		{name: "a resync that is not due waits for its time", given: with(upToDate(), func(o *observation) {
			o.stack.Spec.ContinueResyncOnCommitMatch = true
			o.stack.Spec.ResyncFrequencySeconds = 300
		}), action: actionReady, wakes: true},
		{name: "a resync that is due runs", given: with(upToDate(), resyncIsDue), action: actionUpdate},

		{name: "a changed Secret is deployed", given: using(upToDate(), "a-1", "a-2"), action: actionUpdate, fresh: true},
		{name: "one among several is enough", given: using(upToDate(), "a-1 b-1", "a-1 b-2"), action: actionUpdate, fresh: true},
		{name: "a Secret that appears beside others is deployed", given: using(upToDate(), "a-1", "a-1 b-1"), action: actionUpdate, fresh: true},
		{name: "a Secret that did not change is not", given: using(upToDate(), "a-1 b-1", "b-1 a-1"), action: actionReady},
		{name: "a Secret that is gone, or not watched any longer, changes nothing", given: using(upToDate(), "a-1 b-1", "b-1"), action: actionReady},
		{name: "nothing is watched any longer", given: using(upToDate(), "a-1", ""), action: actionReady},
		{name: "a Secret that was not watched before is no change", given: using(upToDate(), "", "a-1"), action: actionReady},
		{name: "a Stack whose Updates are previews previews", given: with(upToDate(), neverUpdated, func(o *observation) {
			o.stack.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypePreview}}
		}), action: actionUpdate, kind: autov1alpha1.UpdateTypePreview, fresh: true},
		{name: "a preview Stack previews a changed Secret", given: with(using(upToDate(), "a-1", "a-2"), previewing),
			action: actionUpdate, kind: autov1alpha1.UpdateTypePreview, fresh: true},
		{name: "a changed Secret does not wait for the backoff", given: using(failed(9, time.Second), "a-1", "a-2"), action: actionUpdate, fresh: true},
		{name: "a failure with the same Secret does", given: using(failed(1, time.Second), "a-1", "a-1"), action: actionRetry, reason: pulumiv1.RetryingAfterFailureReason, wakes: true},
		{name: "a changed Secret waits for the dependencies", given: with(using(upToDate(), "a-1", "a-2"), waitsFor(pulumiv1.PrerequisiteNotSatisfiedReason)),
			action: actionWait, reason: pulumiv1.PrerequisiteNotSatisfiedReason, wakes: true},
		{name: "a suspended Stack ignores a changed Secret", given: with(using(upToDate(), "a-1", "a-2"), suspended),
			action: actionSuspend, reason: pulumiv1.SuspendedReason},
		{name: "a waiting Update reads a changed Secret when it starts", given: using(updating(), "a-1", "a-2"), action: actionFollow},

		{name: "a failure is retried after a while", given: failed(1, time.Second), action: actionRetry, reason: pulumiv1.RetryingAfterFailureReason, wakes: true},
		{name: "a failure is retried when its time has come", given: failed(1, time.Minute), action: actionUpdate},
		{name: "many failures stall the Stack and attempts go on", given: failed(3, time.Second), action: actionRetry, reason: pulumiv1.UpdateFailedReason, wakes: true},
		{name: "a new commit does not wait for the backoff", given: with(failed(9, time.Second), newDigest), action: actionUpdate, fresh: true},

		{name: "an interruption is repeated at once", given: interrupted(1, 0), action: actionUpdate},
		{name: "an interruption does not wait for the retry interval", given: with(interrupted(1, 0), func(o *observation) {
			o.stack.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour}
		}), action: actionUpdate},
		{name: "the third interruption in a row is repeated at once", given: interrupted(3, 0), action: actionUpdate},
		{name: "more interruptions in a row wait", given: interrupted(4, time.Second), action: actionRetry, reason: pulumiv1.UpdateInterruptedReason, wakes: true},
		{name: "more interruptions in a row are repeated when their time has come", given: interrupted(4, 11*time.Second), action: actionUpdate},
		{name: "many interruptions in a row stall the Stack and attempts go on", given: interrupted(6, time.Second), action: actionRetry, reason: pulumiv1.UpdateFailedReason, wakes: true},
		{name: "an interrupted destroy is repeated at once", given: with(interrupted(1, 0), toDestroy, lastDestroys), action: actionUpdate},
		{name: "an interrupted up of a deleted Stack is followed by its destroy", given: with(interrupted(5, 0), toDestroy), action: actionUpdate, fresh: true},

		{name: "an unusable spec stalls", given: with(upToDate(), func(o *observation) { o.specProblem = errors.New("bad") }), action: actionStall, reason: pulumiv1.SpecInvalidReason},
		{name: "a missing source is waited for by time when nothing watches it", given: with(upToDate(), noSource(&source.Problem{Reason: pulumiv1.SourceKindNotInstalledReason})), action: actionWait, reason: pulumiv1.SourceKindNotInstalledReason, wakes: true},
		{name: "a missing source is waited for by its watch", given: with(upToDate(), noSource(&source.Problem{Reason: pulumiv1.SourceNotFoundReason, Watched: true})), action: actionWait, reason: pulumiv1.SourceNotFoundReason},
		{name: "a forbidden source stalls", given: with(upToDate(), noSource(&source.Problem{Reason: pulumiv1.AccessDeniedReason, Permanent: true})), action: actionStall, reason: pulumiv1.AccessDeniedReason},
		{name: "an unmet prerequisite does not matter to a Stack with nothing to do", given: with(upToDate(), waitsFor(pulumiv1.PrerequisiteNotSatisfiedReason)), action: actionReady},
		{name: "an unmet prerequisite is waited for", given: with(upToDate(), requested(pulumiv1.ReconcileRequestAnnotation), waitsFor(pulumiv1.PrerequisiteNotSatisfiedReason)),
			action: actionWait, reason: pulumiv1.PrerequisiteNotSatisfiedReason, wakes: true},
		{name: "a resync waits for an unmet prerequisite unnoticed", given: with(upToDate(), resyncIsDue, waitsFor(pulumiv1.PrerequisiteNotSatisfiedReason)),
			action: actionWait, reason: pulumiv1.PrerequisiteNotSatisfiedReason, quiet: true, wakes: true},
		{name: "a suspended Stack is left alone", given: with(upToDate(), suspended, newDigest), action: actionSuspend, reason: pulumiv1.SuspendedReason},

		{name: "a finished Update is recorded", given: updating(complete), action: actionRecord},
		{name: "a finished Update is recorded though the Stack is suspended", given: with(updating(complete), suspended), action: actionRecord},
		{name: "an Update that was removed before it ran is no result", given: with(updating(complete), removed), action: actionFollow},
		{name: "an Update that was removed while it ran is one", given: with(updating(complete), removed, running), action: actionRecord},
		{name: "a waiting Update is followed", given: updating(), action: actionFollow},
		{name: "a waiting Update makes room for a new digest", given: with(updating(), newDigest), action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "a waiting Update of another controller makes room", given: with(updating(), func(o *observation) { o.update.Spec.Source = nil }), action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "an Update that another controller left running does not", given: with(updating(metav1.Condition{Type: autov1alpha1.UpdateProgressing, Status: metav1.ConditionTrue}), func(o *observation) {
			o.update.Spec.Source = nil
		}), action: actionFollow},
		{name: "a waiting destroy makes room when its artifact is not known to be verified and there is another one", given: with(destroying(), unverified, newDigest),
			action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "so does an Update with a plan", given: with(updating(), unverified, newDigest, func(o *observation) {
			o.update.Spec.Plan = &autov1alpha1.PlanReference{Name: "app-plan", Digest: planDigest}
			o.stack.Status.Plan = &pulumiv1.PlanStatus{Commit: "sha256:b"}
		}), action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "an artifact that is not known to be verified is waited for when there is no other one", given: with(destroying(), unverified), action: actionFollow},
		{name: "a waiting Update makes room when its commit is packed anew", given: with(updating(), packed("sha256:b")), action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "so does a destroy", given: with(destroying(), packed("sha256:b")), action: actionSupersede, reason: pulumiv1.StackProcessingReason},
		{name: "an Update whose agent finds other bytes than were sent waits", given: with(updating(), packed("sha256:a")), action: actionFollow},
		{name: "so does one whose commit is not packed yet", given: with(updating(), packed("")), action: actionFollow},
		{name: "a running Update does not", given: with(updating(), newDigest, running), action: actionFollow},
		{name: "a waiting Update with a plan that the status lost is followed", given: with(updating(), func(o *observation) {
			o.update.Spec.Plan = &autov1alpha1.PlanReference{Name: "app-plan", Digest: planDigest}
		}), action: actionFollow},
		{name: "a waiting destroy is followed", given: destroying(), action: actionFollow},
		{name: "a running destroy in a failed Workspace is waited for", given: with(destroying(), running, workspaceFails), action: actionFollow},
		{name: "a running destroy in a failed Workspace is given up when the resources may stay", given: with(destroying(), orphaned, running, workspaceFails), action: actionRelease},
		{name: "a running up whose agent cannot be reached is waited for", given: with(updating(), beingDeleted, leavesResources, running, agentIsUnreachable), action: actionFollow},
		{name: "a running up whose agent refuses the controller is waited for", given: with(updating(), beingDeleted, leavesResources, running, func(o *observation) {
			o.workspace = workspaceThat(failing(autov1alpha1.UnauthenticatedReason, "the token is refused"))
		}), action: actionFollow},
		{name: "a running up whose agent may not be called is waited for", given: with(updating(), beingDeleted, leavesResources, running, func(o *observation) {
			o.workspace = workspaceThat(failing(autov1alpha1.PermissionDeniedReason, "the controller may not call the agent"))
		}), action: actionFollow},
		{name: "a running up whose agent cannot be reached is given up on request", given: with(updating(), beingDeleted, orphaned, running, agentIsUnreachable), action: actionRelease},
		{name: "a waiting up whose agent cannot be reached is given up", given: with(updating(), beingDeleted, leavesResources, agentIsUnreachable), action: actionRelease},
		{name: "an Update is followed while the source is away", given: with(updating(), noSource(&source.Problem{Reason: "x"})), action: actionFollow},

		{name: "a deleted Stack is destroyed", given: deleting(), action: actionUpdate, fresh: true},
		{name: "a deleted Stack that shall not be destroyed goes", given: with(deleting(), leavesResources), action: actionRelease},
		{name: "a deleted Stack that deployed nothing goes", given: with(deleting(), func(o *observation) { o.stack.Status = pulumiv1.StackStatus{} }), action: actionRelease},
		{name: "a destroyed Stack goes", given: with(deleting(), func(o *observation) {
			o.stack.Status.LastUpdate.Type = autov1alpha1.UpdateTypeDestroy
			o.stack.Status.Deployed = false
		}), action: actionRelease},
		{name: "an orphaned Stack goes", given: with(deleting(), orphaned), action: actionRelease},
		{name: "a Stack whose objects are in another shard only takes them over", given: with(following("1"), edited, func(o *observation) { o.moving = true }), action: actionTakeOver, wakes: true},
		{name: "a deleted one does so, too", given: with(deleting(), func(o *observation) { o.moving = true }), action: actionTakeOver, wakes: true},
		{name: "a failed destroy is retried for ever", given: with(failed(30, 48*time.Hour), toDestroy, lastDestroys), action: actionUpdate},
	})
}

func TestBackoffGrowsToItsLimitAndNoFurther(t *testing.T) {
	g := NewWithT(t)
	for failures, wait := range map[int64]time.Duration{0: 10 * time.Second, 1: 10 * time.Second, 2: 30 * time.Second, 4: 270 * time.Second, 1000: time.Hour} {
		g.Expect(failureBackoff(failures, time.Hour)).To(Equal(wait), "%d failures", failures)
	}
	longest := lengthened(time.Hour, 0.05, upToDate().stack)
	g.Expect(longest).To(And(BeNumerically(">", time.Hour), BeNumerically("<=", time.Hour+3*time.Minute)))
	g.Expect(lengthened(time.Hour, 0.05, upToDate().stack)).To(Equal(longest), "a restart does not move it")
}

func TestInterruptionsInARowWaitAfterTheThird(t *testing.T) {
	g := NewWithT(t)
	for interruptions, wait := range map[int64]time.Duration{1: 0, 3: 0, 4: 10 * time.Second, 5: 30 * time.Second, 1000: time.Hour} {
		g.Expect(interruptionBackoff(interruptions, time.Hour)).To(Equal(wait), "%d in a row", interruptions)
	}
}

func TestOnlyOneUpdateCanFollowTheLast(t *testing.T) {
	g := NewWithT(t)
	name := updateName(upToDate().stack)
	g.Expect(name).To(MatchRegexp(`^app-[0-9a-f]{10}$`))
	edited := with(upToDate(), edited)
	g.Expect(updateName(edited.stack)).To(Equal(name))
	for _, other := range []*observation{
		with(upToDate(), func(o *observation) { o.stack.Status.LastUpdate.Name = "app-2" }),
		with(upToDate(), neverUpdated),
		with(upToDate(), func(o *observation) { o.stack.UID = "5678" }),
	} {
		g.Expect(updateName(other.stack)).NotTo(Equal(name))
	}
}

func TestDecisionIsLoggedWithItsWaker(t *testing.T) {
	logged := ""
	log := funcr.New(func(_, line string) { logged = line }, funcr.Options{})
	log.Info("decided", decide(*failed(1, time.Second)).keysAndValues()...)
	NewWithT(t).Expect(logged).To(And(ContainSubstring(`"action"="retry"`), ContainSubstring(`"waker"="time"`), ContainSubstring(`"after"="`)))
}
