package git_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// link commits nothing: it makes a symbolic link in the work tree.
func (o *origin) link(name, target string) {
	o.t.Helper()
	path := filepath.Join(o.work, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		o.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		o.t.Fatal(err)
	}
}

func TestLinkToAFileOfTheCommitBecomesThatFile(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	o.write("shared/dev.yaml", "config: {}\n")
	o.write("shared/run.sh", "#!/bin/sh\n")
	g.Expect(os.Chmod(filepath.Join(o.work, "shared/run.sh"), 0o755)).To(Succeed())
	followed := map[string]string{
		"app/Pulumi.dev.yaml": "../shared/dev.yaml", "app/chain": "Pulumi.dev.yaml", "app/dots": ".././/shared/../shared/./dev.yaml",
		"app/over-dir": "to-shared/dev.yaml", "app/over-two": "to-to-shared/dev.yaml", "app/up-from-link": "to-shared/../shared/dev.yaml",
	}
	for name, target := range followed {
		o.link(name, target)
	}
	o.link("app/run", "../shared/run.sh")
	o.link("app/to-shared", "../shared")
	o.link("app/to-to-shared", "to-shared")
	leftOut := map[string]string{
		"bad/absolute": "/etc/passwd", "bad/outside": "../../shared/dev.yaml", "bad/far-outside": "../../../../../../etc/passwd",
		"bad/nothing": "missing", "bad/loop": "loop", "bad/ping": "pong", "bad/pong": "ping", "bad/dir": "../shared", "bad/below-file": "../shared/dev.yaml/x",
		"bad/as-dir": "../shared/dev.yaml/", "bad/git": "../.git/config", "bad/dot": ".", "bad/up": "..",
		"bad/1": "2", "bad/2": "3", "bad/3": "4", "bad/4": "5", "bad/5": "../shared/dev.yaml", "bad/6": "1",
		"bad/Pulumi.yaml": "/srv/Pulumi.yaml", "bad/long": strings.Repeat("x/../", 800) + "../shared/dev.yaml",
	}
	for name, target := range leftOut {
		o.link(name, target)
	}
	checkout := checkedOut(t, newClient(t, git.Options{}), git.Remote{URL: url}, o.commit("links"))
	files := unpacked(t, checkout)
	for name := range followed {
		g.Expect(files).To(HaveKeyWithValue(name, "config: {}\n"))
	}
	g.Expect(files).To(HaveKeyWithValue("app/run*", "#!/bin/sh\n"))
	// A chain of at most five links is followed.
	for name := range leftOut {
		if followedInTime := strings.Contains("bad/1 bad/2 bad/3 bad/4 bad/5", name); followedInTime {
			g.Expect(files).To(HaveKeyWithValue(name, "config: {}\n"))
		} else {
			g.Expect(files).NotTo(HaveKey(name))
		}
	}
	g.Expect(checkout.LeftOut).To(HaveLen(11))
	g.Expect(checkout.LeftOut[0]).To(Equal(`"app/to-shared"`))
	g.Expect(checkout.LeftOut[10]).To(Equal("…"))

	// Those that can hide a file of Pulumi are in the tarball, for the agent.
	named, err := archive.Unpack(t.Context(), bytes.NewReader(checkout.tarball), t.TempDir(), archive.Limits{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(named).To(ContainElements("bad/Pulumi.yaml", "bad/outside", "bad/dir", "bad/loop", "app/to-shared"))
	g.Expect(named).NotTo(ContainElement("bad/absolute"))
}

func TestCopiesOfLinkedFilesCountAgainstTheLimits(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	o.write("large", strings.Repeat("x", 1<<20))
	for n := range 20 {
		o.link(fmt.Sprintf("links/%d", n), "../large")
	}
	sha := o.commit("many links to a large file")
	limits := archive.Limits{MaxUnpackedSize: 10 << 20}
	failure := checkoutFails(t, newClient(t, git.Options{Limits: limits}), git.Remote{URL: url}, sha, git.TooLarge)
	g.Expect(failure.Message).To(And(ContainSubstring("10485760 bytes"), ContainSubstring("symbolic links")))
	checkedOut(t, newClient(t, git.Options{}), git.Remote{URL: url}, sha)
}
