package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/command"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	steps = 6
	// name is the name of the git repository, the namespace, the GitRepository and the Stack.
	name = "demo"
	// patience bounds each wait for the Stack. Each of them takes seconds.
	patience = 2 * time.Minute
	// bareRuns is how often the bare "pulumi up" is measured.
	bareRuns = 3
)

//go:embed testdata
var testdata embed.FS

// demo is one run of the demo.
type demo struct {
	*printer
	record *leftovers.Record
	dir    string
	system *localsystem.System
	app    *localsystem.App
	bare   time.Duration
}

func newDemo(out io.Writer) (*demo, error) {
	d := &demo{printer: newPrinter(out, steps)}
	var err error
	if d.record, err = leftovers.New(recordKind); err != nil {
		return nil, err
	}
	// The directory is not in the cache, because the path of a unix socket must be short.
	d.dir, err = d.record.NewDirectory("stack-demo-")
	return d, err
}

// show runs all steps. What it starts runs until stop is called.
func (d *demo) show(ctx context.Context) error {
	program, err := readProgram()
	if err != nil {
		return err
	}
	if err := d.startServers(ctx); err != nil {
		return err
	}
	if err := d.apply(ctx, program); err != nil {
		return err
	}
	if err := d.awaitReady(ctx); err != nil {
		return err
	}
	if err := d.measureBare(ctx, program); err != nil {
		return err
	}
	if err := d.followCommit(ctx, changed(program, "new world")); err != nil {
		return err
	}
	return d.showTree(ctx)
}

// stop stops and removes everything. It returns the given error joined with its own.
func (d *demo) stop(err error) error {
	if d.system != nil {
		err = errors.Join(err, d.system.Stop())
	}
	return errors.Join(err, d.record.Remove())
}

func (d *demo) startServers(ctx context.Context) error {
	d.title("Start a control plane, Flux's source-controller and stack-controller")
	var err error
	d.system, err = localsystem.Start(ctx, localsystem.Options{Log: d, Dir: d.dir})
	return err
}

// apply pushes the program and applies the manifests, as a user would.
func (d *demo) apply(ctx context.Context, program gitserver.Files) error {
	d.title("Push a Pulumi program and apply a GitRepository and a Stack")
	repository, sha, err := d.system.Git.Create(name, program)
	if err != nil {
		return err
	}
	d.app = &localsystem.App{Namespace: name, Name: name, Repository: repository}
	d.text("commit %s in %s", sha, repository.URL)
	manifests, err := testdata.ReadFile("testdata/manifests/demo.yaml")
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	expanded := strings.NewReplacer("${REPOSITORY}", repository.URL, "${BACKEND}", d.system.BackendURL).Replace(string(manifests))
	output, err := d.system.ControlPlane.KubectlInput(ctx, expanded, "apply", "--filename=-")
	if err != nil {
		return err
	}
	d.text("$ kubectl apply -f demo.yaml\n%s", output)
	return nil
}

func (d *demo) awaitReady(ctx context.Context) error {
	d.title("Wait until the Stack is Ready")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stack, err := d.system.WaitReady(ctx, d.app)
	if err != nil {
		return err
	}
	return d.showObjects(ctx, stack)
}

// showObjects prints the output of kubectl, and the part of the status that shows what was deployed.
func (d *demo) showObjects(ctx context.Context, stack *pulumiv1.Stack) error {
	args := []string{"get", "stack,workspace,update", "--namespace=" + name}
	output, err := d.system.ControlPlane.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	d.text("$ kubectl get stack,workspace,update -n %s\n%s", name, output)
	d.text("")
	status, err := yaml.Marshal(map[string]any{"status": map[string]any{
		"lastAppliedRevision": stack.Status.LastAppliedRevision,
		"lastUpdate":          stack.Status.LastUpdate,
		"outputs":             stack.Status.Outputs,
	}})
	if err != nil {
		return fmt.Errorf("show the status: %w", err)
	}
	d.text("$ kubectl get stack %s -n %s -o yaml   # shortened\n%s", name, name, status)
	return nil
}

// measureBare runs pulumi directly on the same program. Each run changes the program, as a commit does.
func (d *demo) measureBare(ctx context.Context, program gitserver.Files) error {
	d.title("Measure a bare \"pulumi up\" of the same program")
	bare, err := d.system.NewBare(ctx, program)
	if err != nil {
		return err
	}
	var runs []time.Duration
	for i := range bareRuns {
		duration, err := bare.Up(ctx, changed(program, fmt.Sprintf("world %d", i)))
		if err != nil {
			return err
		}
		runs = append(runs, duration)
	}
	slices.Sort(runs)
	d.bare = runs[len(runs)/2]
	d.text("%.2f s, the median of %d", d.bare.Seconds(), bareRuns)
	return nil
}

func (d *demo) followCommit(ctx context.Context, files gitserver.Files) error {
	d.title("Push a commit and watch the Stack follow it")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	rollout, err := d.system.Rollout(ctx, d.app, files)
	if err != nil {
		return err
	}
	d.text("commit   %s\nartifact %s", rollout.SHA, rollout.Digest)
	stack := &pulumiv1.Stack{}
	if err := d.system.Client.Get(ctx, d.app.Key(), stack); err != nil {
		return fmt.Errorf("read the Stack: %w", err)
	}
	d.text("message  %s", stack.Status.Outputs["message"].Raw)
	d.text("")
	d.text("from the new artifact to succeeded   %5.2f s", rollout.Duration().Seconds())
	d.text("a bare \"pulumi up\"                   %5.2f s", d.bare.Seconds())
	d.text("ratio                                %5.2f", rollout.Duration().Seconds()/d.bare.Seconds())
	return nil
}

// showTree prints what belongs to the Stack, as the command line shows it.
func (d *demo) showTree(ctx context.Context) error {
	d.title("Look at the Stack with all that belongs to it")
	args := []string{"tree", "stack", name, "--namespace=" + name}
	d.text("$ flux pulumi %s", strings.Join(args, " "))
	environment := command.Environment{Program: "flux-pulumi", In: strings.NewReader(""), Out: d, Err: d, Getenv: os.Getenv, Now: time.Now}
	if code := command.Main(ctx, environment, append(args, "--kubeconfig="+d.system.ControlPlane.KubeconfigPath)); code != 0 {
		return fmt.Errorf("flux pulumi tree ended with the exit code %d", code)
	}
	return nil
}

func readProgram() (gitserver.Files, error) {
	const program = "testdata/program/Pulumi.yaml"
	content, err := testdata.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the program: %w", err)
	}
	return gitserver.Files{filepath.Base(program): string(content)}, nil
}

// changed returns the program with another audience, which changes its output.
func changed(program gitserver.Files, audience string) gitserver.Files {
	files := gitserver.Files{}
	for path, content := range program {
		files[path] = strings.ReplaceAll(content, "audience: world", "audience: "+audience)
	}
	return files
}

// invitation returns instructions for using the running system.
func (d *demo) invitation() string {
	kubectl, err := tools.Path(context.Background(), "kubectl", nil)
	if err != nil {
		kubectl = "kubectl"
	}
	return fmt.Sprintf(`
Everything keeps running. To play with it:

export KUBECONFIG=%s
export PATH=%s:$PATH
kubectl get stacks,workspaces,updates -n %s
git clone %s

The log of stack-controller is %s.
"make demo-clean" ends and removes it all.
`, d.system.ControlPlane.KubeconfigPath, filepath.Dir(kubectl), name, d.app.Repository.URL, d.system.ControllerLog())
}
