package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/measure"
)

// heap returns how much memory the controller's objects have after a garbage collection, in bytes.
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

// share is what a subject has of the heap.
type share struct {
	subject string
	bytes   float64
}

// profile returns what has the controller's heap, the largest first.
func (s *scale) profile(ctx context.Context) ([]share, error) {
	text, err := s.heapProfile(ctx)
	if err != nil {
		return nil, err
	}
	return bySubject(text)
}

// bySubject reads a heap profile in the text format of Go's runtime, which samples: each record stands for as many bytes as a sample of its
// size does on average.
func bySubject(profile string) ([]share, error) {
	var rate float64
	head, _, _ := strings.Cut(profile, "\n")
	if _, err := fmt.Sscanf(head[strings.LastIndex(head, "@")+1:], " heap/%g", &rate); err != nil {
		return nil, fmt.Errorf("read the heap profile: %w", err)
	}
	rate /= 2 // the text says twice the rate
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

// subjects are known by what is in the names of functions, and tried in this order for each function, from the innermost.
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

// subject says what the memory of a record is for.
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

// serverTimes returns the processor time of the servers so far.
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
