package tenancy_test

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/e2e/tenancy/pressure"
)

// maxObject is about the size of the largest object that the API server accepts.
const maxObject = 1 << 20

// sizeAttacks create objects that are as large as the API server allows.
var sizeAttacks = []attack{
	{
		name: "variables-from-one-secret", promise: "sizes",
		does: "refers to a value of 100 KiB from a thousand environment variables",
		sees: "`ConfigInvalid`: the values of an operation have a total limit.",
		run: func(a *attacker) {
			a.newProgram()
			update := a.newOperation(func(spec *autov1alpha1.WorkspaceSpec) {
				spec.Env = append(spec.Env, corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					Name: a.name, Key: "key",
				}}})
				for i := range 1000 {
					spec.Env = append(spec.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "$(V)"})
				}
			})
			a.awaitAgent(attackerName)
			a.create(&corev1.Secret{ObjectMeta: a.meta(), Data: map[string][]byte{"key": []byte(strings.Repeat("x", 100<<10))}})
			a.expectOperationRefused(update, "more than 2 MiB")
		},
	},
	{
		name: "one-secret-many-times", promise: "sizes",
		does: "uses a Secret of 1 MiB a thousand times as a configuration value",
		sees: "`ConfigInvalid`: the values of an operation have a total limit.",
		run: func(a *attacker) {
			a.newProgram()
			a.create(&corev1.Secret{ObjectMeta: a.meta(), Data: map[string][]byte{"key": []byte(strings.Repeat("x", maxObject-200))}})
			a.expectOperationRefused(a.newOperation(func(spec *autov1alpha1.WorkspaceSpec) {
				for i := range 1000 {
					spec.Stacks[0].Config = append(spec.Stacks[0].Config, autov1alpha1.ConfigItem{Key: fmt.Sprint("c", i),
						ValueFrom: &autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: a.name, Key: "key"}}})
				}
			}), "more than 8 MiB")
		},
	},
	{
		name: "annotations-at-their-limit", promise: "sizes", in: crowdName, heavy: true,
		does: "creates 25 Stacks, Programs and Services each, with 250 KiB of annotations and the controller's labels",
		sees: "`SourceNotFound` and `Succeeded`: all are reconciled. The controller does not keep fields that it does not read.",
		run: func(a *attacker) {
			large := map[string]string{"example.com/large": strings.Repeat("x", 250<<10)}
			var last *pulumiv1.Stack
			var lastProgram *pulumiv1.Program
			for i := range 25 {
				named := a.meta()
				named.Name += fmt.Sprint("-", i)
				named.Annotations, named.Labels = large, map[string]string{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace}
				stack := a.newStack(fromProgram("none"))
				stack.ObjectMeta = named
				program := &pulumiv1.Program{ObjectMeta: named}
				for _, object := range []client.Object{
					stack, program, &corev1.Service{ObjectMeta: named, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}},
				} {
					a.create(object)
					a.Expect(object.GetAnnotations()).To(Equal(large), "the API server takes them")
				}
				last, lastProgram = stack, program
			}
			a.expectState(last, noSource)
			a.expectProgram(lastProgram, meta.SucceededReason)
		},
	},
	{
		name: "objects-of-many-small-parts", promise: "sizes", in: crowdName, heavy: true,
		does: "creates four Stacks and four Workspaces with 400,000 empty tolerations each, which are three bytes on the wire and 72 in memory",
		sees: "`SpecInvalid`, and the Workspaces are refused as well: an object may take 4 MiB of the controller's memory.",
		run: func(a *attacker) {
			pod := &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
				Tolerations: make([]corev1.Toleration, 400_000)}}
			for i := range 4 {
				stack := a.newStack(fromProgram("none"))
				stack.Name += fmt.Sprint("-", i)
				stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: pod}}
				workspace := &autov1alpha1.Workspace{ObjectMeta: a.meta(), Spec: autov1alpha1.WorkspaceSpec{PodTemplate: pod}}
				workspace.Name += fmt.Sprint("-alone-", i)
				a.create(stack)
				a.create(workspace)
				a.expectState(stack, refusal{reasons: []string{pulumiv1.SpecInvalidReason}})
				a.Eventually(func() string {
					a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(workspace), workspace)).To(Succeed())
					ready := apimeta.FindStatusCondition(workspace.Status.Conditions, autov1alpha1.WorkspaceReady)
					if ready == nil {
						return ""
					}
					return ready.Reason
				}).WithContext(a.ctx).Should(Equal(autov1alpha1.PodTemplateInvalidReason))
			}
		},
	},
	{
		name: "program-at-its-limit", promise: "sizes", in: crowdName, heavy: true,
		does: "writes a Program of 1 MiB, and a Program that is nested a hundred levels deep",
		sees: "`Succeeded` or `ProgramInvalid`, in a short time",
		run: func(a *attacker) {
			large, err := a.means.LargeProgram(a.ctx, a.name)
			a.Expect(err).NotTo(HaveOccurred())
			deep := &pulumiv1.Program{ObjectMeta: a.meta()}
			deep.Name += "-deep"
			deep.Program.Outputs = map[string]apiextensionsv1.JSON{"x": nested(100)}
			a.create(deep)
			for _, program := range []*pulumiv1.Program{large, deep} {
				a.expectProgram(program, meta.SucceededReason, pulumiv1.ProgramInvalidReason)
			}
		},
	},
	{
		name: "configuration-at-its-limit", promise: "sizes", heavy: true,
		does: "writes 1 MiB of configuration, nested a hundred levels deep",
		sees: "`ProcessingCompleted`, `RetryingAfterFailure`, `UpdateFailed` or `WorkspaceFailed`: the Stack runs, or reaches a limit of its own Workspace or pod.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.createStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
				spec.Config = jsonValues(map[string]any{"large": strings.Repeat("x", maxObject-20<<10)})
				spec.Config["deep"] = nested(100)
			})
			a.expectState(stack, refusal{reasons: []string{
				pulumiv1.ProcessingCompletedReason, pulumiv1.RetryingAfterFailureReason, pulumiv1.UpdateFailedReason, pulumiv1.WorkspaceFailedReason,
			}})
		},
	},
	{
		name: "object-beyond-the-limit", promise: "sizes",
		does: "writes a Stack that is nested ten thousand levels deep",
		sees: "`BadRequest`: the API server rejects it.",
		run: func(a *attacker) {
			// The Stack is sent as text, because a client that encodes an object has its own limit.
			post := func(name string, levels int) error {
				stack := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"spec":{"stack":"dev","suspend":true,"config":{"deep":%s}}}`,
					pulumiv1.GroupVersion, pulumiv1.StackKind, name, nested(levels).Raw)
				return a.clientset.CoreV1().RESTClient().Post().AbsPath("apis", pulumiv1.GroupVersion.Group, pulumiv1.GroupVersion.Version,
					"namespaces", attackerName, "stacks").SetHeader("Content-Type", "application/json").Body([]byte(stack)).Do(a.ctx).Error()
			}
			a.Expect(post(a.name+"-few", 10)).To(Succeed())
			err := post(a.name, 10_001)
			a.Expect(apierrors.IsBadRequest(err)).To(BeTrue(), "%v", err)
			a.saw(string(metav1.StatusReasonBadRequest))
		},
	},
	{
		name: "patterns-at-their-limit", promise: "sizes",
		does: "writes 256 patterns in `sourcePaths`, each with 200 repetitions of `**/*`, for an artifact with 5,000 files",
		sees: "`SpecInvalid`, Stalled: patterns are matched in the background, with a limit on the effort.",
		run: func(a *attacker) {
			want := refusal{reasons: []string{pulumiv1.SpecInvalidReason}, says: "the patterns take too long", stalled: true}
			a.publish(pressure.DeepFiles, want, func(spec *pulumiv1.StackSpec) { spec.SourcePaths = pressure.Patterns() })
		},
	},
	{
		name: "dependencies-by-the-hundred", promise: "sizes", in: crowdName, heavy: true,
		does: "makes twenty Stacks depend on 250 others each, in a cycle",
		sees: "`DependencyCycle` or `DependencyNotReady`, with a short message",
		run: func(a *attacker) {
			a.newProgram()
			want := refusal{reasons: []string{pulumiv1.DependencyCycleReason, pulumiv1.DependencyNotReadyReason}}
			a.twentyStacks(want, func(i int, spec *pulumiv1.StackSpec) {
				for j := range 250 {
					spec.DependsOn = append(spec.DependsOn, pulumiv1.DependencyReference{Name: fmt.Sprintf("%s-%d", a.name, (i+j+1)%1000)})
				}
			})
		},
	},
	{
		name: "dependencies-by-the-thousand", promise: "sizes", heavy: true,
		does: "makes a Stack depend on ten thousand Stacks that do not exist",
		sees: "`SpecInvalid`, Stalled: a Stack can have 256 dependencies.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.newStack(fromProgram(a.name))
			for j := range 10_000 {
				stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: fmt.Sprint(a.name, "-", j)})
			}
			a.create(stack)
			a.expectState(stack, refusal{reasons: []string{pulumiv1.SpecInvalidReason}, says: "256 prerequisites, dependencies and Stacks in inputs", stalled: true})
		},
	},
	{
		name: "secrets-by-the-thousand", promise: "sizes", heavy: true,
		does: "lets twenty Stacks that wait for another one use nine thousand Secrets each, by names of four letters",
		sees: "`DependencyNotReady`: the index of the controller has 256 of the names.",
		run: func(a *attacker) {
			a.newProgram()
			// The Stacks wait, because pods with so many Secrets would keep the kubelet busy, which all tenants of the node share.
			a.twentyStacks(refusal{reasons: []string{pulumiv1.DependencyNotReadyReason}}, func(_ int, spec *pulumiv1.StackSpec) {
				spec.DependsOn = []pulumiv1.DependencyReference{{Name: "none"}}
				for j := range 9000 {
					spec.SecretEnvs = append(spec.SecretEnvs, fmt.Sprintf("%04x", j))
				}
			})
		},
	},
	{
		name: "events-without-an-end", promise: "sizes",
		does: "creates fifty Events of 1 MiB for the StatefulSet of a workspace that does not become ready",
		sees: "`ServiceAccountNotFound` or `PodCreationFailed`. The condition quotes an event, shortened to 1 KiB.",
		run: func(a *attacker) {
			workspace := a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) { spec.ServiceAccountName = "none" })
			await(a, workspace, func(g Gomega, workspace *autov1alpha1.Workspace) {
				a.expectReason(g, workspace, autov1alpha1.ServiceAccountNotFoundReason)
			})
			set, err := a.clientset.AppsV1().StatefulSets(attackerName).Get(a.ctx, a.name+"-workspace", metav1.GetOptions{})
			a.Expect(err).NotTo(HaveOccurred())
			for i := range 50 {
				a.create(&corev1.Event{
					ObjectMeta:     inNamespace(attackerName, fmt.Sprint(a.name, "-", i)),
					InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: attackerName, Name: set.Name, UID: set.UID},
					Type:           corev1.EventTypeWarning, Reason: "FailedCreate", Message: strings.Repeat("x", 1<<20), LastTimestamp: metav1.Now(),
				})
			}
			check := func(g Gomega) {
				g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(workspace), workspace)).To(Succeed())
				a.expectReason(g, workspace, autov1alpha1.ServiceAccountNotFoundReason, autov1alpha1.PodCreationFailedReason)
				message := apimeta.FindStatusCondition(workspace.Status.Conditions, meta.ReadyCondition).Message
				g.Expect(len(message)).To(BeNumerically("<", 2<<10))
			}
			a.eventually(check)
			a.Consistently(check).WithContext(a.ctx).WithTimeout(quietTime).WithPolling(quietTime / 3).Should(Succeed())
		},
	},
}

// twentyStacks creates twenty Stacks of the program, and waits until each of them is in the state. A crowded namespace has a thousand more
// Stacks, and all of them take turns.
func (a *attacker) twentyStacks(want refusal, change func(i int, spec *pulumiv1.StackSpec)) {
	a.t.Helper()
	var stacks []*pulumiv1.Stack
	for i := range 20 {
		stack := a.newStack(fromProgram(a.name))
		stack.Name += fmt.Sprint("-", i)
		change(i, &stack.Spec)
		a.create(stack)
		stacks = append(stacks, stack)
	}
	for _, stack := range stacks {
		a.expectState(stack, want)
	}
}

// expectProgram waits until the Program has one of the reasons, which say whether it can be run.
func (a *attacker) expectProgram(program *pulumiv1.Program, reasons ...string) {
	a.t.Helper()
	reason := ""
	await(a, program, func(g Gomega, program *pulumiv1.Program) {
		ready := apimeta.FindStatusCondition(program.Status.Conditions, meta.ReadyCondition)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(reasons).To(ContainElement(ready.Reason), ready.Message)
		reason = ready.Reason
	})
	a.saw(reason)
}

// nested returns a list in a list, and so on.
func nested(levels int) apiextensionsv1.JSON {
	return apiextensionsv1.JSON{Raw: json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))}
}

// newOperation creates a Workspace with a stack, and an Update for it.
func (a *attacker) newOperation(change func(*autov1alpha1.WorkspaceSpec)) *autov1alpha1.Update {
	a.t.Helper()
	a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev"}}
		change(spec)
	})
	return a.newUpdate(nil)
}

// expectOperationRefused waits until the Update reports that its values cannot be used.
func (a *attacker) expectOperationRefused(update *autov1alpha1.Update, says string) {
	a.t.Helper()
	await(a, update, func(g Gomega, update *autov1alpha1.Update) {
		g.Expect(update.Status.Message).To(ContainSubstring(says), "%+v", update.Status)
		g.Expect(update.HasFailed()).To(BeTrue())
		failed := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateFailed)
		g.Expect(failed.Reason).To(Equal(autov1alpha1.ConfigInvalidReason))
	})
	a.saw(autov1alpha1.ConfigInvalidReason)
}

// The refusals of an archive.
var (
	unusable = refusal{reasons: []string{pulumiv1.ArtifactUnusableReason}, stalled: true}
	tooLarge = refusal{reasons: []string{pulumiv1.ArtifactTooLargeReason}, stalled: true}
)

// archiveAttacks publish tarballs that no regular source would create.
var archiveAttacks = []attack{
	{
		name: "archive-bomb", promise: "archives",
		does: "publishes an artifact of 1 MB that unpacks to 1.1 GiB",
		sees: "`ArtifactTooLarge`, Stalled",
		run: func(a *attacker) {
			a.publish(pressure.Bomb, tooLarge)
		},
	},
	{
		name: "archive-entries", promise: "archives",
		does: "publishes an artifact with 120,000 empty files",
		sees: "`ArtifactTooLarge`, Stalled",
		run: func(a *attacker) {
			a.publish(pressure.TooManyFiles, tooLarge)
		},
	},
	{
		name: "archive-paths", promise: "archives",
		does: "publishes an artifact with a file at `../../etc/passwd`",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "../../etc/passwd", Size: 4}, strings.NewReader("root"))
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-links", promise: "archives",
		does: "publishes an artifact with links to files outside of it",
		sees: "`ArtifactUnusable`, Stalled: hard links are refused, and symbolic links left out. No file outside of the artifact is read.",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "Pulumi.yaml", Typeflag: tar.TypeSymlink, Linkname: "/var/run/secrets/kubernetes.io/serviceaccount/token"}, nil)
				a.file(w, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../../../etc/passwd"}, nil)
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-devices", promise: "archives",
		does: "publishes an artifact with a device and a pipe",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: "zero", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}, nil)
				a.file(w, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, nil)
				return nil
			}, unusable)
		},
	},
	{
		name: "archive-names", promise: "archives",
		does: "publishes an artifact with a file in hundreds of thousands of nested directories, with a path of 900 KiB",
		sees: "`ArtifactUnusable` or `ArtifactTooLarge`, Stalled, with a short message",
		run: func(a *attacker) {
			a.publish(func(w *tar.Writer) error {
				a.file(w, tar.Header{Name: strings.Repeat("x/", 450<<10) + "x", Format: tar.FormatPAX}, nil)
				return nil
			}, refusal{reasons: []string{pulumiv1.ArtifactUnusableReason, pulumiv1.ArtifactTooLargeReason}, stalled: true})
		},
	},
	{
		name: "archive-that-is-none", promise: "archives",
		does: "publishes an artifact that is not an archive",
		sees: "`ArtifactUnusable`, Stalled",
		run: func(a *attacker) {
			a.publishBytes([]byte(strings.Repeat("<html>", 100)), unusable)
		},
	},
}

// file writes an entry of a tarball.
func (a *attacker) file(w *tar.Writer, header tar.Header, content io.Reader) {
	header.Mode = 0o644
	a.Expect(w.WriteHeader(&header)).To(Succeed())
	if content != nil {
		_, err := io.Copy(w, content)
		a.Expect(err).NotTo(HaveOccurred())
	}
}

// publish publishes a tarball, and expects that a Stack with it as source is refused.
func (a *attacker) publish(write func(*tar.Writer) error, want refusal, changes ...func(*pulumiv1.StackSpec)) {
	a.t.Helper()
	content, err := pressure.Tarball(write)
	a.Expect(err).NotTo(HaveOccurred())
	a.publishBytes(content, want, changes...)
}

func (a *attacker) publishBytes(content []byte, want refusal, changes ...func(*pulumiv1.StackSpec)) {
	a.t.Helper()
	a.Expect(a.means.PublishArchive(a.ctx, a.name, content)).To(Succeed())
	a.expectRefused(a.createStack(append(changes, fromFlux(sourcev1.OCIRepositoryKind, "", a.name))...), want)
}
