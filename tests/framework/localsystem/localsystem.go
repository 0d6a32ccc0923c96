// Package localsystem sets up the whole running system on one machine: control plane, source-controller, a git server, and stack-controller as a
// separate process, with the process runtime and only the rights of its ClusterRole. The demo, the benchmarks and the end-to-end tests use
// it.
package localsystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
)

// Options configure the system.
type Options struct {
	// Log receives a line per step. Nil discards the lines.
	Log io.Writer
	// Dir holds all files; see controlplane.Options.
	Dir string
	// WithNotificationController also runs Flux's notification-controller, and sends events to it.
	WithNotificationController bool
	// WithKustomizeController also runs Flux's kustomize-controller.
	WithKustomizeController bool
	// ProfilingAPIServer lets the API server serve profiles of itself.
	ProfilingAPIServer bool
	// ControllerArgs are further flags of stack-controller.
	ControllerArgs []string
	// ControllerEnv are further environment variables of stack-controller, as NAME=value.
	ControllerEnv []string
	// Binaries are the executables to run. Nil means those of this tree, which are compiled unless that was done for this run.
	Binaries *Binaries
	// Pulumi is the CLI that stack-controller runs, for example a wrapper for measurements. Empty means the pinned one.
	Pulumi string
}

// System is the running system.
type System struct {
	*Apps
	// ControlPlane has the API server and Flux.
	ControlPlane *controlplane.ControlPlane
	// Dir holds all files, and is removed by Stop.
	Dir string
	// MetricsAddr is the host and port of the metrics of the stack-controller that was started last, without those of StartShard.
	MetricsAddr string

	options    Options
	binaries   Binaries
	kubeconfig string // stack-controller's
	controller *supervise.Process
}

// Start builds stack-controller, starts the servers and then stack-controller, and returns when it is ready. When it fails, it stops what
// it had started.
func Start(ctx context.Context, options Options) (*System, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	s := &System{Apps: &Apps{}, options: options}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *System) start(ctx context.Context) (err error) {
	if s.options.Binaries != nil {
		s.binaries = *s.options.Binaries
	} else if s.binaries, err = Build(ctx, s.progress); err != nil {
		return err
	}
	s.ControlPlane, err = controlplane.Start(ctx, controlplane.Options{
		Log:                        s.options.Log,
		Dir:                        s.options.Dir,
		Profiling:                  s.options.ProfilingAPIServer,
		WithControllerManager:      true,
		WithSourceController:       true,
		WithNotificationController: s.options.WithNotificationController,
		WithKustomizeController:    s.options.WithKustomizeController,
	})
	if err != nil {
		return err
	}
	s.Dir = s.ControlPlane.Dir
	state := filepath.Join(s.Dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return fmt.Errorf("create the directory of the state: %w", err)
	}
	s.BackendURL = "file://" + state
	s.Log = func(_ context.Context, lines int) string { return controlplane.Tail(s.ControllerLog(), lines) }
	if s.Git, err = gitserver.Start(filepath.Join(s.Dir, "git")); err != nil {
		return err
	}
	if s.Client, err = NewClient(s.ControlPlane.Config()); err != nil {
		return err
	}
	if s.kubeconfig, err = s.createAccount(ctx); err != nil {
		return err
	}
	return s.StartController(ctx)
}

// Stop ends everything, including agents, and removes all files. It may be called more than once.
func (s *System) Stop() error {
	if s.Git != nil {
		s.Git.Stop()
	}
	return s.ControlPlane.Stop()
}

// NewClient returns a client without a cache for all kinds that the tests use.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, sourcev1.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return c, nil
}

// Binaries are the paths of the product's executables.
type Binaries struct {
	Controller string
	Agent      string
}

// Build returns the product's executables, and compiles them unless that was done for this run.
func Build(ctx context.Context, progress func(string)) (b Binaries, err error) {
	if b.Controller, err = programs.Path(ctx, programs.Controller, progress); err == nil {
		b.Agent, err = programs.Path(ctx, programs.Agent, progress)
	}
	return b, err
}
