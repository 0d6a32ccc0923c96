// Package pressure is what a tenant does who wants all of the controller for himself. It uses the tenant's rights only. tests/tenancy has each
// as an attack; tests/bench measures what another tenant notices when all of them go on at once.
package pressure

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/ociregistry"
)

// creators is how many objects are created at the same time.
const creators = 8

// Tenant is who does it, and where.
type Tenant struct {
	Client    client.Client
	Namespace string
	// Image is that of tests/tenancy/fakeagent.
	Image string
	// Web is the host and port of its web server.
	Web string
	// Registry is where it pushes what PublishArchive publishes.
	Registry *ociregistry.Registry
}

// Stack is a Stack without a source.
func (t *Tenant) Stack(name string) *pulumiv1.Stack {
	return &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name}, Spec: pulumiv1.StackSpec{
		Stack: "dev", Backend: "file:///tmp",
		EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "x"},
		}},
		WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
			Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Resources: Smallest(),
		}},
	}}
}

// Smallest lets many pods fit on a node of two processors.
func Smallest() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
	}}
}

// Crowd creates many Stacks whose sources do not exist.
func (t *Tenant) Crowd(ctx context.Context, count int) error {
	return t.each(ctx, "crowd", count, func(stack *pulumiv1.Stack, _ int) error {
		stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: "none"}
		return nil
	})
}

// GitTarpits creates Stacks that follow repositories on a server which sends a byte per second.
func (t *Tenant) GitTarpits(ctx context.Context, name string, count int) error {
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProjectRepo, stack.Spec.Branch = fmt.Sprintf("http://%s/tarpit/%s-%d.git", t.Web, name, i), "main"
		return nil
	})
}

// GitReferences creates Stacks that follow repositories which advertise references without an end.
func (t *Tenant) GitReferences(ctx context.Context, name string, count int) error {
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProjectRepo, stack.Spec.Branch = fmt.Sprintf("http://%s/references/%s-%d.git", t.Web, name, i), "main"
		return nil
	})
}

// ArtifactTarpits publishes ExternalArtifacts on a server which sends a byte per second, and creates Stacks of them.
func (t *Tenant) ArtifactTarpits(ctx context.Context, name string, count int) error {
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.ExternalArtifactKind, Name: stack.Name}}
		return t.Publish(ctx, stack.Name, fmt.Sprintf("http://%s/tarpit/artifact/%d", t.Web, i), "sha256:"+strings.Repeat("0", 64))
	})
}

// RegexBombs creates Stacks with expressions whose patterns take 132 MB compiled.
func (t *Tenant) RegexBombs(ctx context.Context, name string, count int) error {
	// Expressions are compiled when there is something to update.
	if err := t.program(ctx, name); err != nil {
		return err
	}
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
		stack.Spec.DependsOn = []meta.DependencyReference{{Name: "none", ReadyExpr: RegexBomb(i)}}
		return nil
	})
}

// RegexBomb is an expression whose pattern takes 132 MB compiled; another one for each number.
func RegexBomb(i int) string {
	return fmt.Sprintf(`self.metadata.name.matches("(?:%s%d){1000}")`, strings.Repeat("a", 2900), i)
}

// Agent creates a Stack whose workspace runs the tenant's own agent in the mode, with the variables.
func (t *Tenant) Agent(ctx context.Context, name, mode string, variables ...corev1.EnvVar) (*pulumiv1.Stack, error) {
	if err := t.program(ctx, name); err != nil {
		return nil, err
	}
	stack := t.Stack(name)
	stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
	workspace := stack.Spec.WorkspaceTemplate.Spec
	workspace.Env = append(variables, corev1.EnvVar{Name: "FAKE_MODE", Value: mode})
	// Everything in it is what a pod template allows.
	workspace.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{PodSpec: corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		InitContainers: []corev1.Container{{
			Name: "replace", Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Resources: Smallest(),
			Command:      []string{"sh", "-c", "cp /bin/fakeagent /share/agent.new && mv -f /share/agent.new /share/agent"},
			VolumeMounts: []corev1.VolumeMount{{Name: "share", MountPath: "/share"}},
		}},
	}}}
	if err := t.Client.Create(ctx, stack); err != nil {
		return nil, fmt.Errorf("create a Stack: %w", err)
	}
	return stack, nil
}

// Request asks for a reconcile of the Stack as often as the API server lets it, until the context ends.
func (t *Tenant) Request(ctx context.Context, stack *pulumiv1.Stack) error {
	return t.again(ctx, func(i int) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}}}`,
			meta.ReconcileRequestAnnotation, fmt.Sprint(i), pulumiv1.ReconcileRequestAnnotation, fmt.Sprint(i))
		return t.Client.Patch(ctx, stack, client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
}

// Alternate lets an ExternalArtifact publish two artifacts in turn, as often as the API server lets it, until the context ends.
func (t *Tenant) Alternate(ctx context.Context, name string) error {
	return t.again(ctx, func(i int) error {
		return t.Publish(ctx, name, fmt.Sprintf("http://%s/page/%d", t.Web, i%2), "sha256:"+strings.Repeat(fmt.Sprint(i%2), 64))
	})
}

// Publish writes the status of an ExternalArtifact, which it creates when it does not exist.
func (t *Tenant) Publish(ctx context.Context, name, url, digest string) error {
	source := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name}}
	if err := client.IgnoreAlreadyExists(t.Client.Create(ctx, source)); err != nil {
		return fmt.Errorf("create an ExternalArtifact: %w", err)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"artifact":{"url":%q,"digest":%q,"revision":%q,"path":"x","lastUpdateTime":%q},"conditions":[`+
		`{"type":"Ready","status":"True","reason":"Succeeded","message":"stored","lastTransitionTime":%q}]}}`, url, digest, digest, now, now)
	if err := t.Client.Status().Patch(ctx, source, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		return fmt.Errorf("publish an artifact: %w", err)
	}
	return nil
}

// program creates a Program that runs in no time.
func (t *Tenant) program(ctx context.Context, name string) error {
	_, err := t.programWith(ctx, name, "1")
	return err
}

// LargeProgram creates a Program that is about as large as the API server takes it.
func (t *Tenant) LargeProgram(ctx context.Context, name string) (*pulumiv1.Program, error) {
	return t.programWith(ctx, name, `"`+strings.Repeat("x", 1<<20-10<<10)+`"`)
}

// programWith creates a Program with an output, which is JSON.
func (t *Tenant) programWith(ctx context.Context, name, output string) (*pulumiv1.Program, error) {
	program := &pulumiv1.Program{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name}}
	program.Program.Outputs = map[string]apiextensionsv1.JSON{"x": {Raw: []byte(output)}}
	if err := t.Client.Create(ctx, program); err != nil {
		return nil, fmt.Errorf("create a Program: %w", err)
	}
	return program, nil
}

// each creates Stacks with numbers in their names.
func (t *Tenant) each(ctx context.Context, name string, count int, change func(stack *pulumiv1.Stack, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range count {
		group.Go(func() error {
			stack := t.Stack(fmt.Sprintf("%s-%d", name, i))
			if err := change(stack, i); err != nil {
				return err
			}
			if err := t.Client.Create(ctx, stack); err != nil {
				return fmt.Errorf("create a Stack: %w", err)
			}
			return nil
		})
	}
	return group.Wait()
}

// again repeats what it is given until the context ends, which is no error.
func (t *Tenant) again(ctx context.Context, do func(i int) error) error {
	for i := 0; ; i++ {
		err := do(i)
		if _, soon := ctx.Deadline(); ctx.Err() != nil || err != nil && soon && strings.Contains(err.Error(), "would exceed context deadline") {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
