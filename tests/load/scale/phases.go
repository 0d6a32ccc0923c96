package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// neighbourRuns is how many commits of the neighbour are measured on a quiet system.
	neighbourRuns = 10
	// neighbourPatience bounds each of these commits.
	neighbourPatience = 5 * time.Minute
	// restartPatience bounds the time until a new controller has reconciled all Stacks.
	restartPatience = 5 * time.Minute
	// leaderTime is how long a leader works on a commit for all Stacks before it is killed.
	leaderTime = 3 * time.Second
	// quietTime is the time without any change after which a commit without changes counts as handled.
	quietTime = 5 * time.Second
)

// neighbour is one Stack of another tenant, which runs the real CLI.
type neighbour struct {
	apps    *localsystem.Apps
	app     *localsystem.App
	commits int
}

// newNeighbour deploys the neighbour's Stack.
func (s *scale) newNeighbour(ctx context.Context) (*neighbour, error) {
	ctx, cancel := context.WithTimeout(ctx, neighbourPatience)
	defer cancel()
	n := &neighbour{apps: s.system.Apps}
	var err error
	if n.app, err = s.system.Deploy(ctx, "neighbour", n.program()); err != nil {
		return nil, err
	}
	_, err = s.system.WaitReady(ctx, n.app)
	return n, err
}

// program returns the next program.
func (n *neighbour) program() gitserver.Files {
	n.commits++
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: real-neighbour\nruntime: yaml\noutputs:\n  value: n%d\n", n.commits)}
}

// commit makes a commit and returns the time from its push to the success in the Stack's status.
func (n *neighbour) commit(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, neighbourPatience)
	defer cancel()
	rollout, err := n.apps.Rollout(ctx, n.app, n.program())
	if err != nil {
		return 0, fmt.Errorf("the neighbour's commit: %w", err)
	}
	return rollout.Succeeded.Sub(rollout.Pushed), nil
}

// quiet measures commits one after the other.
func (n *neighbour) quiet(ctx context.Context) (took measure.Samples, err error) {
	for range neighbourRuns {
		duration, err := n.commit(ctx)
		if err != nil {
			return nil, err
		}
		took = append(took, duration)
	}
	return took, nil
}

// follow measures commits until the returned function is called.
func (n *neighbour) follow(ctx context.Context) (end func() (measure.Samples, error)) {
	var took measure.Samples
	var failed error
	var done sync.WaitGroup
	stop := make(chan struct{})
	done.Go(func() {
		for {
			duration, err := n.commit(ctx)
			if err != nil {
				failed = err
				return
			}
			took = append(took, duration)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	return func() (measure.Samples, error) {
		close(stop)
		done.Wait()
		return took, failed
	}
}

// restart kills the controller and starts it again. It measures until the new controller has reconciled every Stack and has nothing more to
// do. The requests are those of the new controller.
func (s *scale) restart(ctx context.Context, stacks int) (*cost, error) {
	if err := s.system.KillController(); err != nil {
		return nil, err
	}
	before, err := s.serverTimes()
	if err != nil {
		return nil, err
	}
	asked, err := s.apiRequests(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := s.system.StartController(ctx); err != nil {
		return nil, err
	}
	for {
		metrics, err := s.metrics(ctx)
		if err != nil {
			return nil, err
		}
		if reconciled(metrics) > stacks { // the neighbour's Stack is one more
			break
		}
		if time.Since(start) > restartPatience {
			return nil, fmt.Errorf("not all Stacks were looked at %s after the start", restartPatience)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return nil, err
		}
	}
	took := time.Since(start)
	// Wait for the writes that the controller still makes.
	if err := measure.Sleep(ctx, quietTime); err != nil {
		return nil, err
	}
	after, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	for name, spent := range before {
		after.cpu[name] -= spent
	}
	return &cost{took: took, cpu: after.cpu, requests: difference(asked, after.requests), own: after.own}, nil
}

// leaderChange makes a commit for the teams, and kills the leader in the middle of it. It returns how long there was no leader, and how
// long it took until all Stacks were updated, both since the kill. It fails unless each Stack was updated exactly once.
func (s *scale) leaderChange(ctx context.Context, teams []*team) (leaderless, took time.Duration, err error) {
	// The running controller leads without an election. The two controllers that replace it elect a leader.
	if err := s.system.AllowElection(ctx); err != nil {
		return 0, 0, err
	}
	if err := s.system.KillController(); err != nil {
		return 0, 0, err
	}
	first, err := s.startReplica(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := s.awaitLeader(ctx); err != nil {
		return 0, 0, err
	}
	if _, err := s.startReplica(ctx); err != nil {
		return 0, 0, err
	}
	if err := s.fleet.commit(ctx, teams); err != nil {
		return 0, 0, err
	}
	if err := measure.Sleep(ctx, leaderTime); err != nil {
		return 0, 0, err
	}
	killed := time.Now()
	if err := first.Stop(0); err != nil {
		return 0, 0, err
	}
	if err := s.awaitLeader(ctx); err != nil {
		return 0, 0, err
	}
	leaderless = time.Since(killed)
	if _, err := s.fleet.await(ctx, teams); err != nil {
		return 0, 0, err
	}
	return leaderless, time.Since(killed), ranOnce(s.stub, teams)
}

// startReplica starts another controller, which is measured from now on. It takes part in leader election, as in the installation.
func (s *scale) startReplica(ctx context.Context) (*supervise.Process, error) {
	var err error
	if s.metricsAddr, s.pprofAddr, err = freeAddresses(); err != nil {
		return nil, err
	}
	err = s.system.StartController(ctx, "--enable-leader-election=true", "--metrics-addr="+s.metricsAddr, "--pprof-addr="+s.pprofAddr)
	return s.system.Controller(), err
}

// awaitLeader waits until the controller that is measured leads.
func (s *scale) awaitLeader(ctx context.Context) error {
	start := time.Now()
	for {
		metrics, err := s.metrics(ctx)
		if err != nil {
			return err
		}
		for _, leads := range measure.Series(metrics, "leader_election_master_status") {
			if leads == 1 {
				return nil
			}
		}
		if time.Since(start) > restartPatience {
			return fmt.Errorf("the controller does not lead after %s", restartPatience)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// reconciled returns how many reconciles of Stacks have ended, or 0 while a Stack is in the work queue.
func reconciled(metrics string) int {
	for labels, depth := range measure.Series(metrics, "workqueue_depth") {
		if labels["name"] == "stack" && depth > 0 {
			return 0
		}
	}
	count := 0
	for labels, ended := range measure.Series(metrics, "controller_runtime_reconcile_total") {
		if labels["controller"] == "stack" {
			count += int(ended)
		}
	}
	return count
}

// emptyCommit makes a commit for all teams that changes no file.
func (s *scale) emptyCommit(ctx context.Context) (*cost, error) {
	var last time.Time
	start := time.Now()
	c, err := s.measureCost(ctx, func(ctx context.Context) error {
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(requesters)
		for _, t := range s.fleet.teams {
			group.Go(func() error {
				if _, err := t.app.Repository.Commit(nil); err != nil {
					return err
				}
				return s.system.Fetch(groupCtx, t.app)
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for {
			if last = s.fleet.lastChange(); time.Since(last) > quietTime && time.Since(start) > 2*quietTime {
				return nil
			}
			if err := measure.Sleep(ctx, pollInterval); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	c.took = last.Sub(start)
	return c, nil
}

// freeAddresses returns two addresses that are free at this moment.
func freeAddresses() (first, second string, err error) {
	var addresses [2]string
	for i := range addresses {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close()
		addresses[i] = listener.Addr().String()
	}
	return addresses[0], addresses[1], nil
}
