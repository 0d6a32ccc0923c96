package gitserver_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

func run(g *WithT, dir string, args ...string) string {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))
	return strings.TrimSpace(string(output))
}

func TestRealGitClonesWhatWasCommitted(t *testing.T) {
	g := NewWithT(t)
	server, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(server.Stop)

	repository, first, err := server.Create("apps/demo", gitserver.Files{"Pulumi.yaml": "name: one\n", "dir/old.txt": "old"})
	g.Expect(err).NotTo(HaveOccurred())
	clone := filepath.Join(t.TempDir(), "clone")
	run(g, "/", "clone", "--quiet", repository.URL, clone)
	g.Expect(run(g, clone, "rev-parse", "HEAD")).To(Equal(first))
	g.Expect(run(g, clone, "rev-parse", "--abbrev-ref", "HEAD")).To(Equal(gitserver.Branch))

	second, err := repository.Commit(gitserver.Files{"Pulumi.yaml": "name: two\n"})
	g.Expect(err).NotTo(HaveOccurred())
	third, err := repository.Remove("dir/old.txt")
	g.Expect(err).NotTo(HaveOccurred())
	run(g, clone, "pull", "--quiet")
	g.Expect(run(g, clone, "rev-parse", "HEAD")).To(Equal(third))
	g.Expect(run(g, clone, "rev-parse", "HEAD~1")).To(Equal(second))
	files, err := gitserver.FilesFromDir(clone)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(HaveKeyWithValue("Pulumi.yaml", "name: two\n"))
	g.Expect(files).NotTo(HaveKey("dir/old.txt"))
}

func TestPublishedServerIsClonedAndPushedToAtItsPublicAddress(t *testing.T) {
	g := NewWithT(t)
	server, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(server.Stop)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(server.Publish(listener)).To(Succeed())

	repository, first, err := server.Create("demo", gitserver.Files{"Pulumi.yaml": "name: one\n"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(repository.URL).To(Equal("http://" + listener.Addr().String() + "/demo"))
	clone := filepath.Join(t.TempDir(), "clone")
	run(g, "/", "clone", "--quiet", repository.URL, clone)
	g.Expect(run(g, clone, "rev-parse", "HEAD")).To(Equal(first))

	run(g, clone, "-c", "user.name=you", "-c", "user.email=you@example.com", "commit", "--quiet", "--allow-empty", "--message=second")
	run(g, clone, "push", "--quiet")
	g.Expect(run(g, clone, "ls-remote", "origin", gitserver.Branch)).To(HavePrefix(run(g, clone, "rev-parse", "HEAD")))
}

func TestEveryRepositoryStaysBelowTheServersDirectory(t *testing.T) {
	g := NewWithT(t)
	parent := t.TempDir()
	server, err := gitserver.Start(filepath.Join(parent, "repositories"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(server.Stop)

	_, _, err = server.Create("../escaped", gitserver.Files{"file": "content"})
	g.Expect(err).To(HaveOccurred())
	entries, err := os.ReadDir(parent)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveLen(1))
}
