// Package measure has the common parts of the benchmarks: processor time and memory of processes, requests to the API server, how busy the
// machine is with other programs, tables, and limits.
package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/cluster"
)

const (
	// lookPeriod is how long Look measures.
	lookPeriod = 2 * time.Second
	// quietShare is the share of the processors that other programs may use on a machine that counts as quiet.
	quietShare = 0.15
)

// Machine describes the machine on which the benchmark runs, and how busy it was with other programs while the benchmark did nothing.
type Machine struct{ busy []float64 }

// MeasureLoad measures for a moment which share of the processors is in use.
func (m *Machine) MeasureLoad(ctx context.Context) error {
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

// Quiet reports whether every Look found a low share.
func (m *Machine) Quiet() bool {
	for _, busy := range m.busy {
		if busy > quietShare {
			return false
		}
	}
	return true
}

// Description returns the current time, the properties of the machine, and how busy it was.
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

// memorySize returns how much memory the machine has.
func memorySize() string {
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%.0f GB of memory", float64(cluster.NumberOf(content, "MemTotal:"))*1024/1e9)
}

// processorTime returns the number of ticks that all processors together have worked, and the number of all ticks.
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

// tick is the unit of the processor time of a process in /proc, on every architecture.
const tick = time.Second / 100

// ProcessCPU returns the processor time of a process, and that of its descendants that have ended.
func ProcessCPU(pid int) (own, ended time.Duration, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	// The name of the program, in parentheses, may contain any characters.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	const userTime = 11 // then the times of the system, of children for the user, and of children in the system
	if len(fields) < userTime+4 {
		return 0, 0, fmt.Errorf("read the processor time of process %d: it has %d fields", pid, len(fields))
	}
	var times [4]time.Duration
	for i := range times {
		ticks, err := strconv.ParseInt(fields[userTime+i], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
		}
		times[i] = time.Duration(ticks) * tick
	}
	return times[0] + times[1], times[2] + times[3], nil
}

// Memory is the memory of a process, in bytes.
type Memory struct {
	// Resident is the memory at present, and Peak the maximum so far.
	Resident, Peak int64
	// Anonymous is the part of Resident that belongs to the process alone. File is the part that comes from the program's file; the kernel
	// can drop it, and the agents of a node share it.
	Anonymous, File int64
}

// ProcessMemory reads the memory of a running process.
func ProcessMemory(pid int) (Memory, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	kibibytes := func(name string) int64 { return 1024 * cluster.NumberOf(content, name) }
	return Memory{Resident: kibibytes("VmRSS:"), Peak: kibibytes("VmHWM:"), Anonymous: kibibytes("RssAnon:"), File: kibibytes("RssFile:")}, nil
}

// ServerCPU returns the processor time of the processes that ServerProcesses finds for a server, including their ended helpers.
func ServerCPU(dir, name string) (time.Duration, error) {
	pids, err := ServerProcesses(dir, name)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range pids {
		own, ended, err := ProcessCPU(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		sum += own + ended
	}
	return sum, nil
}

// ServerProcesses returns the IDs of the processes of a server of the control plane or of the cluster, with the given directory. A server
// is identified by its home directory, which no other process has.
func ServerProcesses(dir, name string) ([]int, error) {
	pids, err := cluster.Processes()
	if err != nil {
		return nil, err
	}
	home := []byte("HOME=" + filepath.Join(dir, name))
	return slices.DeleteFunc(pids, func(pid int) bool {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err != nil || !hasVariable(environment, home) // or it has ended
	}), nil
}

func hasVariable(environment, variable []byte) bool {
	for other := range bytes.SplitSeq(environment, []byte{0}) {
		if bytes.Equal(other, variable) {
			return true
		}
	}
	return false
}
