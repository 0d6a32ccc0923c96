package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/stage"
)

// scene is the running system as the faults need it: with a controller that is started again when it ends, and with proxies
// before the API server and before the artifacts.
type scene struct {
	number  int // from 1
	system  *stage.Stage
	cli     string // the pulumi CLI that finds the test provider
	main    *replica
	present stage.Binaries // what the controller was started with at first
	api     *link
	gate    *gate // between the link and the API server
	mirror  *mirror
	watcher *watcher
	cancel  context.CancelFunc
	ctx     context.Context // of what runs besides the tests

	held map[string]*sync.Mutex // by faults; see hold

	mu        sync.Mutex
	abandoned []*app // whose run failed: what they leave behind says nothing about later runs
}

func newScene(ctx context.Context, system *stage.Stage, cli string) (*scene, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &scene{system: system, cli: cli, ctx: ctx, cancel: cancel}
	cp := system.ControlPlane
	var err error
	if s.gate, err = newGate(cp.Config()); err != nil {
		return nil, err
	}
	if s.api, err = newLink(func() string { return strings.TrimPrefix(s.gate.URL, "https://") }); err != nil {
		return nil, err
	}
	s.mirror = newMirror(func() string { return cp.SourceAddr })
	advertised := strings.TrimPrefix(s.mirror.URL, "http://")
	err = s.restartSourceController(ctx, func(arg string) string {
		if strings.HasPrefix(arg, "--storage-adv-addr=") {
			return "--storage-adv-addr=" + advertised
		}
		return arg
	})
	if err != nil {
		return nil, err
	}
	command, err := commandLineOf(system.Controller().PID())
	if err != nil {
		return nil, err
	}
	if err := system.StopController(); err != nil {
		return nil, err
	}
	if err := s.keepBinaries(&command); err != nil {
		return nil, err
	}
	if err := s.throughLink(&command); err != nil {
		return nil, err
	}
	if err := s.mountDisk(); err != nil {
		return nil, err
	}
	if err := s.allowElection(ctx); err != nil {
		return nil, err
	}
	s.main = &replica{name: "stack-controller", system: system, command: command}
	s.main.start(ctx)
	s.watcher = startWatcher(ctx, system.Client)
	return s, s.main.awaitStart(ctx, 0)
}

// keepBinaries has the command use copies of the executables: those of the repository may be built anew meanwhile.
func (s *scene) keepBinaries(command *commandLine) error {
	bin := filepath.Join(s.system.Dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	agent, _ := command.flag(agentPathFlag)
	for _, path := range []string{command.args[0], agent} {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(bin, filepath.Base(path)), content, 0o700); err != nil {
			return err
		}
	}
	s.present = stage.Binaries{
		Controller: filepath.Join(bin, filepath.Base(command.args[0])), Agent: filepath.Join(bin, filepath.Base(agent)),
	}
	command.use(s.present)
	return nil
}

// throughLink writes a kubeconfig that leads through the proxies, and has the command use it.
func (s *scene) throughLink(command *commandLine) error {
	for i, variable := range command.env {
		path, is := strings.CutPrefix(variable, "KUBECONFIG=")
		if !is {
			continue
		}
		config, err := clientcmd.LoadFromFile(path)
		if err != nil {
			return err
		}
		for _, cluster := range config.Clusters {
			cluster.Server = "https://" + s.api.address()
			cluster.CertificateAuthorityData = s.gate.certificate()
		}
		path = filepath.Join(s.system.Dir, "proxied.kubeconfig")
		command.env[i] = "KUBECONFIG=" + path
		return clientcmd.WriteToFile(*config, path)
	}
	return errors.New("stack-controller was started without KUBECONFIG")
}

// restartSourceController kills source-controller and starts it again.
func (s *scene) restartSourceController(ctx context.Context, change func(string) string) error {
	pid, err := serverPID(s.system.ControlPlane, "source-controller")
	if err != nil {
		return err
	}
	command, err := commandLineOf(pid)
	if err != nil {
		return err
	}
	health := ""
	for _, arg := range command.args {
		if address, is := strings.CutPrefix(arg, "--health-addr="); is {
			health = address
		}
	}
	ready := s.system.ControlPlane.AnswersOK((&url.URL{Scheme: "http", Host: health, Path: "/readyz"}).String())
	return restartServer(ctx, s.system.ControlPlane, "source-controller", ready, nil, change)
}

// restartAPIServer kills kube-apiserver and starts it again after the time. Its port is kept for it.
func (s *scene) restartAPIServer(ctx context.Context, away time.Duration) error {
	cp := s.system.ControlPlane
	ready := cp.AnswersOK(cp.Config().Host + "/readyz")
	return restartServer(ctx, cp, "kube-apiserver", ready, func() {
		placeholder, err := net.Listen("tcp", strings.TrimPrefix(cp.Config().Host, "https://"))
		if err != nil {
			wait(ctx, away)
			return
		}
		until, cancel := context.WithTimeout(ctx, away)
		defer cancel()
		context.AfterFunc(until, func() { _ = placeholder.Close() })
		for {
			connection, err := placeholder.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}, nil)
}

func (s *scene) close() {
	s.cancel()
	s.watcher.running.Wait()
	if err := s.main.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop stack-controller:", err)
	}
	s.mirror.Close()
	_ = s.api.listener.Close()
	s.gate.CloseClientConnections()
	s.gate.Close()
	s.unmountDisk()
}

// backend is the directory of the state.
func (s *scene) backend() string { return strings.TrimPrefix(s.system.BackendURL, "file://") }

// insist repeats a request to the API server while that is away. That something exists already, or not any more, is what a
// request is told whose first answer was lost.
func (s *scene) insist(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, insistence)
	defer cancel()
	for {
		attempt, end := context.WithTimeout(ctx, 40*time.Second)
		err := request(attempt)
		end()
		if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
			apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return err
		}
		if !wait(ctx, 5*pollInterval) {
			return err
		}
	}
}

// get reads an object, insisting.
func (s *scene) get(ctx context.Context, key client.ObjectKey, object client.Object) error {
	return s.insist(ctx, func(ctx context.Context) error { return s.system.Client.Get(ctx, key, object) })
}
