package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/tests/leftovers"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// Test is the part of testing.TB that Require needs.
type Test interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Require skips the test, and says so on standard error, when this machine cannot run a cluster. Where CI_RUN is 1 in the
// environment, as .ci/run sets it, the test fails instead: nothing may be skipped there unnoticed.
func Require(t Test) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case mustRun():
		t.Fatal(err)
	default:
		fmt.Fprintln(os.Stderr, "SKIPPED:", err)
		t.Skip(err)
	}
}

// RunTests is the body of a package's TestMain, as controlplane.RunTests is, for tests of which each one needs the cluster. On a
// machine that cannot run a cluster it behaves like Require.
func RunTests(m interface{ Run() int }, options Options, setup func(*Cluster) error) (code int) {
	if err := Missing(); err != nil {
		return SkipAll(err)
	}
	if options.Log == nil {
		options.Log = os.Stderr
	}
	c, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := c.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	if err := setup(c); err != nil {
		fmt.Fprintln(os.Stderr, "set up the tests:", err)
		return 1
	}
	return m.Run()
}

// SkipAll returns the exit code of a package whose tests cannot run because of the error, and says so on standard error.
func SkipAll(err error) (code int) {
	if mustRun() {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "SKIPPED, all tests of this package:", err)
	return 0
}

func mustRun() bool { return os.Getenv("CI_RUN") == "1" }

// Programs that come from Debian's packages.
const (
	nsenter    = "/usr/bin/nsenter"
	unshare    = "/usr/bin/unshare"
	cniPlugins = "/usr/lib/cni"
)

// probe does in namespaces of its own what a node needs of the kernel.
const probe = `set -e
mount --make-rshared /
ip link add probe type bridge
iptables -A FORWARD -m devgroup --src-group 1 -m conntrack --ctstate NEW -j DROP`

// Missing returns nil when this machine can run a cluster, or an error that says what it lacks.
func Missing() error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, needed := range []struct{ path, lacking string }{
		{"runc", "runc"},
		{filepath.Join(cniPlugins, "ptp"), "containernetworking-plugins"},
		{"iptables", "iptables"},
		{"ip", "iproute2"},
		{"busybox", "busybox-static"},
		{nsenter, "util-linux"},
		{unshare, "util-linux"},
	} {
		lacking := "the package " + needed.lacking
		if !present(needed.path) && !strings.Contains(strings.Join(missing, "\n"), lacking) {
			missing = append(missing, lacking)
		}
	}
	if len(missing) == 0 {
		return probeKernel()
	}
	return fmt.Errorf("a cluster needs %s: %w", strings.Join(missing, ", "), errors.ErrUnsupported)
}

// probeKernel finds out whether root has the rights, which it has not in most containers, and the kernel what they are for.
func probeKernel() error {
	cmd := exec.Command(unshare, "--net", "--mount", "/bin/sh", "-c", probe)
	cmd.Env = []string{"PATH=" + searchPath()}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("a cluster needs the right to make namespaces and packet filters, and a kernel that has them: %w: %s: %w",
			err, strings.TrimSpace(string(output)), errors.ErrUnsupported)
	}
	paths, err := leftovers.CgroupPaths(fmt.Sprintf("stack-controller-probe-%d", os.Getpid()))
	if len(paths) == 0 {
		err = errors.Join(err, errors.New("none is mounted"))
	}
	for _, path := range paths {
		err = errors.Join(err, os.Mkdir(path, 0o755), os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("a cluster needs the right to make cgroups: %w: %w", err, errors.ErrUnsupported)
	}
	return nil
}

// hidden are the directories in whose place the node has its own (see node.sh).
var hidden = []string{"/run", "/var/run", "/var/lib", "/var/log"}

// checkVisible fails when a path that the node's servers need is in a directory that they do not see.
func checkVisible(paths ...string) error {
	for _, path := range paths {
		for _, dir := range hidden {
			if path == dir || strings.HasPrefix(path, dir+"/") {
				return fmt.Errorf("%s is below %s, of which the node has its own: set TMPDIR or STACK_CONTROLLER_CACHE", path, dir)
			}
		}
	}
	return nil
}

// present reports whether a program is there, by its path or on PATH.
func present(program string) bool {
	if filepath.IsAbs(program) {
		_, err := os.Stat(program)
		return err == nil
	}
	for _, dir := range filepath.SplitList(searchPath()) {
		if _, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return true
		}
	}
	return false
}
