package prebuilt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
)

// pinsAt returns pins of etcd and source-controller for this machine, at the two addresses.
func pinsAt(etcd, sourceController string) string {
	return fmt.Sprintf("etcd v1 linux/%s %s %s bin/*\nsource-controller v1 linux/* %s %s bin/*\n",
		runtime.GOARCH, digest.FromString("etcd"), etcd, digest.FromString("source-controller"), sourceController)
}

// bothCompiled is what a Finder returns when nothing can be downloaded.
var bothCompiled = map[string]string{"etcd": "/compiled/etcd", "source-controller": "/compiled/source-controller"}

// A firewall that drops packets leaves every connection as this one: it neither begins nor fails.
func TestHostThatNeverConnectsDelaysABuildForTheLimitOnce(t *testing.T) {
	t.Setenv(MirrorVariable, "http://127.0.0.1:9")
	f := newFinder(t, pinsAt("https://example.com/etcd.tar.gz", "oci://registry.example.com/source-controller"))
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var err error
		f.finder.fetcher, err = newFetcher(os.Getenv(MirrorVariable), defaultLimits)
		g.Expect(err).NotTo(HaveOccurred())
		f.finder.fetcher.dialer.ControlContext = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
			<-ctx.Done()
			return ctx.Err()
		}
		start := time.Now()
		paths, err := f.finder.Find(t.Context(), []string{"etcd", "source-controller"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(time.Since(start)).To(Equal(defaultLimits.connect))
		g.Expect(paths).To(Equal(bothCompiled))

		_, err = f.finder.Find(t.Context(), []string{"etcd"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(time.Since(start)).To(Equal(defaultLimits.connect), "the host was asked again")
	})
	g := NewWithT(t)
	g.Expect(f.lines.String()).To(ContainSubstring("127.0.0.1:9 does not answer: "))
	g.Expect(kept(t)).To(BeEmpty())
}

// alone is set in the process that has a network namespace of its own, in which even loopback is down.
const alone = "PREBUILT_TEST_ALONE"

func TestMachineWithoutARouteBuildsAtOnce(t *testing.T) {
	g := NewWithT(t)
	if os.Getenv(alone) == "" {
		if os.Geteuid() != 0 {
			t.Skip("a network namespace is for root")
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1", MirrorVariable+"=", "HTTPS_PROXY=", "https_proxy=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		output, err := cmd.CombinedOutput()
		if pathError := (*os.PathError)(nil); os.Getenv("CI_RUN") != "1" && errors.As(err, &pathError) && errors.Is(err, syscall.EPERM) {
			t.Skip("this container's root may not make a network namespace")
		}
		g.Expect(err).NotTo(HaveOccurred(), string(output))
		g.Expect(string(output)).To(ContainSubstring("--- PASS: " + t.Name()))
		return
	}
	f := newFinder(t, pinsAt("https://192.0.2.1/etcd.tar.gz", "oci://registry.example.com/source-controller"))
	var err error
	f.finder.fetcher, err = newFetcher("", defaultLimits)
	g.Expect(err).NotTo(HaveOccurred())
	paths, err := f.finder.Find(t.Context(), []string{"etcd", "source-controller"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(paths).To(Equal(bothCompiled))
	// It is the kernel that says so. Nothing waited for a limit.
	g.Expect(f.lines.String()).To(And(
		MatchRegexp(`192\.0\.2\.1 does not answer: dial tcp 192\.0\.2\.1:443: connect: network is unreachable`),
		ContainSubstring("registry.example.com does not answer: "), Not(ContainSubstring("timeout")), Not(ContainSubstring("deadline"))))
}
