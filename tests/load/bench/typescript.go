package main

import (
	"archive/tar"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// maxTypeScriptRatio limits a commit to a TypeScript program, and maxInstallRatio its first deployment from the moment when the pod is
	// ready, both divided by the same by hand in a pod with the same image.
	maxTypeScriptRatio = 1.05
	maxInstallRatio    = 1.1
	// installRuns is how often a first deployment is measured.
	installRuns = 3
	// typeScriptFile is the file of the program that commits change.
	typeScriptFile = "index.ts"
)

// bareInstall unpacks the project on standard input, and deploys it for the first time. It prints the uptime of the machine before and after.
const bareInstall = `set -e
cd ` + bareHome + `/program
tar -x
read start _ </proc/uptime
pulumi install >/tmp/install 2>&1 || { cat /tmp/install >&2; exit 1; }
pulumi stack init --non-interactive "$1" >/dev/null 2>&1
pulumi up --yes --skip-preview --non-interactive --stack "$1" >/tmp/up 2>&1 || { cat /tmp/up >&2; exit 1; }
read end _ </proc/uptime
echo "$start $end"`

// typeScriptProgram is a project in TypeScript, with Pulumi's SDK and an output.
func typeScriptProgram(output string) gitserver.Files {
	return gitserver.Files{typeScriptFile: fmt.Sprintf(`import * as pulumi from "@pulumi/pulumi";

export const value = pulumi.output(%q).apply(text => text.toUpperCase());
`, output)}
}

// typescript measures the first deployment of a program in TypeScript, and commits to it.
func (b *podBench) typescript(ctx context.Context) error {
	project, err := gitserver.FilesFromDir(filepath.Join(tools.RepositoryRoot(), "tests", "e2e", "languages", "testdata", "features"))
	if err != nil {
		return err
	}
	maps.Copy(project, typeScriptProgram("first"))
	app, stack, err := b.provideProject(ctx, "typescript", project)
	if err != nil {
		return err
	}
	b.useLanguages(stack)
	var first, byHand, pods measure.Samples
	var calls []call
	var bare *barePod // the last one
	for run := range installRuns + 1 {
		bare = b.typeScriptPod(app.Namespace, fmt.Sprintf("hand-%d", run))
		if err := bare.start(ctx); err != nil {
			return err
		}
		hand, err := bare.install(ctx, project, bare.pod.Name)
		if err != nil {
			return err
		}
		ready, done, err := b.firstDeployment(ctx, named(stack, fmt.Sprintf("first-%d", run)))
		if err != nil {
			return err
		}
		if calls, err = b.calls().read(); err != nil {
			return err
		}
		if run > 0 { // the mirror of packages gets them only once
			byHand, first, pods = append(byHand, hand), append(first, done-ready), append(pods, done)
		}
	}

	if err := b.deploy(ctx, app, named(stack, app.Name)); err != nil {
		return err
	}
	if _, err := bare.shell(ctx, bareInit, typeScriptProgram("first"), bareStack); err != nil {
		return err
	}
	m, err := measureCommits(ctx, "run", b.runs, subject{
		apps: b.system.Apps, app: app, calls: b.calls(), bare: bare.took, program: typeScriptProgram,
	})
	if err != nil {
		return err
	}
	peak, err := b.peakMemory(ctx, app)
	if err != nil {
		return err
	}
	m.print(b.out, "one commit to a TypeScript program")
	t := measure.NewTable(b.out, "a TypeScript program for the first time, with npm install", fmt.Sprintf("median of %d", installRuns))
	t.Cells("by hand in a new pod that is ready", measure.Milliseconds(byHand.Median()))
	t.Cells("Workspace Ready → Stack succeeded", measure.Milliseconds(first.Median()))
	t.Cells("Stack created → Stack succeeded", measure.Milliseconds(pods.Median()))
	for _, call := range calls {
		t.Cells("  pulumi "+call.command+", the last time", measure.Milliseconds(call.end.Sub(call.start)))
	}
	t.Cells("most memory of the container so far", fmt.Sprintf("%.0f MB", float64(peak)/1e6))
	t.Flush()
	b.limits.Check("commit → succeeded of a TypeScript program, beside a bare update", m.ratio(), maxTypeScriptRatio)
	b.limits.Check("first deployment of a TypeScript program, beside the same by hand", float64(first.Median())/float64(byHand.Median()), maxInstallRatio)
	return nil
}

// typeScriptPod returns a pod for pulumi by hand, with the image and the kinds of volumes that a workspace has.
func (b *podBench) typeScriptPod(namespace, name string) *barePod {
	bare := &barePod{system: b.system, pod: bareSpec(b.system, namespace, name), file: typeScriptFile}
	container := &bare.pod.Spec.Containers[0]
	container.Image = b.system.Images.Languages.Reference
	container.Env = append(container.Env, corev1.EnvVar{Name: "npm_config_registry", Value: b.system.Packages.NPM})
	bare.pod.Spec.Volumes = append(slices.Clone(bare.pod.Spec.Volumes), corev1.Volume{Name: "program", EmptyDir: &corev1.EmptyDirVolumeSource{}})
	container.VolumeMounts = append(slices.Clone(container.VolumeMounts), corev1.VolumeMount{Name: "program", MountPath: bareHome + "/program"})
	return bare
}

// useLanguages makes the Stack use the image with Node.js, and the mirror of its packages.
func (b *podBench) useLanguages(stack *pulumiv1.Stack) {
	stack.Spec.WorkspaceTemplate.Spec.Image = b.system.Images.Languages.Reference
	stack.Spec.EnvRefs["npm_config_registry"] = pulumiv1.ResourceRef{
		Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: b.system.Packages.NPM},
	}
}

// firstDeployment creates the Stack, and returns when its pod was ready and when it had succeeded, since its creation. It removes the Stack.
func (b *podBench) firstDeployment(ctx context.Context, stack *pulumiv1.Stack) (ready, done time.Duration, err error) {
	if err := b.calls().reset(); err != nil {
		return 0, 0, err
	}
	milestones := stackMilestones(stack.Name)
	reached, err := follow(ctx, b.system.Client, stack, milestones, &autov1alpha1.WorkspaceList{}, &appsv1.StatefulSetList{},
		&corev1.PodList{}, &autov1alpha1.UpdateList{}, &pulumiv1.StackList{})
	if err != nil {
		return 0, 0, err
	}
	at := func(name string) time.Duration {
		return reached[slices.IndexFunc(milestones, func(m milestone) bool { return m.name == name })]
	}
	return at("Workspace Ready"), at("Stack succeeded"), b.remove(ctx, stack, stack.Name+"-workspace-0")
}

// peakMemory returns the most memory that the container of the app's Workspace has used so far, in bytes.
func (b *podBench) peakMemory(ctx context.Context, app *localsystem.App) (int64, error) {
	output, err := b.system.Cluster.Kubectl(ctx, "exec", "--namespace="+app.Namespace, app.Name+"-workspace-0", "--container=pulumi", "--", "sh", "-c",
		"cat /sys/fs/cgroup/memory.peak 2>/dev/null || cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes")
	if err != nil {
		return 0, err
	}
	peak, err := strconv.ParseInt(strings.TrimSpace(output), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of the pod: %w", err)
	}
	return peak, nil
}

// install deploys a project for the first time, and returns how long it took.
func (b *barePod) install(ctx context.Context, project gitserver.Files, stack string) (time.Duration, error) {
	var archive strings.Builder
	tarball := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(project)) {
		if err := tarball.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(project[name]))}); err != nil {
			return 0, err
		}
		if _, err := tarball.Write([]byte(project[name])); err != nil {
			return 0, err
		}
	}
	if err := tarball.Close(); err != nil {
		return 0, err
	}
	output, err := b.run(ctx, bareInstall, archive.String(), stack)
	if err != nil {
		return 0, err
	}
	started, ended, _ := strings.Cut(strings.TrimSpace(output), " ")
	start, err := uptime(started)
	if err != nil {
		return 0, err
	}
	end, err := uptime(ended)
	return end - start, err
}
