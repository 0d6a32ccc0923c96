package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

// Names of the programs whose processor time is reported.
const (
	apiServer        = "kube-apiserver"
	etcd             = "etcd"
	manager          = "kube-controller-manager"
	sourceController = "source-controller"
	controller       = "stack-controller"
	agents           = "agents and the CLI"
)

// consumers returns these names, in the order of the tables.
func consumers() []string {
	return []string{controller, agents, apiServer, etcd, sourceController, manager}
}

// servers returns the names of the programs that are not part of stack-controller.
func servers() []string { return consumers()[2:] }

// agentsEnd bounds the wait for the end of idle agents. Their processor time is known only then.
const agentsEnd = time.Minute

// reading is the resource usage so far.
type reading struct {
	at       time.Time
	cpu      map[string]time.Duration
	requests map[string]int // requests of all components to the API server, by verb and resource
	own      map[string]int // requests of stack-controller, by verb
}

// cost is the resource usage between two readings.
type cost struct {
	took     time.Duration // until the last Stack was updated
	cpu      map[string]time.Duration
	requests map[string]int
	own      map[string]int
}

// measureCost measures the resource usage of an action, until the agents that it started have ended. The time is that of the action alone.
func (s *scale) measureCost(ctx context.Context, action func(context.Context) error) (*cost, error) {
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

// byVerb returns the requests of the controller, and how many of them there are of each verb.
func (c *cost) byVerb() string {
	var verbs []string
	for _, verb := range slices.Sorted(maps.Keys(c.own)) {
		verbs = append(verbs, fmt.Sprintf("%d %s", c.own[verb], verb))
	}
	if len(verbs) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", c.sum(), strings.Join(verbs, ", "))
}

// reads returns the number of requests of the controller that change nothing.
func (c *cost) reads() int { return c.own["GET"] }

func sum(counts map[string]int) (all int) {
	for count := range maps.Values(counts) {
		all += count
	}
	return all
}

// total returns the processor time of all consumers.
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

// apiRequests returns the numbers of requests that the API server has answered, from all components.
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

// children returns the number of processes that a process started.
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

// metrics returns the metrics of the controller.
func (s *scale) metrics(ctx context.Context) (string, error) {
	content, err := s.fetch(ctx, "http://"+s.metricsAddr+"/metrics")
	return string(content), err
}

// fetch returns the body of the controller's response.
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

// clientRequests returns how many requests the controller has made to the API server, by verb.
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

// kinds returns the kinds of requests, the most frequent first.
func (c *cost) kinds() []string {
	return slices.SortedFunc(maps.Keys(c.requests), func(a, b string) int {
		if c.requests[a] != c.requests[b] {
			return c.requests[b] - c.requests[a]
		}
		return strings.Compare(a, b)
	})
}

// heap returns the size of the controller's live objects after a garbage collection, in bytes.
func (s *scale) heap(ctx context.Context) (int64, error) {
	text, err := s.heapProfile(ctx)
	if err != nil {
		return 0, err
	}
	var bytes int64
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "# HeapAlloc = %d", &bytes); err == nil {
			return bytes, nil
		}
	}
	return 0, fmt.Errorf("the heap profile does not say how large the heap is")
}

func (s *scale) heapProfile(ctx context.Context) (string, error) {
	content, err := s.fetch(ctx, "http://"+s.pprofAddr+"/debug/pprof/heap?gc=1&debug=1")
	return string(content), err
}

// profileAPIServer begins to sample kube-apiserver's processor time, if that is wanted and was not done yet, and returns what waits for its end.
func (s *scale) profileAPIServer(ctx context.Context) (wait func() error) {
	path := s.apiProfile
	if path == "" {
		return func() error { return nil }
	}
	s.apiProfile = ""
	done := make(chan error, 1)
	go func() {
		profile, err := s.system.ControlPlane.Kubectl(ctx, "get", fmt.Sprintf("--raw=/debug/pprof/profile?seconds=%d", int(profileTime.Seconds())))
		if err == nil {
			err = os.WriteFile(path, []byte(profile), 0o644)
		}
		done <- err
	}()
	return func() error { return <-done }
}

// share is the share of a subject in the heap.
type share struct {
	subject string
	bytes   float64
}

// profile returns the controller's heap by subject, the largest share first.
func (s *scale) profile(ctx context.Context) ([]share, error) {
	text, err := s.heapProfile(ctx)
	if err != nil {
		return nil, err
	}
	return bySubject(text)
}

// bySubject parses a heap profile in the text format of Go's runtime. The runtime samples, so each record is scaled to the number of bytes
// that samples of its size stand for on average.
func bySubject(profile string) ([]share, error) {
	var rate float64
	head, _, _ := strings.Cut(profile, "\n")
	if _, err := fmt.Sscanf(head[strings.LastIndex(head, "@")+1:], " heap/%g", &rate); err != nil {
		return nil, fmt.Errorf("read the heap profile: %w", err)
	}
	rate /= 2 // the profile contains twice the rate
	sums := map[string]float64{}
	for record := range strings.SplitSeq(profile, "\n\n") {
		var objects, bytes float64
		record = strings.TrimLeft(record, "\n")
		if strings.HasPrefix(record, "heap profile:") {
			_, record, _ = strings.Cut(record, "\n")
		}
		if _, err := fmt.Sscanf(record, "%g: %g [", &objects, &bytes); err != nil || objects == 0 {
			continue
		}
		scaled := bytes / (1 - math.Exp(-bytes/objects/rate))
		sums[subject(record)] += scaled
	}
	shares := make([]share, 0, len(sums))
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		shares = append(shares, share{subject: name, bytes: sums[name]})
	}
	slices.SortStableFunc(shares, func(a, b share) int { return cmp.Compare(b.bytes, a.bytes) })
	return shares, nil
}

// subjects are recognized by a part of a function's name. For each function of a record, from the innermost, they are tried in this order.
var subjects = []struct{ part, name string }{
	{"github.com/stack-controller/stack-controller/internal/app", "start of the program"},
	{"github.com/stack-controller/stack-controller/internal/", ""},
	{"k8s.io/client-go/tools/cache.(*threadSafeMap)", "indexes of the caches"},
	{"k8s.io/client-go/tools/cache.", "objects in the caches"},
	{"k8s.io/client-go/util/workqueue", "work queues"},
	{"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue", "work queues"},
	{"github.com/prometheus/client_golang", "metrics"},
	{"github.com/google/cel-go", "expressions"},
	{"runtime.doInit", "start of the program"},
	{"main.main", "start of the program"},
}

// subject returns the subject to which the memory of a record belongs.
func subject(record string) string {
	for line := range strings.Lines(record) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "#" {
			continue
		}
		for _, s := range subjects {
			if !strings.Contains(fields[2], s.part) {
				continue
			}
			if s.name != "" {
				return s.name
			}
			_, rest, _ := strings.Cut(fields[2], s.part)
			dir, base := path.Split(rest)
			name, _, _ := strings.Cut(base, ".")
			return "internal/" + dir + name
		}
	}
	return "everything else"
}

// serverMemory returns the resident memory of the servers, in bytes.
func (s *scale) serverMemory() (map[string]int64, error) {
	found := map[string]int64{}
	for _, name := range servers() {
		pids, err := measure.ServerProcesses(s.system.Dir, name)
		if err != nil {
			return nil, err
		}
		for _, pid := range pids {
			memory, err := measure.ProcessMemory(pid)
			if err != nil {
				return nil, err
			}
			found[name] += memory.Resident
		}
	}
	return found, nil
}

// serverTimes returns the processor time that each of the servers has used so far.
func (s *scale) serverTimes() (map[string]time.Duration, error) {
	times := map[string]time.Duration{}
	for _, name := range servers() {
		var err error
		if times[name], err = measure.ServerCPU(s.system.Dir, name); err != nil {
			return nil, err
		}
	}
	return times, nil
}
