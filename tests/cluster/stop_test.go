package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/images"
	"github.com/stack-controller/stack-controller/tests/leftovers"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// footprint is what a cluster puts on the machine.
type footprint struct {
	Dir        string
	Processes  []procfs.Identity
	Namespaces []string // as the links in /proc name them
	Cgroups    []string
}

// startWithPod starts a cluster in the directory, on which a pod runs.
func startWithPod(ctx context.Context, dir string) (*cluster.Cluster, error) {
	image, err := images.Busybox(ctx, nil)
	if err != nil {
		return nil, err
	}
	options := cluster.Options{Dir: dir, CRDs: []string{}, Images: []string{image.Tar}}
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, "run", "sleeper", "--image="+image.Reference, "--image-pull-policy=Never", "--", "sleep", "3600"); err != nil {
		return nil, err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/sleeper", "--timeout="+patience.String())
	return c, err
}

// footprintOf finds what the cluster's supervisor answers for.
func footprintOf(c *cluster.Cluster) (footprint, error) {
	f := footprint{Dir: c.Dir}
	own, err := namespaces("self")
	if err != nil {
		return f, err
	}
	for _, pid := range descendants(c.Supervisor().PID()) {
		process, err := procfs.Identify(pid)
		if err != nil {
			continue // it was one of those that end soon
		}
		f.Processes = append(f.Processes, process)
		links, err := namespaces(strconv.Itoa(pid))
		if err != nil {
			continue
		}
		for _, link := range links {
			if !slices.Contains(f.Namespaces, link) && !slices.Contains(own, link) {
				f.Namespaces = append(f.Namespaces, link)
			}
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == fmt.Sprintf("stack-controller-%d", c.Supervisor().PID()) {
			f.Cgroups = append(f.Cgroups, path)
		}
		return nil
	})
	return f, err
}

// left says what of it is still there.
func (f footprint) left() []string {
	var left []string
	for _, process := range f.Processes {
		if now, err := procfs.Identify(process.PID); err == nil && now == process {
			left = append(left, fmt.Sprintf("process %d", process.PID))
		}
	}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		links, _ := namespaces(filepath.Base(entry)) // of a process that has ended there are none
		if slices.ContainsFunc(links, func(link string) bool { return slices.Contains(f.Namespaces, link) }) {
			left = append(left, "a namespace of process "+filepath.Base(entry))
		}
	}
	for _, path := range append(f.Cgroups, f.Dir) {
		if _, err := os.Stat(path); err == nil {
			left = append(left, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), f.Dir) || strings.Contains(string(mounts), "nsfs") {
		left = append(left, "mounts")
	}
	return left
}

// namespaceKinds are the kinds of namespaces that a cluster has of its own.
var namespaceKinds = []string{"mnt", "net"}

func namespaces(process string) ([]string, error) {
	var links []string
	for _, kind := range namespaceKinds {
		link, err := os.Readlink(filepath.Join("/proc", process, "ns", kind))
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

// descendants returns the ids of the process, its children, their children and so on.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, task := range tasks {
			content, _ := os.ReadFile(task) // of a process that has ended there are none
			for _, field := range strings.Fields(string(content)) {
				if child, err := strconv.Atoi(field); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// checkFootprint makes sure that the test would see what is left, and would not take something else for it: while the namespaces are open,
// their numbers are not used again.
func checkFootprint(t *testing.T, g *WithT, f footprint) {
	for _, process := range f.Processes {
		for _, kind := range namespaceKinds {
			namespace, err := os.Open(filepath.Join("/proc", strconv.Itoa(process.PID), "ns", kind))
			if err == nil { // a process that has ended has none
				t.Cleanup(func() { _ = namespace.Close() })
			}
		}
	}
	g.Expect(len(f.Processes)).To(BeNumerically(">=", 13), "supervisor, node, 9 servers, a shim, pause and a container")
	g.Expect(len(f.Namespaces)).To(BeNumerically(">=", 5), "those of the node, of the pod and of the container")
	g.Expect(f.Cgroups).NotTo(BeEmpty())
	g.Expect(f.left()).NotTo(BeEmpty())
	addresses, err := net.InterfaceAddrs()
	g.Expect(err).NotTo(HaveOccurred())
	for _, address := range addresses {
		g.Expect(address.String()).NotTo(HavePrefix("198.18."), "addresses are not the machine's")
	}
}

func TestStopLeavesNothing(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	c, err := startWithPod(t.Context(), filepath.Join(t.TempDir(), "cluster"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Stop() })
	f, err := footprintOf(c)
	g.Expect(err).NotTo(HaveOccurred())
	checkFootprint(t, g, f)

	g.Expect(c.Stop()).To(Succeed())
	g.Expect(f.left()).To(BeEmpty())
	g.Expect(c.Stop()).To(Succeed(), "stopping twice is fine")
}

// victim starts a cluster, prints its footprint and hangs.
func victim(dir string) {
	c, err := startWithPod(context.Background(), dir)
	if err != nil {
		panic(err)
	}
	f, err := footprintOf(c)
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		panic(err)
	}
	select {}
}

func TestNothingOutlivesProgramThatIsKilled(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	program := exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), "TEST_VICTIM_DIR="+filepath.Join(t.TempDir(), "cluster"))
	program.Stderr = os.Stderr
	stdout, err := program.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(program.Start()).To(Succeed())
	t.Cleanup(func() { _ = program.Process.Kill() })
	var f footprint
	g.Expect(json.NewDecoder(stdout).Decode(&f)).To(Succeed())
	checkFootprint(t, g, f)

	g.Expect(program.Process.Kill()).To(Succeed())
	_ = program.Wait() // "signal: killed" is what the test is about
	g.Eventually(f.left, patience).Should(BeEmpty())
}

func TestWhatAKilledSupervisorLeftIsSwept(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	c, err := startWithPod(t.Context(), filepath.Join(t.TempDir(), "cluster"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Stop() })
	f, err := footprintOf(c)
	g.Expect(err).NotTo(HaveOccurred())
	checkFootprint(t, g, f)

	g.Expect(syscall.Kill(c.Supervisor().PID(), syscall.SIGKILL)).To(Succeed())
	g.Expect(c.Stop()).To(Succeed())
	g.Expect(f.left()).NotTo(BeEmpty(), "there is something to sweep")
	g.Expect(leftovers.Sweep(t.Output())).To(Succeed())
	g.Eventually(f.left, patience).Should(BeEmpty(), "once init has waited for what was killed")
}
