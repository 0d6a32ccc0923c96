package pressure

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Ports and names of the web server.
const (
	webName = "web"
	webPort = 8080
)

// agentModes are those of agents that cost somebody something.
var agentModes = []string{"info", "hang", "flap", "stream", "tarpit", "changes", "outputs", "largest"}

// Serve starts the web server, in a pod within the restricted profile, and sets Web. It answers a little later.
func (t *Tenant) Serve(ctx context.Context) error {
	pod := t.Pod(webName, "web", fmt.Sprintf(":%d", webPort))
	pod.Labels = map[string]string{"app": webName}
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(webPort)}},
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

// Pod is a pod that runs the tenant's tool once, within the restricted profile.
func (t *Tenant) Pod(name string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []corev1.Container{{
				Name: "tool", Image: t.Image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args, Resources: Smallest(),
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// some is how many there are of what hangs.
const some = 10

// All does everything at once, and goes on until the context ends. What it created stays. It calls begun as soon as everything is there. In the
// namespaces of the others is what hangs, once more.
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

// Hang creates Stacks whose servers send a byte per second, or references without an end.
func (t *Tenant) Hang(ctx context.Context) error {
	if err := t.GitTarpits(ctx, "git-tarpit", 3*some); err != nil {
		return err
	}
	if err := t.GitReferences(ctx, "git-references", some); err != nil {
		return err
	}
	return t.ArtifactTarpits(ctx, "artifact-tarpit", some)
}

// largePrograms creates Programs that are as large as they may be.
func (t *Tenant) largePrograms(ctx context.Context, count int) error {
	for i := range count {
		if _, err := t.LargeProgram(ctx, fmt.Sprint("large-", i)); err != nil {
			return err
		}
	}
	return nil
}
