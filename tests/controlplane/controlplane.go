// Package controlplane runs a real Kubernetes control plane, without a node, on loopback and without privileges: etcd,
// kube-apiserver with RBAC and, when asked for, kube-controller-manager (owner garbage collection, namespace deletion,
// ServiceAccount tokens) and Flux's source-controller and notification-controller as plain processes.
//
// The binaries come from tests/tools. Every process belongs to a supervisor (tests/supervise), so nothing is left
// behind however the program that called Start ends. Package cluster adds a node, in a network namespace.
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

	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// startTimeout bounds the start of each server. A quiet machine needs a few seconds for the slowest.
const startTimeout = 90 * time.Second

// Options say what to start.
type Options struct {
	// Log gets a line per step, builds of missing binaries included; nil discards them.
	Log io.Writer
	// Dir holds all that the servers write, their logs included (NAME.log). Stop removes it. It must not be too long
	// for the path of a unix socket in it (about 90 characters). Empty means a new temporary directory.
	Dir string
	// CRDs are the files and directories of definitions to install before anything watches them. Nil means the
	// product's own and those of Flux's sources; an empty slice means none.
	CRDs []string
	// NewNetwork makes the network that the servers listen in. It is called once the directory and the supervisor are
	// there. Nil means loopback; in another network there may be nodes, and the servers are started for that.
	NewNetwork func(context.Context, *ControlPlane) (Network, error)
	// Alongside, when not nil, runs while the servers start, from when the network is there. Start waits for it.
	Alongside func(context.Context) error
	// Users are further users with a token (see TokenConfig), and the groups that they are in.
	Users map[string][]string
	// AdmissionPlugins are plugins of the API server that are off by default.
	AdmissionPlugins []string
	// WithControllerManager runs kube-controller-manager. Its garbage collector sees kinds that are installed after
	// the start only up to 30 seconds later.
	WithControllerManager bool
	// MoreControllers are names of controllers that kube-controller-manager runs besides, where it runs few: without nodes.
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
	// SourceAddr is the host:port at which source-controller serves artifacts; empty without it.
	SourceAddr string
	// EventsAddr is the URL at which notification-controller takes events; empty without it.
	EventsAddr string
	// ReceiverURL is where notification-controller serves the webhooks of Receivers, without their path; empty without it.
	ReceiverURL string

	options     Options
	supervisor  *supervise.Supervisor
	network     Network
	credentials *credentials
	config      *rest.Config
}

// Start starts the servers that the options name and returns when they serve. When it fails it has stopped what it had
// started, and the error ends with the last lines of the failed server's log. A first start on a machine builds the
// binaries, which takes minutes.
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

// prepare makes the directory, the supervisor that will remove it, the network and the credentials.
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

// Stop kills every server (their state is not needed any more), waits for the end of each and removes the directory.
// It may be called more than once, and on a nil ControlPlane.
func (cp *ControlPlane) Stop() error {
	if cp == nil || cp.supervisor == nil {
		return nil
	}
	if err := cp.supervisor.Close(); err != nil {
		return fmt.Errorf("stop the control plane: %w", err)
	}
	return nil
}

// Supervisor runs further processes that have to end with the control plane.
func (cp *ControlPlane) Supervisor() *supervise.Supervisor { return cp.supervisor }

// LogPath is the file that holds what the named server wrote, for example "kube-apiserver".
func (cp *ControlPlane) LogPath(server string) string {
	return filepath.Join(cp.Dir, server+".log")
}

// tool finds or builds a binary.
func (cp *ControlPlane) tool(ctx context.Context, name string) (string, error) {
	return tools.Path(ctx, name, cp.logln)
}

// hasNodes reports whether there may be a node: none can reach servers on loopback.
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
