package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// podPatience bounds each wait that includes the start of pods.
	podPatience  = 5 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// Workspaces whose calls of pulumi are logged run the wrapper at wrapperMount. It writes to callsFile in the directory of the state, which
// is on this machine.
const (
	wrapperName  = "wrapper"
	wrapperMount = "/wrapper"
	imageCLI     = "/pulumi/bin/pulumi"
	imagePath    = "/pulumi/bin:/usr/local/bin:/usr/bin:/bin"
	callsFile    = "calls"
)

// The limits of the measurements in pods.
const (
	// maxCommitRatio limits the time from a new artifact to the success of the Stack, divided by the time of a bare update.
	maxCommitRatio = 3.0
	// maxManyRatio limits the time that many Stacks take with one commit, divided by the ideal: the processor time of as many bare updates,
	// divided by the number of processors.
	maxManyRatio = 1.5
	// maxTenantsRatio limits the time from a commit to the success of the Stack while another tenant causes as much load as it can, divided
	// by the same time on a quiet system.
	maxTenantsRatio = 2.0
	// maxAgentMemory is the resident memory of an idle agent, in MB.
	maxAgentMemory = 25.0
)

// podBench measures the pod runtime on a cluster of its own.
type podBench struct {
	settings
	system *podsystem.System
	limits *measure.Limits
	out    io.Writer
	// bare is the pod in which the benchmark runs pulumi without stack-controller.
	bare *barePod
	// pods are the pods that must not be restarted, as they were when they were noted.
	pods restarts
}

// benchPods measures the pod runtime.
func benchPods(ctx context.Context, s settings, limits *measure.Limits, out io.Writer) (err error) {
	system, err := podsystem.Start(ctx, podsystem.Options{
		Log: out, WithLanguages: slices.Contains(s.parts(), "typescript"),
		// The gate is for the tenant that causes as much load as it can.
		ControllerArgs: []string{"--feature-gates=ExternalArtifact=true", "--agent-image-volume=" + s.agentVolume},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system.Stop()) }()
	b := &podBench{settings: s, system: system, limits: limits, out: out, pods: restarts{}}
	parts := map[string]func(context.Context) error{
		"typescript": b.typescript, "coldstarts": b.coldStarts, "commits": b.commits, "many": b.many, "idleness": b.idleness, "tenants": b.tenants,
	}
	for _, name := range s.parts() {
		if name == "tenants" { // the tenant that causes load restarts what it can
			if err := b.unrestarted(ctx); err != nil {
				return err
			}
		}
		if err := parts[name](ctx); err != nil {
			return err
		}
	}
	return nil
}

// provide creates a namespace with a GitRepository that is ready, and returns a Stack for it that is not created yet. The Stack's calls of
// pulumi are logged.
func (b *podBench) provide(ctx context.Context, name string) (*localsystem.App, *pulumiv1.Stack, error) {
	return b.provideProject(ctx, name, program("first"))
}

// provideProject is provide with the files of another project.
func (b *podBench) provideProject(ctx context.Context, name string, files gitserver.Files) (*localsystem.App, *pulumiv1.Stack, error) {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	app, stack, err := b.system.Provide(ctx, name, files)
	if err != nil {
		return nil, nil, err
	}
	script := &corev1.ConfigMap{
		Namespace: app.Namespace, Name: wrapperName,
		Data: map[string]string{"pulumi": wrapper(imageCLI, filepath.Join(b.stateMount(), callsFile))},
	}
	if err := b.system.Client.Create(ctx, script); err != nil {
		return nil, nil, fmt.Errorf("create the wrapper of the CLI: %w", err)
	}
	noteCalls(stack)
	return app, stack, b.awaitSource(ctx, app)
}

// stateMount returns the path at which pods mount the directory of the state.
func (b *podBench) stateMount() string {
	return b.system.WorkspaceSpec().PodTemplate.Spec.Containers[0].VolumeMounts[0].MountPath
}

// calls returns the log of the calls of wrapped CLIs.
func (b *podBench) calls() *callLog {
	return &callLog{path: filepath.Join(b.system.StateDir(), callsFile)}
}

// noteCalls makes the workspace run the wrapper instead of the CLI.
func noteCalls(stack *pulumiv1.Stack) {
	spec := stack.Spec.WorkspaceTemplate.Spec.PodTemplate.Spec
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: wrapperName,
		ConfigMap: &corev1.ConfigMapVolumeSource{
			Name: wrapperName, DefaultMode: ptr.To[int32](0o555),
		}})
	pulumi := &spec.Containers[0]
	pulumi.VolumeMounts = append(pulumi.VolumeMounts, corev1.VolumeMount{Name: wrapperName, MountPath: wrapperMount, ReadOnly: true})
	pulumi.Env = append(pulumi.Env, corev1.EnvVar{Name: "PATH", Value: wrapperMount + ":" + imagePath})
}

// named returns a copy of the Stack with another name and another stack in the backend.
func named(stack *pulumiv1.Stack, name string) *pulumiv1.Stack {
	other := stack.DeepCopy()
	other.Name, other.Spec.Stack = name, name
	return other
}

// awaitSource waits until the app's GitRepository has an artifact.
func (b *podBench) awaitSource(ctx context.Context, app *localsystem.App) error {
	for {
		source := &sourcev1.GitRepository{}
		if err := b.system.Client.Get(ctx, app.Key(), source); err != nil {
			return fmt.Errorf("read GitRepository %s: %w", app.Key(), err)
		}
		if source.Status.Artifact != nil {
			return nil
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("wait for the artifact of GitRepository %s: %w", app.Key(), err)
		}
	}
}

// commits measures the time from a commit to the success of its Stack. It starts the bare pod.
func (b *podBench) commits(ctx context.Context) error {
	app, stack, err := b.provide(ctx, "commit")
	if err != nil {
		return err
	}
	if err := b.deploy(ctx, app, named(stack, app.Name)); err != nil {
		return err
	}
	b.bare, err = startBarePod(ctx, b.system, app.Namespace, b.stacks, program("first"))
	if err != nil {
		return err
	}
	if err := b.notePods(ctx, app.Namespace); err != nil {
		return err
	}
	m, err := measureCommits(ctx, "run", b.runs, subject{apps: b.system.Apps, app: app, calls: b.calls(), bare: b.bare.took})
	if err != nil {
		return err
	}
	m.print(b.out, "one commit, workspaces as pods")
	b.limits.Check("commit → succeeded in a pod, beside a bare update", m.ratio(), maxCommitRatio)
	return nil
}

// deploy creates the Stacks and waits until all are ready.
func (b *podBench) deploy(ctx context.Context, app *localsystem.App, stacks ...*pulumiv1.Stack) error {
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	for _, stack := range stacks {
		if err := b.system.Client.Create(ctx, stack); err != nil {
			return fmt.Errorf("create Stack %s: %w", stack.Name, err)
		}
	}
	for _, stack := range stacks {
		if _, err := b.system.WaitReady(ctx, &localsystem.App{Namespace: app.Namespace, Name: stack.Name}); err != nil {
			return err
		}
	}
	return nil
}

// restarts holds the pods that must stay as they are, by namespace and name.
type restarts map[types.NamespacedName]identity

// identity changes when a pod is replaced or one of its containers is started again.
type identity struct {
	uid      types.UID
	restarts int32
}

func identityOf(pod *corev1.Pod) identity {
	id := identity{uid: pod.UID}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		id.restarts += status.RestartCount
	}
	return id
}

// note adds pods in their current state.
func (r restarts) note(pods []corev1.Pod) {
	for i := range pods {
		r[client.ObjectKeyFromObject(&pods[i])] = identityOf(&pods[i])
	}
}

// changed returns which of the pods changed and how, sorted.
func (r restarts) changed(pods []corev1.Pod) []string {
	now := restarts{}
	now.note(pods)
	var changes []string
	for key, before := range r {
		switch after, exists := now[key]; {
		case !exists:
			changes = append(changes, fmt.Sprintf("pod %s is gone", key))
		case after.uid != before.uid:
			changes = append(changes, fmt.Sprintf("pod %s was replaced", key))
		case after.restarts != before.restarts:
			changes = append(changes, fmt.Sprintf("containers of pod %s were started again %d times", key, after.restarts-before.restarts))
		}
	}
	slices.Sort(changes)
	return changes
}

// notePods adds the pods of the namespaces and the pods of the controllers to the pods that must not be restarted.
func (b *podBench) notePods(ctx context.Context, namespaces ...string) error {
	for _, namespace := range append(namespaces, cluster.FluxNamespace) {
		pods := &corev1.PodList{}
		if err := b.system.Client.List(ctx, pods, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		b.pods.note(pods.Items)
	}
	return nil
}

// unrestarted fails if a pod was replaced or restarted during the measurements.
func (b *podBench) unrestarted(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := b.system.Client.List(ctx, pods); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	if changes := b.pods.changed(pods.Items); len(changes) > 0 {
		return fmt.Errorf("pods did not stay as they were: %s", strings.Join(changes, "; "))
	}
	fmt.Fprintf(b.out, "\n%d pods were watched over all measurements: none was replaced, no container was started again.\n", len(b.pods))
	return nil
}
