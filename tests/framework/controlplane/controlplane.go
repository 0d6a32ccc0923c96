// Package controlplane runs a real Kubernetes control plane, without a node, on loopback and without privileges: etcd, kube-apiserver with
// RBAC and, if the options ask for them, kube-controller-manager (owner garbage collection, namespace deletion, ServiceAccount tokens) and
// Flux's source-controller, notification-controller and kustomize-controller, as plain processes.
//
// The binaries come from tests/tools. Every process belongs to a supervisor (tests/framework/supervise), so that nothing is left behind, however the
// program that called Start ends. Package cluster adds a node, in a network namespace.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// startTimeout bounds the start of each server. On a quiet machine the slowest server needs a few seconds.
const startTimeout = 90 * time.Second

// Options selects what Start starts.
type Options struct {
	// Log gets a line per step, including the builds of missing binaries. Nil discards the lines.
	Log io.Writer
	// Dir holds all files that the servers write, including their logs (NAME.log). Stop removes it. The path must be short enough for the
	// path of a unix socket in it (about 90 characters). Empty means a new temporary directory.
	Dir string
	// CRDs are files and directories with definitions to install before any server watches their kinds. Nil means the product's own
	// definitions and those of Flux's sources; an empty slice means none.
	CRDs []string
	// NewNetwork creates the network in which the servers listen. It is called when the directory and the supervisor exist. Nil means
	// loopback. Another network may have nodes, and the servers are configured for them.
	NewNetwork func(context.Context, *ControlPlane) (Network, error)
	// Alongside, if not nil, runs while the servers start. It begins when the network exists, and Start waits for it.
	Alongside func(context.Context) error
	// Users are additional users with a token (see TokenConfig), and their groups.
	Users map[string][]string
	// AdmissionPlugins are plugins of the API server that are off by default.
	AdmissionPlugins []string
	// Profiling lets the API server serve profiles of itself, below /debug/pprof.
	Profiling bool
	// WithControllerManager runs kube-controller-manager. Its garbage collector may need up to 30 seconds to notice kinds that are
	// installed after the start.
	WithControllerManager bool
	// MoreControllers are names of additional controllers of kube-controller-manager. They matter only without nodes, where it runs few
	// controllers.
	MoreControllers []string
	// WithSourceController runs Flux's source-controller and installs its CRDs.
	WithSourceController bool
	// WithNotificationController runs Flux's notification-controller and installs its CRDs.
	WithNotificationController bool
	// WithKustomizeController runs Flux's kustomize-controller and installs its CRDs.
	WithKustomizeController bool
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	// Dir holds all that the servers write.
	Dir string
	// KubeconfigPath is a kubeconfig file of the administrator.
	KubeconfigPath string
	// SourceAddr is the host:port at which source-controller serves artifacts; empty without source-controller.
	SourceAddr string
	// EventsAddr is the URL at which notification-controller receives events; empty without notification-controller.
	EventsAddr string
	// ReceiverURL is the URL at which notification-controller serves the webhooks of Receivers, without their path; empty without
	// notification-controller.
	ReceiverURL string

	options     Options
	supervisor  *supervise.Supervisor
	network     Network
	credentials *credentials
	config      *rest.Config
}

// Start starts the servers that the options select and returns when they are ready. If it fails, it stops the servers that it started, and
// the error ends with the last lines of the failed server's log. The first start on a machine builds the binaries, which takes minutes.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	if options.Log == nil {
		options.Log = io.Discard
	}
	cp := &ControlPlane{options: options}
	if err := cp.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start the control plane: %w", err), cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	if err := cp.prepare(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if cp.options.Alongside != nil {
		group.Go(func() error { return cp.options.Alongside(ctx) })
	}
	group.Go(func() error { return cp.startServers(ctx) })
	return group.Wait()
}

func (cp *ControlPlane) startServers(ctx context.Context) error {
	for _, step := range []struct {
		wanted bool
		start  func(context.Context) error
	}{
		{true, cp.startEtcd},
		{true, cp.startAPIServer},
		{true, cp.installInitialCRDs},
		{cp.options.WithControllerManager, cp.startControllerManager},
		{cp.options.WithSourceController, cp.startSourceController},
		{cp.options.WithNotificationController, cp.startNotificationController},
		{cp.options.WithKustomizeController, cp.startKustomizeController},
	} {
		if !step.wanted {
			continue
		}
		if err := step.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare creates the directory, the supervisor that removes it at the end, the network and the credentials.
func (cp *ControlPlane) prepare(ctx context.Context) error {
	dir := cp.options.Dir
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", "control-plane-")
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("create the directory: %w", err)
	}
	if cp.Dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("find the directory: %w", err)
	}
	if cp.supervisor, err = supervise.Start(filepath.Join(cp.Dir, "supervisor.log")); err != nil {
		return errors.Join(err, os.RemoveAll(cp.Dir))
	}
	if err := cp.supervisor.RemoveAtEnd(cp.Dir); err != nil {
		return err
	}
	cp.network = loopback{}
	if cp.options.NewNetwork != nil {
		if cp.network, err = cp.options.NewNetwork(ctx, cp); err != nil {
			return err
		}
	}
	cp.credentials, err = newCredentials(cp.Dir, cp.network.Address(), cp.options.Users)
	return err
}

// Stop kills every server (their state is no longer needed), waits until each has ended and removes the directory. It may be called more
// than once, and on a nil ControlPlane.
func (cp *ControlPlane) Stop() error {
	if cp == nil || cp.supervisor == nil {
		return nil
	}
	if err := cp.supervisor.Close(); err != nil {
		return fmt.Errorf("stop the control plane: %w", err)
	}
	return nil
}

// Supervisor returns the supervisor, which can run further processes that have to end with the control plane.
func (cp *ControlPlane) Supervisor() *supervise.Supervisor { return cp.supervisor }

// LogPath returns the path of the log of the named server, for example "kube-apiserver".
func (cp *ControlPlane) LogPath(server string) string {
	return filepath.Join(cp.Dir, server+".log")
}

// tool returns the path of a binary, which it builds if necessary.
func (cp *ControlPlane) tool(ctx context.Context, name string) (string, error) {
	return tools.Path(ctx, name, cp.logln)
}

// hasNodes reports whether the cluster may have nodes. Nodes cannot reach servers on loopback.
func (cp *ControlPlane) hasNodes() bool { return cp.options.NewNetwork != nil }

func (cp *ControlPlane) logln(line string) {
	_, _ = fmt.Fprintln(cp.options.Log, line)
}

// RunTests is the body of a package's TestMain: it starts a control plane, hands it to setup, runs the tests, stops the
// control plane and returns the exit code. m is the *testing.M; logs of a failed start go to standard error.
//
//	var cluster *controlplane.ControlPlane
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(cp *controlplane.ControlPlane) error {
//			cluster = cp
//			return nil
//		}))
//	}
func RunTests(m interface{ Run() int }, options Options, setup func(*ControlPlane) error) (code int) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	cp, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := cp.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	if err := setup(cp); err != nil {
		fmt.Fprintln(os.Stderr, "set up the tests:", err)
		return 1
	}
	return m.Run()
}
