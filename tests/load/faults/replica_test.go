package faults_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

const (
	// restartDelay is how long the kubelet waits, at first, before it restarts a container.
	restartDelay = time.Second
	stopGrace    = 60 * time.Second
)

// replica is a process of stack-controller that is restarted whenever it ends, like the container of a pod.
type replica struct {
	name   string
	system *localsystem.System
	flags  []string

	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	command commandLine
	process *supervise.Process
	metrics string
	starts  int
}

// start keeps the controller running from now on. It returns before the controller is ready.
func (r *replica) start(ctx context.Context, flags ...string) {
	ctx, r.cancel = context.WithCancel(ctx)
	r.flags = flags
	r.ended.Go(func() {
		for ctx.Err() == nil {
			process, err := r.launch(ctx)
			if err != nil {
				campaign.Wait(ctx, restartDelay)
				continue
			}
			select {
			case <-process.Done():
				campaign.Wait(ctx, restartDelay/4)
			case <-ctx.Done():
			}
		}
	})
}

func (r *replica) launch(ctx context.Context) (*supervise.Process, error) {
	var metricsURL string
	command := r.line()
	process, err := r.system.ControlPlane.StartProgram(ctx, controlplane.Program{
		Name: r.name,
		Path: command.args[0],
		Args: func(metrics, health string) []string {
			metricsURL = "http://" + metrics + "/metrics"
			args := []string{"--metrics-addr=" + metrics, "--health-addr=" + health}
			for _, arg := range command.args[1:] {
				if !strings.HasPrefix(arg, "--metrics-addr=") && !strings.HasPrefix(arg, "--health-addr=") {
					args = append(args, arg)
				}
			}
			return append(args, r.flags...)
		},
		Env: command.env,
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process, r.metrics = process, metricsURL
	r.starts++
	return process, nil
}

// line returns the command with which the controller is started next.
func (r *replica) line() commandLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return commandLine{args: slices.Clone(r.command.args), env: r.command.env}
}

// signal sends a signal to the current process, if there is one.
func (r *replica) signal(signal syscall.Signal) error {
	process, _ := r.current()
	if process == nil {
		return nil
	}
	return process.Signal(signal)
}

// beforeStart calls the function while no controller is being started.
func (r *replica) beforeStart(do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return do()
}

// current returns the process that was started last, and the URL of its metrics.
func (r *replica) current() (process *supervise.Process, metrics string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process, r.metrics
}

// awaitStart waits until the controller was started more than before times.
func (r *replica) awaitStart(ctx context.Context, before int) error {
	for r.started() <= before {
		if !campaign.Wait(ctx, campaign.PollInterval) {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *replica) started() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts
}

// stop ends the controller with SIGTERM and does not restart it.
func (r *replica) stop() error {
	r.cancel()
	r.ended.Wait()
	process, _ := r.current()
	if process == nil {
		return nil
	}
	_ = process.Signal(syscall.SIGCONT)
	return process.Stop(stopGrace)
}
