package compatibility_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// wrote expects that the scene's programs have written these files and no others.
func wrote(names ...string) func(*scene, *pulumiv1.Stack) {
	return func(s *scene, _ *pulumiv1.Stack) { s.g.Expect(s.listFiles()).To(ConsistOf(names)) }
}

func (s *scene) listFiles() []string {
	entries, err := os.ReadDir(s.files)
	s.g.Expect(err).NotTo(HaveOccurred())
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// delete deletes the Stack and waits until it is gone.
func (s *scene) delete(name string) {
	s.g.Expect(system.Client.Delete(s.t.Context(), &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}})).To(Succeed())
	s.awaitGone(name)
}

func TestLifecycleFieldsWork(t *testing.T) {
	const first = "'urn:pulumi:dev::files::test:index:Sleep::first'"
	testUses(t, []use{
		{field: "targets", manifest: "files", patch: "{spec: {targets: [" + first + "]}}", shows: wrote("first")},
		{field: "targetDependents", manifest: "files", patch: "{spec: {targets: [" + first + "], targetDependents: true}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			ran("--target-dependents")(s, stack)
			wrote("first", "second")(s, stack)
		}},
		{field: "refresh", manifest: "files", patch: "{spec: {refresh: true}}", shows: ran(" --refresh")},
		{field: "destroyOnFinalize", manifest: "files", shows: func(s *scene, stack *pulumiv1.Stack) {
			wrote("first", "second")(s, stack)
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "destroyOnFinalize (not set)", manifest: "files", patch: "{spec: {destroyOnFinalize: false}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "runProgram", manifest: "files", patch: "{spec: {runProgram: true}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.delete("files")
			ran("--run-program")(s, stack)
			wrote()(s, stack)
		}},
		{field: "useLocalStackOnly", manifest: "plain", shows: func(s *scene, _ *pulumiv1.Stack) {
			second := s.manifest("manifests/plain", "{metadata: {name: second}, spec: {useLocalStackOnly: true}}")
			s.g.Expect(s.applyAll(second)).To(Succeed())
			s.awaitReady("second")
		}},
		{field: "preview", manifest: "files", patch: "{spec: {preview: true}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			wrote()(s, stack)
			s.g.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypePreview))
			s.patch("files", "{spec: {preview: false}}")
			stack = s.awaitReady("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "workspaceReclaimPolicy", manifest: "templates", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.g.Expect(system.Client.Get(s.t.Context(), s.key(stack.Name), &autov1alpha1.Workspace{})).To(Succeed())
		}},
		{field: "workspaceTemplate", manifest: "templates", shows: func(s *scene, stack *pulumiv1.Stack) {
			ran("FROM_TEMPLATE=of-the-template")(s, stack)
			workspace := &autov1alpha1.Workspace{}
			s.g.Expect(system.Client.Get(s.t.Context(), s.key(stack.Name), workspace)).To(Succeed())
			s.g.Expect(workspace.Labels).To(HaveKeyWithValue("example.com/team", "platform"))
			s.g.Expect(workspace.Spec.Image).To(Equal("example/pulumi-with-dependencies:v3.334"))
		}},
		{field: "updateTemplate", manifest: "templates", shows: func(s *scene, stack *pulumiv1.Stack) {
			update := s.lastUpdate(stack)
			s.g.Expect(update.Labels).To(HaveKeyWithValue("example.com/team", "platform"))
			s.g.Expect(update.Spec.TTLAfterCompleted.Duration.String()).To(Equal("2h0m0s"))
			ran("--parallel=3", "by a template")(s, stack)
		}},
		{field: "expectNoRefreshChanges", manifest: "plain", patch: "{spec: {refresh: true, expectNoRefreshChanges: true}}", shows: ran("--preview-only", "--expect-no-changes")},
		{field: "retryOnUpdateConflict", manifest: "plain", patch: "{spec: {retryOnUpdateConflict: true}}", shows: func(*scene, *pulumiv1.Stack) {}},
		{field: "initOnCreate", manifest: "plain", patch: "{spec: {initOnCreate: true}}", shows: func(*scene, *pulumiv1.Stack) {}},
	})
}

func TestMisusedLifecycleFieldsAreExplainedAndHeal(t *testing.T) {
	const failed, waits = pulumiv1.RetryingAfterFailureReason, pulumiv1.PrerequisiteNotSatisfiedReason
	testMisuses(t, []misuse{
		{field: "targets (not there)", manifest: "files", patch: "{spec: {targets: ['urn:pulumi:dev::files::test:index:Sleep::nobody']}}", reason: failed, says: "nobody"},
		{field: "targets (hostile)", manifest: "files", patch: "{spec: {targets: ['--help', '; rm -rf /']}}", reason: failed, says: "--help"},
		{field: "useLocalStackOnly (missing stack)", manifest: "plain", patch: "{spec: {useLocalStackOnly: true}}", reason: failed, says: "no stack named 'dev' found"},
		{field: "prerequisites (itself)", manifest: "plain", patch: "{spec: {prerequisites: [{name: plain}]}}", reason: pulumiv1.DependencyCycleReason, says: "plain"},
		{field: "prerequisites (missing)", manifest: "plain", patch: "{spec: {prerequisites: [{name: nobody}]}}", reason: waits, says: "nobody does not exist"},
		{field: "prerequisites.requirement.succeededWithinDuration (no duration)", manifest: "plain",
			patch: "{spec: {prerequisites: [{name: a, requirement: {succeededWithinDuration: soon}}]}}", refused: "succeededWithinDuration must be a duration"},
		{field: "resyncFrequencySeconds (negative)", manifest: "plain", patch: "{spec: {resyncFrequencySeconds: -1}}", refused: "spec.resyncFrequencySeconds"},
		{field: "retryMaxBackoffDurationSeconds (negative)", manifest: "plain", patch: "{spec: {retryMaxBackoffDurationSeconds: -1}}", refused: "spec.retryMaxBackoffDurationSeconds"},
		{field: "workspaceReclaimPolicy (unknown)", manifest: "plain", patch: "{spec: {workspaceReclaimPolicy: Recycle}}", refused: `Unsupported value: "Recycle"`},
		{field: "workspaceTemplate (refused by the API server)", manifest: "plain",
			patch: "{spec: {workspaceTemplate: {metadata: {labels: {'not a label': x}}}}}", reason: pulumiv1.WorkspaceFailedReason, says: "not a label"},
		{field: "workspaceTemplate (unknown field)", manifest: "plain", patch: "{spec: {workspaceTemplate: {spec: {imagee: x}}}}", refused: `spec.workspaceTemplate.spec.imagee`},
		{field: "updateTemplate (refused by the API server)", manifest: "plain",
			patch: "{spec: {updateTemplate: {metadata: {labels: {'not a label': x}}}}}", reason: pulumiv1.WorkspaceFailedReason, says: "not a label"},
		{field: "updateTemplate (unknown field)", manifest: "plain", patch: "{spec: {updateTemplate: {spec: {parallels: 3}}}}", refused: `spec.updateTemplate.spec.parallels`},
	})
}

// TestOddCombinationsOfLifecycleFieldsAreHarmless has what contradicts itself without being an error.
func TestOddCombinationsOfLifecycleFieldsAreHarmless(t *testing.T) {
	testUses(t, []use{
		{field: "targetDependents (without targets)", manifest: "files", patch: "{spec: {targetDependents: true}}", shows: wrote("first", "second")},
		{field: "runProgram (without destroyOnFinalize)", manifest: "files", patch: "{spec: {runProgram: true, destroyOnFinalize: false}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "preview (with destroyOnFinalize, never deployed)", manifest: "files", patch: "{spec: {preview: true}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "preview (with destroyOnFinalize, deployed before)", manifest: "files", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.patch("files", "{spec: {preview: true}}")
			s.await("files", func(stack *pulumiv1.Stack) bool {
				return isReady(stack) && stack.Status.LastUpdate.Type == autov1alpha1.UpdateTypePreview
			})
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "refresh (of resources that are gone)", manifest: "files", patch: "{spec: {refresh: true}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.g.Expect(os.Remove(filepath.Join(s.files, "first"))).To(Succeed())
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "resyncFrequencySeconds (less than a minute)", manifest: "plain", patch: "{spec: {continueResyncOnCommitMatch: true, resyncFrequencySeconds: 1}}", shows: func(s *scene, stack *pulumiv1.Stack) {
			s.settles("plain", func(now *pulumiv1.Stack) bool { return now.Status.LastUpdate.Name == stack.Status.LastUpdate.Name })
			s.g.Expect(s.updates()).To(HaveLen(1))
		}},
		{field: "workspaceTemplate (a name and a status of its own)", manifest: "plain",
			patch: "{spec: {workspaceTemplate: {metadata: {name: other}, status: {address: nowhere}}}}", shows: func(s *scene, stack *pulumiv1.Stack) {
				s.g.Expect(system.Client.Get(s.t.Context(), s.key("plain"), &autov1alpha1.Workspace{})).To(Succeed())
			}},
	})
}

func TestFailuresAreRepeatedAfterTheLongestBackoffAtMost(t *testing.T) {
	t.Parallel()
	s := newScene(t, "use-retrymaxbackoff")
	s.g.Expect(s.applyAll(s.manifest("manifests/plain", "{spec: {retryMaxBackoffDurationSeconds: 3, fluxSource: {dir: broken}}}"))).To(Succeed())
	stalled := notReady(pulumiv1.UpdateFailedReason, "/no/such/file")
	// The backoff alone would have the fourth attempt after two minutes.
	s.await("plain", func(stack *pulumiv1.Stack) bool { return stalled(stack) && stack.Status.LastUpdate.Failures >= 4 })
	s.replace("manifests/plain")
	s.awaitReady("plain")
}

func TestPrerequisitesInACircleWaitAndHealWhenItIsBroken(t *testing.T) {
	t.Parallel()
	s := newScene(t, "misuse-prerequisites-circle")
	for name, other := range map[string]string{"left": "right", "right": "left"} {
		patch := "{metadata: {name: " + name + "}, spec: {stack: " + name + ", prerequisites: [{name: " + other + "}]}}"
		s.g.Expect(s.applyAll(s.manifest("manifests/plain", patch))).To(Succeed())
	}
	for _, name := range []string{"left", "right"} {
		s.await(name, notReady(pulumiv1.DependencyCycleReason, "remove one of these dependencies"))
	}
	s.patch("left", "{spec: {prerequisites: null}}")
	s.awaitReady("left")
	s.awaitReady("right")
}

func TestStackOfTheOldVersionWorks(t *testing.T) {
	t.Parallel()
	s := newScene(t, "use-v1alpha1")
	s.apply("manifests/old-version")
	s.awaitReady("old-version")
	output, err := system.ControlPlane.Kubectl(t.Context(), "get", "stacks.v1alpha1.pulumi.com", "old-version", "-n", s.namespace, "-o", "jsonpath={.status.outputs.text} {.status.lastUpdate.state}")
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(output).To(Equal("none succeeded"))
	s.g.Expect(system.Client.Get(t.Context(), s.key("old-version"), &pulumiv1.Stack{})).To(Succeed())
}

// awaitNoWorkspace waits until the Workspace is gone.
func (s *scene) awaitNoWorkspace(name string) {
	s.g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(s.t.Context(), s.key(name), &autov1alpha1.Workspace{}))
	}).WithContext(s.t.Context()).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
}
