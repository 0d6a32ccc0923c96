package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/measure"
)

// Who the processor time is told of.
const (
	apiServer        = "kube-apiserver"
	etcd             = "etcd"
	manager          = "kube-controller-manager"
	sourceController = "source-controller"
	controller       = "stack-controller"
	agents           = "agents and the CLI"
)

// consumers are they, in the order of the tables.
func consumers() []string {
	return []string{controller, agents, apiServer, etcd, sourceController, manager}
}

// servers are those that are not ours.
func servers() []string { return consumers()[2:] }

// agentsEnd bounds the wait until idle agents have ended, whose processor time is known only then.
const agentsEnd = time.Minute

// reading is what has been used so far.
type reading struct {
	at       time.Time
	cpu      map[string]time.Duration
	requests map[string]int // to the API server, by verb and resource, of everybody
	own      map[string]int // those of stack-controller, by verb
}

// cost is what was used between two readings.
type cost struct {
	took     time.Duration // until the last Stack was done
	cpu      map[string]time.Duration
	requests map[string]int
	own      map[string]int
}

// of measures what an action uses, with the end of the agents that it started. The time is that of the action.
func (s *scale) of(ctx context.Context, action func(context.Context) error) (*cost, error) {
	before, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if err := action(ctx); err != nil {
		return nil, err
	}
	took := time.Since(before.at)
	if err := s.awaitAgents(ctx); err != nil {
		return nil, err
	}
	after, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	c := &cost{took: took, cpu: map[string]time.Duration{}, requests: difference(before.requests, after.requests), own: difference(before.own, after.own)}
	for _, name := range consumers() {
		c.cpu[name] = after.cpu[name] - before.cpu[name]
	}
	return c, nil
}

func difference(before, after map[string]int) map[string]int {
	made := map[string]int{}
	for kind, count := range after {
		if count > before[kind] {
			made[kind] = count - before[kind]
		}
	}
	return made
}

func (c *cost) sum() int { return sum(c.own) }

// reads are the requests of the controller that change nothing.
func (c *cost) reads() int { return c.own["GET"] }

func sum(counts map[string]int) (all int) {
	for count := range maps.Values(counts) {
		all += count
	}
	return all
}

// total is the processor time of everybody.
func (c *cost) total() (all time.Duration) {
	for spent := range maps.Values(c.cpu) {
		all += spent
	}
	return all
}

func (s *scale) read(ctx context.Context) (*reading, error) {
	r := &reading{at: time.Now()}
	own, ended, err := measure.ProcessCPU(s.system.Controller().PID())
	if err != nil {
		return nil, err
	}
	if r.cpu, err = s.serverTimes(); err != nil {
		return nil, err
	}
	r.cpu[controller], r.cpu[agents] = own, ended
	if r.requests, err = s.apiRequests(ctx); err != nil {
		return nil, err
	}
	metrics, err := s.metrics(ctx)
	if err != nil {
		return nil, err
	}
	r.own = clientRequests(metrics)
	return r, nil
}

// apiRequests are what the API server has answered, to everybody.
func (s *scale) apiRequests(ctx context.Context) (map[string]int, error) {
	metrics, err := s.system.ControlPlane.Kubectl(ctx, "get", "--raw=/metrics")
	return measure.CountRequests(metrics), err
}

// awaitAgents waits until no agent runs.
func (s *scale) awaitAgents(ctx context.Context) error {
	deadline := time.Now().Add(agentsEnd)
	for {
		left, err := children(s.system.Controller().PID())
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d agents have not ended after %s", left, agentsEnd)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// children counts the processes that a process started.
func children(parent int) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list the processes: %w", err)
	}
	count := 0
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat, err := procfs.ReadStat(pid); err == nil && stat.Parent == parent {
			count++
		}
	}
	return count, nil
}

// metrics are those of the controller.
func (s *scale) metrics(ctx context.Context) (string, error) {
	content, err := s.fetch(ctx, "http://"+s.metricsAddr+"/metrics")
	return string(content), err
}

// fetch reads an answer of the controller.
func (s *scale) fetch(ctx context.Context, url string) (content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the controller: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the controller: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the controller: %s", response.Status)
	}
	if content, err = io.ReadAll(response.Body); err != nil {
		return nil, fmt.Errorf("ask the controller: %w", err)
	}
	return content, nil
}

// clientRequests reads how many requests the controller has made to the API server, by verb.
func clientRequests(metrics string) map[string]int {
	counts := map[string]int{}
	for labels, value := range measure.Series(metrics, "rest_client_requests_total") {
		counts[labels["method"]] += int(value)
	}
	return counts
}

// perStack formats processor time per Stack.
func perStack(spent time.Duration, stacks int) string {
	return fmt.Sprintf("%.1f ms", float64(spent.Microseconds())/1000/float64(stacks))
}

// kinds returns the requests, the most frequent first.
func (c *cost) kinds() []string {
	return slices.SortedFunc(maps.Keys(c.requests), func(a, b string) int {
		if c.requests[a] != c.requests[b] {
			return c.requests[b] - c.requests[a]
		}
		return strings.Compare(a, b)
	})
}
