// Package measure has what the benchmarks share: processor time and memory of processes, requests to the API server, how busy the machine is
// with other things, tables, and limits.
package measure

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/cluster"
)

const (
	// lookPeriod is for how long a look at the machine lasts.
	lookPeriod = 2 * time.Second
	// quietShare is the share of the processors that others may use on a machine that counts as quiet.
	quietShare = 0.15
)

// Machine is the computer that is measured on, and how busy it was with other things when nothing of ours ran.
type Machine struct{ busy []float64 }

// Look measures for a moment what share of the processors is in use.
func (m *Machine) Look(ctx context.Context) error {
	busyBefore, allBefore, err := processorTime()
	if err != nil {
		return err
	}
	if err := Sleep(ctx, lookPeriod); err != nil {
		return err
	}
	busyAfter, allAfter, err := processorTime()
	if err != nil {
		return err
	}
	m.busy = append(m.busy, float64(busyAfter-busyBefore)/float64(allAfter-allBefore))
	return nil
}

// Quiet reports whether all looks found little.
func (m *Machine) Quiet() bool {
	for _, busy := range m.busy {
		if busy > quietShare {
			return false
		}
	}
	return true
}

// Description tells when it was, what the machine is, and how busy it was.
func (m *Machine) Description() string {
	var shares []string
	for _, busy := range m.busy {
		shares = append(shares, fmt.Sprintf("%.0f %%", 100*busy))
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	return fmt.Sprintf("%s: %d processors, %s; in use by others: %s; load: %s", time.Now().Format(time.DateTime), runtime.NumCPU(), memorySize(),
		strings.Join(shares, ", "), strings.Join(strings.Fields(string(load))[:min(3, len(strings.Fields(string(load))))], " "))
}

// memorySize is how much memory the machine has.
func memorySize() string {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%.0f GB of memory", float64(cluster.NumberOf(content, "MemTotal:"))*1024/1e9)
}

// processorTime returns how many ticks all processors together have worked, and how many there were.
func processorTime() (busy, all int64, err error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read how busy the machine is: %w", err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	fields := strings.Fields(line)
	for i, field := range fields[1:min(9, len(fields))] { // user nice system idle iowait irq softirq steal
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read how busy the machine is: %w", err)
		}
		all += ticks
		if i != 3 && i != 4 {
			busy += ticks
		}
	}
	return busy, all, nil
}

// Sleep waits, unless the context ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
