package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// Test is the part of testing.TB that Require needs.
type Test interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Require skips the test, with a message on standard error, if this machine cannot run a cluster. If the environment variable CI_RUN is 1,
// as .ci/run sets it, the test fails instead, because no test may be skipped unnoticed there.
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

// RunTests is the body of a package's TestMain, like controlplane.RunTests, for packages in which every test needs the cluster. On a
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

// SkipAll returns the exit code of a package whose tests cannot run because of the error, and writes the error to standard error.
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

// probe does, in namespaces of its own, what a node needs the kernel for.
const probe = `set -e
mount --make-rshared /
ip link add probe type bridge
iptables -A FORWARD -m devgroup --src-group 1 -m conntrack --ctstate NEW -j DROP`

// Missing returns nil if this machine can run a cluster, and otherwise an error that names what is missing.
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

// probeKernel checks that root has the necessary rights, which it does not have in most containers, and that the kernel has the features.
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

// hidden lists the directories that the node replaces by its own (see node.sh).
var hidden = []string{"/run", "/var/run", "/var/lib", "/var/log"}

// checkVisible returns an error if a path that the node's servers need is in a directory that they cannot see.
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

// present reports whether a program exists, by its path or on PATH.
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
