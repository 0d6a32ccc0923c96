package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// patience is how long nothing may change before a wait is given up.
	patience = 150 * time.Second
	// maxConvergence bounds a wait even while something changes.
	maxConvergence = 8 * time.Minute
	// work is how long a resource takes to be created or updated.
	work = 400 * time.Millisecond
	// passphrase is the passphrase in the Secret that the fixture creates.
	passphrase = "correct horse battery staple"
)

// fixture is the running system with everything that the faults need: a controller that is restarted when it ends, and proxies in front of
// the API server and the artifacts.
type fixture struct {
	*campaign.Environment
	system  *localsystem.System
	cli     string // the pulumi CLI that finds the test provider
	main    *replica
	present localsystem.Binaries // the build that the controller was started with at first
	api     *link
	gate    *gate // between the link and the API server
	mirror  *mirror
	cancel  context.CancelFunc
	ctx     context.Context // of the processes that run beside the tests
	// bystanders have threads with the process ids of killed agents.
	bystanders []*exec.Cmd
}

func startEnvironment(ctx context.Context, number int, cli string) (*fixture, error) {
	system, err := localsystem.Start(ctx, localsystem.Options{Log: os.Stderr, Pulumi: cli, ControllerArgs: []string{"--concurrent=8"}})
	if err != nil {
		return nil, fmt.Errorf("start environment %d: %w", number, err)
	}
	s, err := newFixture(ctx, number, system, cli)
	if err != nil {
		(&fixture{system: system}).unmountDisk()
		return nil, errors.Join(fmt.Errorf("start environment %d: %w", number, err), system.Stop())
	}
	return s, nil
}

func newFixture(ctx context.Context, number int, system *localsystem.System, cli string) (*fixture, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &fixture{system: system, cli: cli, ctx: ctx, cancel: cancel}
	journals := filepath.Join(system.Dir, "journals")
	s.Environment = &campaign.Environment{
		Apps: system.Apps, System: s, Number: number, Journals: journals, JournalsInside: journals, Work: work,
		Patience: patience, MaxConvergence: maxConvergence,
	}
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
	if err := s.system.AllowElection(ctx); err != nil {
		return nil, err
	}
	s.main = &replica{name: "stack-controller", system: system, command: command}
	s.main.start(ctx)
	s.Start(ctx)
	return s, s.main.awaitStart(ctx, 0)
}

// keepBinaries makes the command use copies of the executables, because those of the repository may be built again during the tests.
func (s *fixture) keepBinaries(command *commandLine) error {
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
	s.present = localsystem.Binaries{
		Controller: filepath.Join(bin, filepath.Base(command.args[0])), Agent: filepath.Join(bin, filepath.Base(agent)),
	}
	command.use(s.present)
	return nil
}

// throughLink writes a kubeconfig that leads through the proxies, and makes the command use it.
func (s *fixture) throughLink(command *commandLine) error {
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

// restartSourceController kills source-controller and starts it again, with each argument passed through change.
func (s *fixture) restartSourceController(ctx context.Context, change func(string) string) error {
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

// restartAPIServer kills kube-apiserver and starts it again after the time. A listener keeps its port meanwhile.
func (s *fixture) restartAPIServer(ctx context.Context, away time.Duration) error {
	cp := s.system.ControlPlane
	ready := cp.AnswersOK(cp.Config().Host + "/readyz")
	return restartServer(ctx, cp, "kube-apiserver", ready, func() {
		placeholder, err := net.Listen("tcp", strings.TrimPrefix(cp.Config().Host, "https://"))
		if err != nil {
			campaign.Wait(ctx, away)
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

// end stops a environment, whatever state it is in.
func (s *fixture) end() error {
	s.endBystanders()
	s.cancel()
	s.Stop()
	if err := s.main.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop stack-controller:", err)
	}
	s.mirror.Close()
	_ = s.api.listener.Close()
	s.gate.CloseClientConnections()
	s.gate.Close()
	s.unmountDisk()
	return s.system.Stop()
}

// backend returns the directory of the state.
func (s *fixture) backend() string { return strings.TrimPrefix(s.system.BackendURL, "file://") }

// KeepLogs copies the logs to the directory in the environment variable FAULTS_LOGS, if it is set.
func (s *fixture) KeepLogs(occasion string) {
	target := os.Getenv("FAULTS_LOGS")
	if target == "" {
		return
	}
	target = filepath.Join(target, fmt.Sprintf("environment-%d%s", s.Number, occasion))
	if err := os.MkdirAll(target, 0o700); err != nil {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(s.system.Dir, "*.log"))
	for _, log := range logs {
		if content, err := os.ReadFile(log); err == nil {
			_ = os.WriteFile(filepath.Join(target, filepath.Base(log)), content, 0o600)
		}
	}
}
