// Package pressure does what a tenant would do to use up the controller, with the rights of a tenant only. tests/e2e/tenancy uses each part as
// an attack; tests/load/bench measures what another tenant notices while all parts run at the same time.
package pressure

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
)

// creators is how many objects a tenant creates at the same time.
const creators = 8

// Tenant is the tenant that attacks.
type Tenant struct {
	Client    client.Client
	Namespace string
	// Image is the image of tests/e2e/tenancy/fakeagent.
	Image string
	// Web is the host and port of the tenant's web server.
	Web string
	// Registry is the registry to which PublishArchive pushes.
	Registry *ociregistry.Registry
}

// Stack returns a Stack without a source.
func (t *Tenant) Stack(name string) *pulumiv1.Stack {
	return &pulumiv1.Stack{Namespace: t.Namespace, Name: name, Spec: pulumiv1.StackSpec{
		Stack: "dev", Backend: "file:///tmp",
		EnvRefs: map[string]pulumiv1.ResourceRef{"PULUMI_CONFIG_PASSPHRASE": {
			Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "x"},
		}},
		WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
			Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Resources: Smallest(),
		}},
	}}
}

// Smallest returns requests that let many pods fit on a node with two processors.
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

// GitReferences creates Stacks that follow repositories which advertise an endless list of references.
func (t *Tenant) GitReferences(ctx context.Context, name string, count int) error {
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProjectRepo, stack.Spec.Branch = fmt.Sprintf("http://%s/references/%s-%d.git", t.Web, name, i), "main"
		return nil
	})
}

// GitPacks creates Stacks that follow repositories which send endless packfiles. The content is a thousand times as large as the packfile.
func (t *Tenant) GitPacks(ctx context.Context, name string, count int) error {
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProjectRepo, stack.Spec.Branch = fmt.Sprintf("http://%s/packs/%s-%d.git", t.Web, name, i), "main"
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

// RegexBombs creates Stacks with expressions whose patterns take 132 MB when they are compiled.
func (t *Tenant) RegexBombs(ctx context.Context, name string, count int) error {
	// An expression is compiled only when the Stack has something to update.
	if err := t.program(ctx, name); err != nil {
		return err
	}
	return t.each(ctx, name, count, func(stack *pulumiv1.Stack, i int) error {
		stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
		stack.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "none", ReadyExpr: RegexBomb(i)}}
		return nil
	})
}

// RegexBomb returns an expression whose pattern takes 132 MB when it is compiled. Each number gives another expression.
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
	// All of this is allowed in a pod template.
	workspace.PodTemplate = &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		InitContainers: []corev1.Container{{
			Name: "replace", Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Resources: Smallest(),
			Command:      []string{"sh", "-c", "cp /bin/fakeagent /share/agent.new && mv -f /share/agent.new /share/agent"},
			VolumeMounts: []corev1.VolumeMount{{Name: "share", MountPath: "/share"}},
		}}}}
	if err := t.Client.Create(ctx, stack); err != nil {
		return nil, fmt.Errorf("create a Stack: %w", err)
	}
	return stack, nil
}

// Request requests reconciles of the Stack as fast as the API server allows, until the context ends.
func (t *Tenant) Request(ctx context.Context, stack *pulumiv1.Stack) error {
	return t.again(ctx, func(i int) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}}}`,
			meta.ReconcileRequestAnnotation, fmt.Sprint(i), pulumiv1.ReconcileRequestAnnotation, fmt.Sprint(i))
		return t.Client.Patch(ctx, stack, client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
}

// Touch changes an annotation of the Stack once per second, until the context ends.
func (t *Tenant) Touch(ctx context.Context, stack *pulumiv1.Stack) error {
	return t.again(ctx, func(i int) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"touched":%q}}}`, fmt.Sprint(i))
		return t.Client.Patch(ctx, stack, client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
}

// Alternate makes an ExternalArtifact publish two artifacts in turn, as fast as the API server allows, until the context ends.
func (t *Tenant) Alternate(ctx context.Context, name string) error {
	return t.again(ctx, func(i int) error {
		return t.Publish(ctx, name, fmt.Sprintf("http://%s/page/%d", t.Web, i%2), "sha256:"+strings.Repeat(fmt.Sprint(i%2), 64))
	})
}

// Publish writes the status of an ExternalArtifact, and creates the object if it does not exist.
func (t *Tenant) Publish(ctx context.Context, name, url, digest string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"artifact":{"url":%q,"digest":%q,"revision":%q,"path":"x","lastUpdateTime":%q},"conditions":[`+
		`{"type":"Ready","status":"True","reason":"Succeeded","message":"stored","lastTransitionTime":%q}]}}`, url, digest, digest, now, now)
	source := &sourcev1.ExternalArtifact{Namespace: t.Namespace, Name: name}
	write := func() error {
		return t.Client.Status().Patch(ctx, source, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	err := write()
	if apierrors.IsNotFound(err) {
		if err = t.Client.Create(ctx, source); err == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("publish an artifact: %w", err)
	}
	return nil
}

// program creates a trivial Program.
func (t *Tenant) program(ctx context.Context, name string) error {
	_, err := t.programWith(ctx, name, "1")
	return err
}

// LargeProgram creates a Program that is about as large as the API server accepts.
func (t *Tenant) LargeProgram(ctx context.Context, name string) (*pulumiv1.Program, error) {
	return t.programWith(ctx, name, `"`+strings.Repeat("x", 1<<20-10<<10)+`"`)
}

// programWith creates a Program with an output, which is given as JSON.
func (t *Tenant) programWith(ctx context.Context, name, output string) (*pulumiv1.Program, error) {
	program := &pulumiv1.Program{Namespace: t.Namespace, Name: name}
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

// again repeats the function until the context ends, which is not an error.
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

// Ports and names of the web server.
const (
	webName = "web"
	webPort = 8080
)

// agentModes are the modes of agents that cost the controller time or memory.
var agentModes = []string{"info", "hang", "flap", "stream", "tarpit", "changes", "outputs", "largest"}

// Serve starts the web server in a pod that fits the restricted profile, and sets Web. The server is ready a little later.
func (t *Tenant) Serve(ctx context.Context) error {
	pod := t.Pod(webName, "web", fmt.Sprintf(":%d", webPort))
	pod.Labels = map[string]string{"app": webName}
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(webPort)},
	}
	service := &corev1.Service{ObjectMeta: pod.ObjectMeta, Spec: corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: webPort}}}}
	for _, object := range []client.Object{pod, service} {
		if err := t.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("create the web server of a tenant: %w", err)
		}
	}
	t.Web = fmt.Sprintf("%s.%s.svc.cluster.local:%d", webName, t.Namespace, webPort)
	return nil
}

// Pod returns a pod that runs the tenant's tool once, and fits the restricted profile.
func (t *Tenant) Pod(name string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		Namespace: t.Namespace, Name: name,
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []corev1.Container{{
				Name: "tool", Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, Resources: Smallest(),
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// some is the number of Stacks of each kind whose servers hang.
const some = 10

// All does everything at the same time, until the context ends. The objects stay. All calls begun as soon as all objects exist. In the
// namespaces of others, it calls Hang as well.
func (t *Tenant) All(ctx context.Context, stacks int, begun func(), others ...*Tenant) error {
	for _, start := range []func() error{
		func() error { return t.Hang(ctx) },
		func() error { return t.RegexBombs(ctx, "regex", 3*some) },
		func() error { return t.Archives(ctx, "archive") },
		func() error { return t.largePrograms(ctx, some) },
		func() error { return t.Crowd(ctx, stacks) },
	} {
		if err := start(); err != nil {
			return err
		}
	}
	for _, other := range others {
		if err := other.Hang(ctx); err != nil {
			return err
		}
	}
	var last *pulumiv1.Stack
	for _, mode := range agentModes {
		stack, err := t.Agent(ctx, "agent-"+mode, mode)
		if err != nil {
			return err
		}
		last = stack
	}
	begun()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.Request(ctx, last) })
	group.Go(func() error { return t.Alternate(ctx, "artifact-tarpit-0") })
	return group.Wait()
}

// Hang creates Stacks whose servers send one byte per second, or endless references or packfiles.
func (t *Tenant) Hang(ctx context.Context) error {
	if err := t.GitTarpits(ctx, "git-tarpit", 3*some); err != nil {
		return err
	}
	if err := t.GitReferences(ctx, "git-references", some); err != nil {
		return err
	}
	if err := t.GitPacks(ctx, "git-packs", some); err != nil {
		return err
	}
	return t.ArtifactTarpits(ctx, "artifact-tarpit", some)
}

// largePrograms creates Programs of the maximum size.
func (t *Tenant) largePrograms(ctx context.Context, count int) error {
	for i := range count {
		if _, err := t.LargeProgram(ctx, fmt.Sprint("large-", i)); err != nil {
			return err
		}
	}
	return nil
}

// Tarball returns a compressed tarball with the entries that write writes.
func Tarball(write func(*tar.Writer) error) ([]byte, error) {
	var content bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&content, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	tarball := tar.NewWriter(compressed)
	for _, step := range []func() error{func() error { return write(tarball) }, tarball.Close, compressed.Close} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("write a tarball: %w", err)
		}
	}
	return content.Bytes(), nil
}

// Bomb writes a file of 1.1 GiB.
func Bomb(w *tar.Writer) error {
	const size = 1100 << 20
	if err := w.WriteHeader(&tar.Header{Name: "Pulumi.yaml", Size: size, Mode: 0o644}); err != nil {
		return err
	}
	_, err := io.Copy(w, io.LimitReader(zeros{}, size))
	return err
}

// zeros is an endless reader of zeros.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TooManyFiles writes 120,000 empty files.
func TooManyFiles(w *tar.Writer) error { return emptyFiles(w, "file-", 120_000) }

// DeepFiles writes 5,000 empty files in 60 nested directories. Matching Patterns with them takes long.
func DeepFiles(w *tar.Writer) error { return emptyFiles(w, strings.Repeat("d/", 60)+"file-", 5000) }

func emptyFiles(w *tar.Writer, prefix string, count int) error {
	for i := range count {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(prefix, i), Mode: 0o644}); err != nil {
			return err
		}
	}
	return nil
}

// Patterns returns the maximum number of patterns of a Stack, with about the maximum length.
func Patterns() (patterns []string) {
	for i := range 256 {
		patterns = append(patterns, strings.Repeat("**/*/", 200)+fmt.Sprint(i))
	}
	return patterns
}

// PublishArchive publishes the content unchanged as the artifact of an OCIRepository: source-controller copies the layer.
func (t *Tenant) PublishArchive(ctx context.Context, name string, content []byte) error {
	layer := ociregistry.Layer{MediaType: ociregistry.ContentType, Content: content}
	if _, err := t.Registry.Push(ctx, name, "latest", ociregistry.Artifact{Layers: []ociregistry.Layer{layer}}); err != nil {
		return err
	}
	source := &sourcev1.OCIRepository{Namespace: t.Namespace, Name: name, Spec: sourcev1.OCIRepositorySpec{
		URL: t.Registry.URL(name), Insecure: true, Interval: &metav1.Duration{Duration: time.Hour}, Reference: &sourcev1.OCIRepositoryRef{Tag: "latest"},
		LayerSelector: &sourcev1.OCILayerSelector{MediaType: ociregistry.ContentType, Operation: sourcev1.OCILayerCopy},
	}}
	if err := t.Client.Create(ctx, source); err != nil {
		return fmt.Errorf("create an OCIRepository: %w", err)
	}
	return nil
}

// Archives publishes a bomb, too many files, and files for which patterns take long, and creates Stacks with them as sources.
func (t *Tenant) Archives(ctx context.Context, name string) error {
	for kind, write := range map[string]func(*tar.Writer) error{"bomb": Bomb, "entries": TooManyFiles, "patterns": DeepFiles} {
		content, err := Tarball(write)
		if err != nil {
			return err
		}
		source := name + "-" + kind
		if err := t.PublishArchive(ctx, source, content); err != nil {
			return err
		}
		if err := t.each(ctx, source, 1, func(stack *pulumiv1.Stack, _ int) error {
			stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.OCIRepositoryKind, Name: source}}
			if kind == "patterns" {
				stack.Spec.SourcePaths = Patterns()
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
