// Command upgrade shows that a new build of stack-controller runs no update of its own accord. An earlier build deploys Stacks of every kind
// of source; then this build takes over, looks at all of them, and deploys one more commit of each source. The pulumi CLI is a stub that
// counts its runs. The definitions and the rights are those of this tree from the beginning. Run it with "make upgrade FROM=<revision>".
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/command"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/load/measure"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// patience is how long one step of all Stacks may take.
	patience = 5 * time.Minute
	// quiet is how long a controller must have had nothing to do until it counts as done.
	quiet = 15 * time.Second
	// pollInterval is the time between two looks at the system.
	pollInterval = time.Second
	// logLines is how many lines of the controller's log an error shows.
	logLines = 50
)

func main() {
	command.Main("upgrade", func(ctx context.Context, args []string) error { return run(ctx, args, os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("upgrade", flag.ContinueOnError)
	from := flags.String("from", "", "the revision of this repository whose build is replaced")
	stacks := flags.Int("stacks", 100, "how many Stacks each source has")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *from == "" {
		return errors.New("-from is required")
	}
	dir, err := os.MkdirTemp("", "stack-upgrade-")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	u := &upgrade{out: out, dir: dir, stacks: *stacks}
	defer func() { err = errors.Join(err, u.stop()) }()
	return u.run(ctx, *from)
}

// upgrade is one run.
type upgrade struct {
	out       io.Writer
	dir       string // of the builds and of the stub
	stacks    int    // of each source
	system    *localsystem.System
	artifacts *systemtest.Artifacts
	sources   []*source
}

func (u *upgrade) run(ctx context.Context, from string) error {
	earlier, err := u.buildEarlier(ctx, from)
	if err != nil {
		return err
	}
	if err := u.start(ctx, earlier); err != nil {
		return err
	}
	deployed, err := u.deploy(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(u.out, "build %s has deployed %d Stacks, with %d updates\n", from, len(u.sources)*u.stacks, deployed)
	now, err := localsystem.Build(ctx, nil)
	if err != nil {
		return err
	}
	if err := u.system.StopController(); err != nil {
		return err
	}
	u.system.RunWith(now)
	if err := u.system.StartController(ctx); err != nil {
		return err
	}
	looked, err := u.awaitQuiet(ctx)
	if err != nil {
		return err
	}
	after, err := u.updates()
	if err != nil {
		return err
	}
	fmt.Fprintf(u.out, "this build has reconciled Stacks %d times, with %d updates\n", looked, after-deployed)
	if after != deployed {
		return fmt.Errorf("the upgrade has run %d updates:\n%s", after-deployed, u.system.Log(ctx, logLines))
	}
	for _, s := range u.sources {
		if err := s.commit(ctx); err != nil {
			return fmt.Errorf("commit to the source %s: %w", s.name, err)
		}
	}
	if err := u.await(ctx, "v2"); err != nil {
		return err
	}
	if after, err = u.updates(); err != nil {
		return err
	}
	fmt.Fprintf(u.out, "then a commit of each source was deployed, with %d updates\n", after-deployed)
	if after != 2*deployed {
		return fmt.Errorf("a commit of each source has run %d updates of %d Stacks", after-deployed, deployed)
	}
	return nil
}

// buildEarlier builds stack-controller at an earlier revision, with the release of Go that this revision names.
func (u *upgrade) buildEarlier(ctx context.Context, revision string) (localsystem.Binaries, error) {
	tree := filepath.Join(u.dir, "tree")
	for _, args := range [][]string{
		{"clone", "--quiet", "--no-checkout", tools.RepositoryRoot(), tree},
		{"-C", tree, "checkout", "--quiet", revision},
	} {
		if output, err := exec.CommandContext(ctx, "git", args...).CombinedOutput(); err != nil {
			return localsystem.Binaries{}, fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, output)
		}
	}
	edit := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
	edit.Dir = tree
	content, err := edit.Output()
	if err != nil {
		return localsystem.Binaries{}, fmt.Errorf("read go.mod of %s: %w", revision, err)
	}
	var module struct{ Toolchain string }
	if err := json.Unmarshal(content, &module); err != nil {
		return localsystem.Binaries{}, fmt.Errorf("read go.mod of %s: %w", revision, err)
	}
	release := cmp.Or(module.Toolchain, "local")
	built := localsystem.Binaries{Controller: filepath.Join(u.dir, "stack-controller"), Agent: filepath.Join(u.dir, "agent")}
	for path, pkg := range map[string]string{built.Controller: ".", built.Agent: "./cmd/agent"} {
		command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, pkg)
		command.Dir = tree
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN="+release)
		if output, err := command.CombinedOutput(); err != nil {
			return localsystem.Binaries{}, fmt.Errorf("build %s at %s: %w\n%s", pkg, revision, err, output)
		}
	}
	return built, nil
}

// start starts the system with the build.
func (u *upgrade) start(ctx context.Context, build localsystem.Binaries) (err error) {
	stub := filepath.Join(u.dir, "pulumi")
	if err := os.Mkdir(filepath.Join(u.dir, "stacks"), 0o700); err != nil { // where the stub keeps its Stacks
		return err
	}
	if err := tools.Compile(ctx, "stubpulumi", tools.RepositoryRoot(), "./tests/load/scale/stubpulumi", stub, []string{"-trimpath"}, nil); err != nil {
		return err
	}
	u.system, err = localsystem.Start(ctx, localsystem.Options{
		Log: u.out, Pulumi: stub, Binaries: &build,
		ControllerArgs: []string{"--max-operations=0", "--workspace-idle-timeout=3s", "--feature-gates=ExternalArtifact=true"},
	})
	if err != nil {
		return err
	}
	registry, err := ociregistry.Start(ctx, u.system.ControlPlane)
	if err != nil {
		return err
	}
	store, err := objectstore.Start(ctx, u.system.ControlPlane)
	if err != nil {
		return err
	}
	u.artifacts = systemtest.ServeArtifacts()
	u.sources = []*source{
		u.gitRepository(), u.ociRepository(registry), u.bucket(store), u.externalArtifact(), u.gitServer(), u.program(),
	}
	return nil
}

func (u *upgrade) stop() (err error) {
	if u.artifacts != nil {
		u.artifacts.Close()
	}
	if u.system != nil {
		err = u.system.Stop()
	}
	return err
}

// deploy creates the sources and their Stacks, waits until all are ready, and returns the number of updates.
func (u *upgrade) deploy(ctx context.Context) (updates int, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, s := range u.sources {
		template, err := s.create(ctx)
		if err != nil {
			return 0, fmt.Errorf("create the source %s: %w", s.name, err)
		}
		for i := range u.stacks {
			stack := template.DeepCopy()
			stack.Name = fmt.Sprintf("stack-%03d", i)
			stack.Spec.Stack = stack.Name
			group.Go(func() error { return u.system.Client.Create(groupCtx, stack) })
		}
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	if err := u.await(ctx, "v1"); err != nil {
		return 0, err
	}
	updates, err = u.updates()
	if err == nil && updates != len(u.sources)*u.stacks {
		err = fmt.Errorf("%d Stacks have run %d updates", len(u.sources)*u.stacks, updates)
	}
	return updates, err
}

// await waits until all Stacks are ready with the value as their output.
func (u *upgrade) await(ctx context.Context, value string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		stacks := &pulumiv1.StackList{}
		if err := u.system.Client.List(ctx, stacks); err != nil {
			return fmt.Errorf("list the Stacks: %w", err)
		}
		var open *pulumiv1.Stack
		for i := range stacks.Items {
			stack := &stacks.Items[i]
			if !statuscheck.Ready("")(stack) || strings.Trim(string(stack.Status.Outputs["value"].Raw), `"`) != value {
				open = stack
			}
		}
		if open == nil {
			return nil
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("wait for Stack %s with %s: %v: %w", client.ObjectKeyFromObject(open), value, open.Status.Conditions, err)
		}
	}
}

// awaitQuiet waits until the controller has reconciled every Stack and then has had nothing to do for a while. It returns how often it has
// reconciled Stacks.
func (u *upgrade) awaitQuiet(ctx context.Context) (reconciles int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for since := time.Now(); ; {
		ended, busy, err := u.progress(ctx)
		if err != nil {
			return 0, err
		}
		if ended != reconciles || busy {
			reconciles, since = ended, time.Now()
		}
		if reconciles >= len(u.sources)*u.stacks && time.Since(since) >= quiet {
			return reconciles, nil
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return 0, fmt.Errorf("the controller does not come to rest after %d reconciles: %w", reconciles, err)
		}
	}
}

// progress returns how many reconciles of Stacks have ended, and whether there is a reconcile or an Update that has not.
func (u *upgrade) progress(ctx context.Context) (ended int, busy bool, err error) {
	metrics, err := u.metrics(ctx)
	if err != nil {
		return 0, false, err
	}
	for labels, count := range measure.Series(metrics, "controller_runtime_reconcile_total") {
		if labels["controller"] == "stack" {
			ended += int(count)
		}
	}
	for _, name := range []string{"workqueue_depth", "controller_runtime_active_workers"} {
		for _, count := range measure.Series(metrics, name) {
			busy = busy || count > 0
		}
	}
	updates := &autov1alpha1.UpdateList{}
	if err := u.system.Client.List(ctx, updates); err != nil {
		return 0, false, fmt.Errorf("list the Updates: %w", err)
	}
	for i := range updates.Items {
		busy = busy || !updates.Items[i].IsComplete()
	}
	return ended, busy, nil
}

func (u *upgrade) metrics(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+u.system.MetricsAddr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("read the metrics: %w", err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return string(content), err
}

// updates returns how often the stub has run "pulumi up".
func (u *upgrade) updates() (int, error) {
	calls, err := os.ReadFile(filepath.Join(u.dir, "calls"))
	if err != nil {
		return 0, fmt.Errorf("read the calls of the stub: %w", err)
	}
	return strings.Count(string(calls), "\tup\t"), nil
}
