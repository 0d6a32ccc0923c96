package git_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// These are the digests of what Archive writes for the commit of goldenCommit, compressed and uncompressed. They must never change: digests
// of checkouts are recorded in the cluster.
const (
	goldenPacked  = "7ea0a38c1af64cbd0ed42dd73a270b7c0873c83218489d1396c870cf4a469357"
	goldenTarball = "56ddaa400e21dcdaac0d4bf499936b61263dcc14951e38fae1134cf64c234029"
)

// goldenCommit has one of everything that a tarball can have.
func goldenCommit(o *origin) string {
	o.write("Pulumi.yaml", "name: demo\nruntime: yaml\n")
	o.write("scripts/build.sh", "#!/bin/sh\nexit 0\n")
	o.write("scripts.txt", "sorts between the directory and what is in it\n")
	o.write("ünïcode/ñame.txt", "é\n")
	o.write(strings.Repeat("long/", 30)+"file", "in a long path\n")
	o.write("text", strings.Repeat("All work and no play makes Jack a dull boy.\n", 5000))
	random, state := make([]byte, 100_000), uint32(1)
	for n := range random {
		state = state*1664525 + 1013904223
		random[n] = byte(state >> 24)
	}
	o.write("random", string(random))
	o.write("empty", "")
	o.t.Helper()
	if err := os.Chmod(filepath.Join(o.work, "scripts/build.sh"), 0o755); err != nil {
		o.t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(o.work, "passwd")); err != nil {
		o.t.Fatal(err)
	}
	return o.commit("everything\n\nAnd more.")
}

func TestSameTreeGivesTheSameBytesForEver(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	sha := goldenCommit(o)
	client := newClient(t, git.Options{})
	checkout := checkedOut(t, client, git.Remote{URL: url}, sha)
	packed, tarball := digest(t, checkout)
	g.Expect(tarball).To(Equal(goldenTarball))
	g.Expect(packed).To(Equal(goldenPacked))

	// This is another commit with the same tree, sent with the whole history and packed in another way by the server.
	other := o.commit("again")
	g.Expect(other).NotTo(Equal(sha))
	gitIn(t, o.bare, "repack", "-a", "-d", "-f", "--depth=50", "--window=50", "--quiet")
	o.config("uploadpack.allowReachableSHA1InWant", "false")
	again, _ := digest(t, checkedOut(t, client, git.Remote{URL: url}, sha))
	g.Expect(again).To(Equal(packed), "from the middle of a history")
}

func TestCheckoutHasTheFilesOfTheCommit(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	o.write(`mnt-\x2dmail.mount`, "a unit of systemd\n")
	sha := goldenCommit(o)
	checkout := checkedOut(t, newClient(t, git.Options{}), git.Remote{URL: url}, sha)
	g.Expect(checkout.Commit).To(Equal(git.Commit{SHA: sha, Author: "Ada Author", AuthorEmail: "ada@example.com", Message: "everything",
		When: checkout.When, LeftOut: []string{`"passwd"`}}))
	g.Expect(checkout.Commit.When.Equal(time.Date(2024, 5, 6, 7, 8, 10, 0, time.UTC))).To(BeTrue())
	files := unpacked(t, checkout)
	g.Expect(files).To(HaveKeyWithValue("Pulumi.yaml", "name: demo\nruntime: yaml\n"))
	g.Expect(files).To(HaveKeyWithValue("scripts/build.sh*", "#!/bin/sh\nexit 0\n"))
	g.Expect(files).To(HaveKeyWithValue("ünïcode/ñame.txt", "é\n"))
	g.Expect(files).To(HaveKeyWithValue(`mnt-\x2dmail.mount`, "a unit of systemd\n"))
	g.Expect(files).To(HaveKey(strings.Repeat("long/", 30) + "file"))
	g.Expect(files["text"]).To(HaveLen(44 * 5000))
	g.Expect(files["random"]).To(HaveLen(100_000))
	g.Expect(files).NotTo(HaveKey("passwd"))
	g.Expect(files).NotTo(HaveKey(".git"))
}

// TestCheckoutWorksWithWhateverTheServerAllows tries each way to get a commit.
func TestCheckoutWorksWithWhateverTheServerAllows(t *testing.T) {
	o, url := repository(t)
	first := o.git("rev-parse", "HEAD")
	for n := range 30 { // a history that is stored as differences
		o.write("list", strings.Repeat("a line that stays the same\n", 200)+strings.Repeat("one more\n", n))
		o.commit("more")
	}
	second := o.git("rev-parse", "HEAD")
	o.git("tag", "--annotate", "--message", "release", "v1", "HEAD~5")
	o.git("push", "--quiet", "origin", "v1")
	tagged, tag := o.git("rev-parse", "HEAD~5"), o.git("rev-parse", "v1")
	gitIn(t, o.bare, "gc", "--quiet", "--aggressive")
	client := newClient(t, git.Options{})
	current, old := url, serve(t, version0(backend(t, filepath.Dir(filepath.Dir(o.bare))))).URL+"/org/repo.git"
	for _, way := range []struct{ allow, url string }{{"true", old}, {"false", old}, {"false", current}} {
		allow, url := way.allow, way.url
		o.config("uploadpack.allowReachableSHA1InWant", allow)
		for name, sha := range map[string]string{"old": first, "tip": second, "tagged": tagged} {
			t.Run("SHA in want "+allow+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				checkout := checkedOut(t, client, git.Remote{URL: url}, sha)
				g.Expect(checkout.Commit.SHA).To(Equal(sha))
				g.Expect(unpacked(t, checkout)).To(HaveKey("Pulumi.yaml"))
			})
		}
		t.Run("SHA in want "+allow+" none", func(t *testing.T) {
			checkoutFails(t, client, git.Remote{URL: url}, strings.Repeat("12", 20), git.RevisionNotFound)
		})
		t.Run("SHA in want "+allow+" of a tag", func(t *testing.T) {
			NewWithT(t).Expect(checkedOut(t, client, git.Remote{URL: url}, tag).Commit.SHA).To(Equal(tagged))
		})
		t.Run("SHA in want "+allow+" of a directory", func(t *testing.T) {
			checkoutFails(t, client, git.Remote{URL: url}, o.git("rev-parse", "HEAD^{tree}"), git.RevisionNotFound)
		})
	}
}

func TestForcePushBetweenResolveAndCheckout(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	o.write("file", "old")
	o.commit("old")
	client := newClient(t, git.Options{})
	revision, err := client.Resolve(t.Context(), git.Remote{URL: url}, "main")
	g.Expect(err).NotTo(HaveOccurred())
	o.git("reset", "--quiet", "--hard", "HEAD~1")
	o.write("file", "new")
	o.commit("new")

	g.Expect(unpacked(t, checkedOut(t, client, git.Remote{URL: url}, revision.SHA))).To(HaveKeyWithValue("file", "old"),
		"servers of version 2 send any commit that they have")
	old := git.Remote{URL: serve(t, version0(backend(t, filepath.Dir(filepath.Dir(o.bare))))).URL + "/org/repo.git"}
	checkoutFails(t, client, old, revision.SHA, git.RevisionNotFound)
	o.config("uploadpack.allowReachableSHA1InWant", "true")
	checkoutFails(t, client, old, revision.SHA, git.RevisionNotFound)
	o.config("uploadpack.allowAnySHA1InWant", "true")
	g.Expect(unpacked(t, checkedOut(t, client, old, revision.SHA))).To(HaveKeyWithValue("file", "old"))

	gitIn(t, o.bare, "gc", "--quiet", "--prune=now")
	for _, remote := range []git.Remote{{URL: url}, old} {
		checkoutFails(t, client, remote, revision.SHA, git.RevisionNotFound)
	}
}

func TestCheckoutIsBounded(t *testing.T) {
	o, url := repository(t)
	for n := range 20 {
		o.write("dir/"+strings.Repeat("x", n+1), strings.Repeat("zeros", n))
	}
	o.write("big", strings.Repeat("0", 3<<20))
	sha := o.commit("much")
	for name, limits := range map[string]archive.Limits{
		"bytes downloaded": {MaxDownloadSize: 200},
		"bytes":            {MaxUnpackedSize: 1 << 20},
		"bytes together":   {MaxUnpackedSize: 3<<20 + 5000},
		"entries":          {MaxEntries: 22},
	} {
		t.Run(name, func(t *testing.T) {
			checkoutFails(t, newClient(t, git.Options{Limits: limits}), git.Remote{URL: url}, sha, git.TooLarge)
		})
	}
	t.Run("none exceeded", func(t *testing.T) {
		checkedOut(t, newClient(t, git.Options{Limits: archive.Limits{MaxEntries: 23, MaxUnpackedSize: 4 << 20}}), git.Remote{URL: url}, sha)
	})
}

func TestLFSPointersAreNamed(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12345\n"
	for _, name := range []string{"a.bin", "dir/b.bin", "dir/c.bin", "dir/d.bin"} {
		o.write(name, pointer)
	}
	client := newClient(t, git.Options{})
	checkedOut(t, client, git.Remote{URL: url}, o.commit("test data of a program about LFS"))

	o.write(".gitattributes", "*.txt text\n*.bin filter=lfs diff=lfs merge=lfs -text\n")
	message := checkoutFails(t, client, git.Remote{URL: url}, o.commit("with LFS"), git.LFSPointers).Message
	g.Expect(message).To(ContainSubstring(`4 pointer(s) to Git LFS`))
	g.Expect(message).To(ContainSubstring(`"a.bin", "dir/b.bin", "dir/c.bin", …`))
}

// A controller that is killed in the middle of a checkout leaves nothing on its disk.
func TestPackfilesHaveNoNames(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	dir := t.TempDir()
	var named []os.DirEntry
	written := 0
	_, err := newClient(t, git.Options{Dir: dir}).Archive(t.Context(), git.Remote{URL: url}, o.git("rev-parse", "HEAD"), writerFunc(func(p []byte) (int, error) {
		entries, err := os.ReadDir(dir)
		named, written = append(named, entries...), written+len(p)
		return len(p), err
	}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written).To(BeNumerically(">", 0))
	g.Expect(named).To(BeEmpty())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
