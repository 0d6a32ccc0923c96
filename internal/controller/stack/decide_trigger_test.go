package stack

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// commit is what a git source offers before the commit is checked out.
func commit(sha string) *source.Artifact {
	return &source.Artifact{
		Revision: "main@sha1:" + sha,
		Origin:   autov1alpha1.UpdateSource{Git: &autov1alpha1.GitSource{URL: "https://git.example/x", Ref: sha}},
	}
}

// following is a Stack that runs commit "1" of a git repository. The branch is at the given commit.
func following(sha string) *observation {
	o := upToDate()
	o.artifact = commit(sha)
	if sha != "1" {
		o.content = content{}
	}
	o.stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: "https://git.example/x", Branch: "main"}
	last := o.stack.Status.LastUpdate
	last.LastAttemptedCommit, last.LastSuccessfulCommit, last.Revision, last.ContentDigest = "1", "1", "main@sha1:1", "sha256:same"
	return o
}

// followingFailed is the same Stack after failed attempts: so many of them, the last one the given time ago.
func followingFailed(sha string, failures int64, since time.Duration) *observation {
	o := following(sha)
	last := o.stack.Status.LastUpdate
	last.State, last.Failures, last.LastResyncTime, last.LastSuccessfulCommit = pulumiv1.StackUpdateFailed, failures, ago(since), "0"
	return o
}

func TestOnlyNewContentRunsAnUpdate(t *testing.T) {
	looked := func(digest string) func(*observation) {
		return func(o *observation) { o.content = content{requested: true, stored: true, digest: digest} }
	}
	onRevision := func(o *observation) { o.stack.Spec.UpdateOn = pulumiv1.UpdateOnRevision }
	expectDecisions(t, []decisionCase{
		{name: "the same commit rests", given: following("1"), action: actionReady},
		{name: "the same commit rests though its content was not recorded", given: with(following("1"), contentUnknown), action: actionReady},
		{name: "a new commit is looked into before anything is shown", given: following("2"), action: actionFetch, quiet: true},
		{name: "a new commit with the same content rests", given: with(following("2"), looked("sha256:same")), action: actionReady},
		{name: "a new commit with other content is deployed", given: with(following("2"), looked("sha256:other")), action: actionUpdate, fresh: true},
		{name: "a new commit is deployed when the content of the last one was not recorded", given: with(following("2"), looked("sha256:other"), contentUnknown), action: actionUpdate, fresh: true},
		{name: "a commit that cannot be checked out is a problem", given: with(following("2"), func(o *observation) {
			o.content.problem = &source.Problem{Reason: pulumiv1.LFSPointersReason, Watched: true}
		}), action: actionWait, reason: pulumiv1.LFSPointersReason, wakes: true},
		{name: "an artifact that cannot be fetched is a problem", given: with(following("2"), func(o *observation) {
			o.content.problem = errors.New("no route")
		}), action: actionWait, reason: pulumiv1.ArtifactFetchFailedReason, wakes: true},
		{name: "paths that take too long to be matched stall", given: with(following("2"), func(o *observation) {
			o.content.problem = fmt.Errorf("spec.sourcePaths: %w", artifact.ErrSelectionTooComplex)
		}), action: actionStall, reason: pulumiv1.SpecInvalidReason},
		{name: "a new digest with the same selected content rests", given: with(upToDate(), func(o *observation) {
			o.stack.Status.LastUpdate.ContentDigest, o.artifact.Digest, o.content.digest = "sha256:same", "sha256:b", "sha256:same"
		}), action: actionReady},

		{name: "every commit is deployed when the spec says so", given: with(following("2"), onRevision, looked("sha256:other")), action: actionUpdate, fresh: true},
		{name: "the same commit is not", given: with(following("1"), onRevision), action: actionReady},
		{name: "every revision of the same artifact is deployed when the spec says so", given: with(upToDate(), func(o *observation) {
			onRevision(o)
			o.stack.Status.LastUpdate.Revision, o.artifact.Revision = "main@sha1:a", "main@sha1:b"
		}), action: actionUpdate, fresh: true},
		{name: "a revision that was not recorded is not a new one", given: with(upToDate(), onRevision), action: actionReady},

		{name: "the same content does not hurry a retry", given: with(followingFailed("2", 2, time.Second), looked("sha256:same")),
			action: actionRetry, reason: pulumiv1.RetryingAfterFailureReason, wakes: true},
		{name: "the same content does not hold up a retry", given: with(followingFailed("2", 2, time.Hour), looked("sha256:same")), action: actionUpdate},
		{name: "other content is tried at once", given: with(followingFailed("2", 2, time.Second), looked("sha256:other")), action: actionUpdate, fresh: true},
		{name: "a failed Stack stays as it is while a new commit is looked into", given: followingFailed("2", 3, time.Second), action: actionFetch, quiet: true},

		{name: "an update waits for its files", given: with(following("2"), onRevision), action: actionFetch},
		{name: "an update waits until its files were read", given: with(following("2"), onRevision, looked("")), action: actionFetch},
		{name: "an update whose files were published just now is not shown as waiting", given: with(following("2"), onRevision, func(o *observation) {
			o.artifact.Published = now.Add(-time.Second)
		}), action: actionFetch, quiet: true, wakes: true},
		{name: "a problem with the files stays in the status while they are fetched once more", given: with(following("2"), onRevision, func(o *observation) {
			markWaiting(o.stack, pulumiv1.ArtifactFetchFailedReason, "no route")
		}), action: actionFetch, quiet: true},
		{name: "a problem of an earlier generation does not", given: with(following("2"), onRevision, func(o *observation) {
			markWaiting(o.stack, pulumiv1.ArtifactFetchFailedReason, "no route")
			o.stack.Generation++
		}), action: actionFetch},
		{name: "a periodic update is not shown as waiting", given: with(following("1"), looked(""), resyncIsDue), action: actionFetch, quiet: true},
		{name: "a new generation is deployed with the same content", given: with(following("2"), looked("sha256:same"), edited), action: actionUpdate, fresh: true},
		{name: "a request is answered with the same content", given: with(following("2"), looked("sha256:same"), requested(meta.ReconcileRequestAnnotation)), action: actionUpdate, fresh: true},
		{name: "a resync that is due runs with the same content", given: with(following("2"), looked("sha256:same"), resyncIsDue), action: actionUpdate},
		{name: "a dependency does not matter before a new commit is looked into", given: with(following("2"), waitsFor(pulumiv1.PrerequisiteNotSatisfiedReason)), action: actionFetch, quiet: true, wake: byFetch},
		{name: "a dependency that is not allowed stalls", given: with(following("1"), func(o *observation) {
			o.dependency = &dependencyProblem{reason: pulumiv1.AccessDeniedReason, message: "in another namespace", permanent: true}
		}), action: actionStall, reason: pulumiv1.AccessDeniedReason},

		{name: "the first look at a repository shows nothing on a Stack that was deployed", given: awaitingGitServer(following("1")), action: actionFetch, quiet: true},
		{name: "the first look of a new Stack is shown", given: with(awaitingGitServer(following("1")), neverUpdated), action: actionFetch},
		{name: "the look that somebody asked for is shown", given: with(awaitingGitServer(following("1")), requested(pulumiv1.ReconcileRequestAnnotation)), action: actionFetch},
		{name: "a deleted Stack whose repository is being looked at waits for that", given: with(awaitingGitServer(following("1")), toDestroy), action: actionFetch},
	})
}

func TestRequestOfAStalledStackIsStillToCome(t *testing.T) {
	for name, problem := range map[string]func(*observation){
		"a spec that is taken back": func(o *observation) { o.specProblem = errors.New("bad") },
		"a kind that is allowed later": func(o *observation) {
			o.dependency = &dependencyProblem{reason: pulumiv1.AccessDeniedReason, permanent: true}
		},
		"outputs that are not shared": func(o *observation) {
			o.dependency = &dependencyProblem{reason: pulumiv1.AccessDeniedReason, foreign: true}
		},
		"a cycle": func(o *observation) {
			o.dependency = &dependencyProblem{reason: pulumiv1.DependencyCycleReason, permanent: true}
		},
		"a source that is allowed later": noSource(&source.Problem{Reason: pulumiv1.AccessDeniedReason, Permanent: true}),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ask := requested(meta.ReconcileRequestAnnotation)
			o := with(upToDate(), ask, problem)
			d := decide(*o)
			g.Expect(d.action).To(Equal(actionStall))
			(&Reconciler{}).stall(o.stack, d)
			later := with(upToDate(), ask)
			later.stack.Status = o.stack.Status
			g.Expect(decide(*later).action).To(Equal(actionUpdate))
		})
	}
}

// awaitingGitServer is the Stack before its git server has answered for the first time.
func awaitingGitServer(o *observation) *observation {
	o.artifact, o.sourceProblem = nil, &source.Problem{Pending: true, Watched: true, Reason: pulumiv1.SourceNotReadyReason}
	return o
}

func TestStatusFollowsARevisionWithTheSameContent(t *testing.T) {
	g := NewWithT(t)
	o := with(following("2"), func(o *observation) { o.content = content{requested: true, stored: true, digest: "sha256:same"} })
	_, err := (&Reconciler{}).showReady(t.Context(), o, decide(*o))
	g.Expect(err).NotTo(HaveOccurred())
	status := o.stack.Status
	g.Expect(status.LastAttemptedRevision).To(Equal("main@sha1:2"))
	g.Expect(status.LastAppliedRevision).To(Equal("main@sha1:2"))
	g.Expect(status.LastUpdate.LastAttemptedCommit).To(Equal("2"))
	g.Expect(status.LastUpdate.LastSuccessfulCommit).To(Equal("2"))
	g.Expect(status.LastUpdate.Revision).To(Equal("main@sha1:1"), "that of the operation")
	g.Expect(status.Conditions).To(ContainElement(HaveField("Message", HaveSuffix("applied revision main@sha1:2"))))
	g.Expect(decide(*following("2")).action).NotTo(Equal(actionReady))
	o.content = content{}
	g.Expect(decide(*o).action).To(Equal(actionReady), "it is not looked into again")
}

func TestStatusOfAFailureDoesNotClaimThatTheRevisionIsApplied(t *testing.T) {
	g := NewWithT(t)
	o := with(followingFailed("2", 1, time.Second), func(o *observation) { o.content = content{requested: true, stored: true, digest: "sha256:same"} })
	retry(o, decide(*o))
	status := o.stack.Status
	g.Expect(status.LastAttemptedRevision).To(Equal("main@sha1:2"))
	g.Expect(status.LastUpdate.LastAttemptedCommit).To(Equal("2"))
	g.Expect(status.LastUpdate.LastSuccessfulCommit).To(Equal("0"))
	g.Expect(status.LastAppliedRevision).To(BeEmpty())
	g.Expect(status.LastUpdate.Failures).To(BeEquivalentTo(1))
}

func TestUpdateCarriesTheCommit(t *testing.T) {
	g := NewWithT(t)
	o := following("2")
	o.desired = &desired{dir: "app"}
	o.artifact.Digest = "sha256:made"
	o.artifact.Origin.Commit = &autov1alpha1.CommitInfo{SHA: "2", Message: "Widen the zone"}
	d := decision{kind: autov1alpha1.UpdateTypeUp, message: "New commit detected: main@sha1:2"}
	spec := updateSpec(o, d)
	g.Expect(spec.Source).To(Equal(&autov1alpha1.UpdateSource{
		Git:    &autov1alpha1.GitSource{URL: "https://git.example/x", Ref: "2"},
		Digest: "sha256:made", Revision: "main@sha1:2", Dir: "app", Commit: o.artifact.Origin.Commit,
	}))
	g.Expect(spec.Message).To(HaveValue(Equal("New commit detected: main@sha1:2: Widen the zone")))
	current := currentOf(&autov1alpha1.Update{
		Annotations: map[string]string{pulumiv1.ContentDigestAnnotation: "sha256:c"}, Spec: spec,
	})
	g.Expect(current.Commit).To(Equal("2"))
	g.Expect(current.ContentDigest).To(Equal("sha256:c"))

	o.stack.Status.LastUpdate.LastAttemptedCommit = "2"
	d.message = "Resync time elapsed"
	g.Expect(updateSpec(o, d).Message).To(HaveValue(Equal("Resync time elapsed")), "the commit is told once")
}

func TestUpdateNamesTheProgram(t *testing.T) {
	g := NewWithT(t)
	o := upToDate()
	o.desired = &desired{}
	o.artifact.Origin.Program = &autov1alpha1.ProgramSource{Name: "app"}
	o.artifact.URL = "https://not.used/x"
	from := updateSpec(o, decision{kind: autov1alpha1.UpdateTypeUp}).Source
	g.Expect(from.Program.Name).To(Equal("app"))
	g.Expect(from.URL).To(BeEmpty())
	g.Expect(from.Digest).To(Equal("sha256:a"))
}

func TestGitServerIsNotAskedForNothing(t *testing.T) {
	for name, test := range map[string]struct {
		stack *observation
		asked bool
	}{
		"a Stack that follows a branch":                            {following("1"), true},
		"a suspended one":                                          {with(following("1"), suspended), false},
		"one to destroy of whose project nothing is known":         {with(following("1"), toDestroy), true},
		"one to destroy from its state":                            {with(following("1"), toDestroy, knownProject), false},
		"one to destroy with its program":                          {with(following("1"), toDestroy, knownProject, func(o *observation) { o.stack.Spec.RunProgram = true }), true},
		"a deleted one whose resources stay":                       {with(following("1"), toDestroy, leavesResources), false},
		"one without source":                                       {upToDate(), false},
		"a suspended one of another kind of source, which is free": {with(former("x"), suspended), true},
	} {
		NewWithT(t).Expect(needsSource(test.stack.stack)).To(Equal(test.asked), name)
	}
}

func TestDependencyInAnotherNamespaceNeedsPermission(t *testing.T) {
	g := NewWithT(t)
	o := upToDate()
	o.stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "base", Namespace: "other"}}
	g.Expect((&Reconciler{}).observeDependencies(t.Context(), o)).To(Succeed())
	g.Expect(o.dependency.message).To(ContainSubstring("other/base"))
	g.Expect(decide(*o).action).To(Equal(actionStall))
	g.Expect(decide(*o).reason).To(Equal(pulumiv1.AccessDeniedReason))
}

func TestFailureThatNeedsAManualFixStallsAtOnceAndIsNotRetriedSoon(t *testing.T) {
	for reason, shown := range map[string]string{
		autov1alpha1.StateUpgradeRequiredReason: pulumiv1.StateUpgradeRequiredReason,
		autov1alpha1.PolicyViolationReason:      pulumiv1.PolicyViolationReason,
	} {
		for name, change := range map[string]func(*pulumiv1.Stack){
			"by default":            func(*pulumiv1.Stack) {},
			"with a fixed interval": func(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Second} },
			"after other failures":  func(s *pulumiv1.Stack) { s.Status.LastUpdate.Failures = stalledAfterFailures },
			"of a preview":          func(s *pulumiv1.Stack) { s.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview },
		} {
			t.Run(reason+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				o := failed(0, time.Hour)
				o.stack.Status.LastUpdate.Reason = reason
				change(o.stack)
				d := decide(*o)
				g.Expect(d.action).To(Equal(actionRetry))
				g.Expect(d.reason).To(Equal(shown))
				g.Expect(d.stalls).To(BeTrue())
				g.Expect(d.after).To(BeNumerically(">", 22*time.Hour))
				g.Expect(d.message).NotTo(ContainSubstring("attempt 0"))

				o.stack.Generation++
				g.Expect(decide(*o).action).To(Equal(actionUpdate), "an edit counts")
				o.stack.Generation--
				o.now = o.now.Add(30 * time.Hour)
				g.Expect(decide(*o).action).To(Equal(actionUpdate))
			})
		}
	}
}

func TestFailureThatNeedsAManualFixIsNotCounted(t *testing.T) {
	for reason := range manualFixes {
		update := &autov1alpha1.Update{}
		conditions.MarkTrue(update, autov1alpha1.UpdateFailed, reason, "why")
		last := &pulumiv1.StackUpdateStatus{}
		recordFailure(last, &pulumiv1.StackUpdateStatus{Failures: 2}, &pulumiv1.Stack{}, update)
		NewWithT(t).Expect(last.Failures).To(BeEquivalentTo(2), reason)
	}
}

func TestResourcesThatTakeLongAreWaitedForAndAreNoFailure(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*pulumiv1.Stack)
		after  time.Duration
	}{
		"by default":            {func(*pulumiv1.Stack) {}, awaitingWait},
		"after many attempts":   {func(s *pulumiv1.Stack) { s.Status.LastUpdate.Failures = stalledAfterFailures }, awaitingWait},
		"in a preview":          {func(s *pulumiv1.Stack) { s.Status.LastUpdate.Type = autov1alpha1.UpdateTypePreview }, awaitingWait},
		"with a fixed interval": {func(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} }, time.Hour},
		"with a short backoff":  {func(s *pulumiv1.Stack) { s.Spec.RetryMaxBackoffDurationSeconds = 120 }, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := failed(0, 0)
			last := o.stack.Status.LastUpdate
			last.Reason, last.Message = autov1alpha1.AwaitingResourcesReason, "not ready yet: db"
			test.change(o.stack)
			d := decide(*o)
			g.Expect(d.action).To(Equal(actionRetry))
			g.Expect(d.reason).To(Equal(pulumiv1.AwaitingResourcesReason))
			g.Expect(d.stalls).To(BeFalse())
			g.Expect(d.after).To(BeNumerically("~", test.after, test.after/5))
			g.Expect(d.message).To(And(ContainSubstring("waits for resources, next attempt in "), HaveSuffix(": not ready yet: db")))

			o.now = o.now.Add(2 * test.after)
			g.Expect(decide(*o).action).To(Equal(actionUpdate))
		})
	}
	g := NewWithT(t)
	recorder := record.NewFakeRecorder(2)
	update, waits := &autov1alpha1.Update{}, &pulumiv1.StackUpdateStatus{Type: "up", State: pulumiv1.StackUpdateFailed, Reason: autov1alpha1.AwaitingResourcesReason, Message: "db"}
	for _, earlier := range []*pulumiv1.StackUpdateStatus{nil, waits} {
		(&Reconciler{EventRecorder: recorder}).announceResult(t.Context(), &pulumiv1.Stack{}, earlier, waits, update)
	}
	g.Expect(recorder.Events).To(HaveLen(1), "once")
	g.Expect(<-recorder.Events).To(HavePrefix("Normal AwaitingResources up waits for resources: db"))
}
