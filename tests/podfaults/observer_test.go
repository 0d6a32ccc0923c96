package podfaults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// observer looks at the processes of all pods, from outside.
type observer struct {
	group string // part of the path of every cgroup of a pod

	mu       sync.Mutex
	seen     int // how often one was seen to work
	problems []error
}

// process is one in a container.
type process struct {
	pid, parent int
	name        string
	cgroups     string // the content of /proc/PID/cgroup
}

// processes returns all processes of pods, but for those that have ended and that nobody has waited for.
func (o *observer) processes() []process {
	pids, _ := procfs.IDs() // none when /proc cannot be read
	var found []process
	for _, pid := range pids {
		cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !bytes.Contains(cgroups, []byte(o.group)) {
			continue
		}
		if stat, err := procfs.ReadStat(pid); err == nil && !stat.Ended() {
			found = append(found, process{pid: pid, parent: stat.Parent, name: stat.Name, cgroups: string(cgroups)})
		}
	}
	return found
}

// in returns the processes of a container, or of a pod, by its ID.
func (o *observer) in(id string) []process {
	return slices.DeleteFunc(o.processes(), func(p process) bool { return !strings.Contains(p.cgroups, id) })
}

// providerName is the test provider as the kernel shortens its name.
const providerName = "pulumi-resource"

// run looks, until the context ends, whether two processes of pulumi work on the resources of one Stack: each of them has a
// provider then. One that only waits for the other's lock has none.
func (o *observer) run(ctx context.Context) {
	for campaign.Wait(ctx, campaign.PollInterval/2) {
		working := map[string][]int{}
		all := o.processes()
		for _, p := range all {
			if !strings.HasPrefix(p.name, providerName) {
				continue
			}
			isPulumi := slices.ContainsFunc(all, func(q process) bool { return q.pid == p.parent && q.name == "pulumi" })
			if name := p.hostname(); isPulumi && name != "" && !slices.Contains(working[name], p.parent) {
				working[name] = append(working[name], p.parent)
			}
		}
		o.mu.Lock()
		o.seen += len(working)
		for name, pids := range working {
			if len(pids) > 1 {
				o.problems = append(o.problems, fmt.Errorf("%s: two processes of pulumi worked at once: %v at %s",
					name, pids, time.Now().Format(time.TimeOnly)))
			}
		}
		o.mu.Unlock()
	}
}

// worked tells how often pulumi was seen to work.
func (o *observer) worked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// take returns what was seen since it was asked last.
func (o *observer) take() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	problems := o.problems
	o.problems = nil
	if len(problems) > maxProblems {
		problems = problems[:maxProblems]
	}
	return errors.Join(problems...)
}

// maxProblems bounds how many problems of one kind are told.
const maxProblems = 5

// hostname is the name of the process's pod, empty when the process has ended.
func (p process) hostname() string {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/hostname", p.pid)) // it may have ended
	return strings.TrimSpace(string(content))
}

// leftOver returns the processes of pulumi and its plugins in pods of that name.
func (o *observer) leftOver(pod string) []string {
	var found []string
	for _, p := range o.processes() {
		if strings.HasPrefix(p.name, "pulumi") && p.hostname() == pod {
			found = append(found, fmt.Sprintf("%d %s", p.pid, p.name))
		}
	}
	return found
}
