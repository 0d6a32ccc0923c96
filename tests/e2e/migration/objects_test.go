package migration_test

import (
	"os"
	"strings"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/operator"
)

// rawMessage is what the operator records for a failure: everything that the CLI printed.
var rawMessage = "failed to run update: exit status 255\ncode: 255\nstdout: Updating (dev):\n" +
	strings.Repeat("\x1b[38;5;13m+  aws:s3:Bucket logs \x1b[1mcreating\x1b[0m\n", 2500) +
	"Diagnostics:\n    \x1b[38;5;9merror: \x1b[0mthe bucket is somebody else's\n\nstderr: \n"

// phase is the state of a Stack at the time when the operator was stopped.
type phase string

const (
	initialising phase = "initialising" // its Workspace is not ready yet
	updating     phase = "updating"     // an update is running
	retrying     phase = "retrying"     // an update failed, and the next one is due
	failed       phase = "failed"       // the operator gave up
	ready        phase = "ready"
	deleting     phase = "deleting"
)

// leaveObjectsOfTheOperator creates Stacks in each phase and with each kind of source, with the definitions of the operator and in the way
// the operator writes them.
func (w *walk) leaveObjectsOfTheOperator() {
	w.t.Helper()
	repository, sha, err := system.Git.Create("app", gitserver.Files{"Pulumi.yaml": "name: app\nruntime: yaml\noutputs:\n  x: 1\n"})
	w.Expect(err).NotTo(HaveOccurred())
	w.sourceRevision = gitserver.Branch + "@sha1:" + sha
	flux := &sourcev1.GitRepository{Namespace: namespace, Name: "app", Spec: sourcev1.GitRepositorySpec{
		URL: repository.URL, Interval: metav1.Duration{Duration: patience}, Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
	}}
	w.Expect(system.Client.Create(w.ctx, flux)).To(Succeed())
	git := pulumiv1.StackSpec{ProjectRepo: repository.URL, Branch: gitserver.Branch}
	fromFlux := pulumiv1.StackSpec{FluxSource: &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{
		APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: "app",
	}}}
	program := pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: "app"}}
	w.deployOnce("ready-flux", fromFlux)
	w.Expect(system.StopController()).To(Succeed())

	w.Expect(os.Mkdir(w.definitions, 0o755)).To(Succeed())
	w.Expect(operator.WriteDefinitions(w.definitions)).To(Succeed())
	_, err = system.ControlPlane.Kubectl(w.ctx, "apply", "--server-side", "--force-conflicts", "-f", w.definitions)
	w.Expect(err).NotTo(HaveOccurred())
	w.createProgram()
	w.commits = map[string]string{"git": sha, "flux": w.sourceRevision, "program": "1"}
	specs := map[string]pulumiv1.StackSpec{"git": git, "flux": fromFlux, "program": program}
	for _, phase := range []phase{initialising, updating, deleting, ready, retrying, failed} {
		for kind, spec := range specs {
			w.leave(phase, kind, spec, w.commits[kind])
		}
	}
	w.leave(ready, "suspended", program, "1")
	w.leave(ready, "destroying", git, sha)
}

// inPhases returns the Stacks in the given phases, with each kind of source. The values are what the operator records as their commit.
func (w *walk) inPhases(phases ...phase) map[string]string {
	commits := map[string]string{}
	for _, phase := range phases {
		for kind, commit := range w.commits {
			commits[nameOf(phase, kind)] = commit
		}
	}
	return commits
}

func nameOf(in phase, kind string) string { return string(in) + "-" + kind }

// deployOnce deploys a stack with stack-controller and deletes the Stack object. Its state then exists in the backend, as if the operator
// had deployed it.
func (w *walk) deployOnce(name string, spec pulumiv1.StackSpec) {
	w.t.Helper()
	stack := w.newStack(name, spec)
	w.Expect(system.Client.Create(w.ctx, stack)).To(Succeed())
	w.await(name, func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(conditions.IsReady(stack)).To(BeTrue(), "%v", stack.Status.Conditions)
	})
	w.Expect(system.Client.Delete(w.ctx, stack)).To(Succeed())
	w.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(w.ctx, keyOf(name), stack)) &&
			apierrors.IsNotFound(system.Client.Get(w.ctx, keyOf(name), &autov1alpha1.Workspace{}))
	}).Should(BeTrue())
}

// newStack returns a Stack as a user writes it.
func (w *walk) newStack(name string, spec pulumiv1.StackSpec) *pulumiv1.Stack {
	spec = *spec.DeepCopy()
	spec.Stack, spec.Backend = name, system.BackendURL
	spec.EnvRefs = map[string]pulumiv1.ResourceRef{
		"PULUMI_CONFIG_PASSPHRASE": {Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "pulumi", Key: "passphrase"}},
	}
	return &pulumiv1.Stack{Namespace: namespace, Name: name, Spec: spec}
}

func (w *walk) createProgram() {
	w.t.Helper()
	program := &pulumiv1.Program{Namespace: namespace, Name: "app"}
	w.Expect(yaml.Unmarshal([]byte("program: {outputs: {x: 1}}"), program)).To(Succeed())
	w.Expect(system.Client.Create(w.ctx, program)).To(Succeed())
	w.Expect(w.operator.SaveProgram(w.ctx, program)).To(Succeed())
}

// leave creates a Stack with the Workspace and the Update that it has in the phase.
func (w *walk) leave(in phase, kind string, spec pulumiv1.StackSpec, commit string) {
	w.t.Helper()
	name := nameOf(in, kind)
	stack := w.newStack(name, spec)
	stack.Finalizers = []string{pulumiv1.Finalizer}
	stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago, and without an effect"}
	stack.Spec.DestroyOnFinalize = kind == "destroying"
	w.Expect(system.Client.Create(w.ctx, stack, client.FieldOwner("kubectl"))).To(Succeed())
	operator.MarkReconciling(stack, "StackProcessing", "waiting for workspace readiness")
	w.Expect(w.operator.SaveStatus(w.ctx, stack)).To(Succeed())
	workspace, err := w.operator.ApplyWorkspace(w.ctx, stack)
	w.Expect(err).NotTo(HaveOccurred())
	update, err := w.operator.CreateUpdate(w.ctx, stack, workspace, autov1alpha1.UpdateTypeUp)
	w.Expect(err).NotTo(HaveOccurred())
	operator.MarkReconciling(stack, "StackProcessing", "stack is being processed")
	stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: stack.Generation, Name: update.Name, Commit: commit}
	w.Expect(w.operator.SaveStatus(w.ctx, stack)).To(Succeed())

	condition := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Status: status, Reason: reason}
	}
	last := &pulumiv1.StackUpdateStatus{
		Generation: stack.Generation, Name: update.Name, Type: autov1alpha1.UpdateTypeUp, State: pulumiv1.StackUpdateSucceeded,
		LastAttemptedCommit: commit, LastSuccessfulCommit: commit, LastResyncTime: metav1.Now().Rfc3339Copy(),
	}
	progressing, failing, complete := condition("False", "Complete"), condition("False", "UpdateSucceeded"), condition("True", "Updated")
	message := ""
	switch in {
	case initialising:
		progressing, failing, complete = condition("False", "WorkspaceNotReady"), condition("False", "Progressing"), condition("False", "Progressing")
	case updating:
		w.running = append(w.running, update.Name)
		progressing, failing, complete = condition("True", "Progressing"), condition("False", "Progressing"), condition("False", "Progressing")
	case retrying, failed:
		progressing, failing, complete, message = condition("False", "Failed"), condition("True", "Unknown"), condition("True", "Failed"), rawMessage
		last.State, last.Message, last.LastSuccessfulCommit = pulumiv1.StackUpdateFailed, rawMessage, ""
		if in == failed {
			last.Failures = operator.MaxFailures + 4 // so that its next attempt is hours away
		}
	}
	w.Expect(w.operator.SaveUpdate(w.ctx, update, progressing, failing, complete, message)).To(Succeed())
	if complete.Status != metav1.ConditionTrue {
		return
	}
	stack.Status.CurrentUpdate, stack.Status.LastUpdate = nil, last
	stack.Status.ProjectInfo = &autov1alpha1.ProjectInfo{Name: "app", Runtime: "yaml"}
	operator.MarkResult(stack)
	w.Expect(w.operator.SaveStatus(w.ctx, stack)).To(Succeed())
	w.Expect(w.operator.FinalizeUpdate(w.ctx, update)).To(Succeed())
	switch in {
	case ready:
		w.recorded[name] = update.Name
	case deleting:
		w.Expect(system.Client.Delete(w.ctx, stack)).To(Succeed())
	}
}

// leaveObjectsOfThisController creates Stacks in phases that they do not reach by themselves.
func (w *walk) leaveObjectsOfThisController() {
	w.t.Helper()
	// This Stack waits for its Secret, with an Update that has not started.
	waiting := w.newStack("waiting-git", w.stack("ready-git").Spec)
	waiting.Spec.EnvRefs["OTHER"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "missing", Key: "a"}}
	w.Expect(system.Client.Create(w.ctx, waiting)).To(Succeed())
	w.await("waiting-git", func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.CurrentUpdate).NotTo(BeNil())
		g.Expect(conditions.GetReason(stack, "Ready")).To(Equal(pulumiv1.SecretNotFoundReason))
	})
	suspend := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true}}`))
	w.Expect(system.Client.Patch(w.ctx, w.stack("ready-suspended"), suspend)).To(Succeed())
	// This Stack cannot be destroyed, because the operator did not really deploy it.
	w.Expect(system.Client.Delete(w.ctx, w.stack("ready-destroying"))).To(Succeed())
	w.await("ready-destroying", func(g Gomega, stack *pulumiv1.Stack) {
		g.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypeDestroy), "%v", stack.Status.Conditions)
	})
}

// deployment returns a Deployment for which no controller creates pods.
func deployment(namespace, name string) *appsv1.Deployment {
	one, labels := int32(1), map[string]string{"app": name}
	return &appsv1.Deployment{Namespace: namespace, Name: name, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "manager", Image: name + ":v1"}},
		}},
	}}
}
