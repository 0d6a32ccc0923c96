package git_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// authored is a fixed identity and time, so that commits have fixed SHAs.
var authored = []string{
	"GIT_AUTHOR_NAME=Ada Author", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_AUTHOR_DATE=2024-05-06T07:08:09Z",
	"GIT_COMMITTER_NAME=Carl", "GIT_COMMITTER_EMAIL=carl@example.com", "GIT_COMMITTER_DATE=2024-05-06T07:08:10Z",
}

// gitIn runs the git program without any configuration of this machine.
func gitIn(t testing.TB, dir string, args ...string) string {
	t.Helper()
	return gitWith(t, dir, nil, args...)
}

func gitWith(t testing.TB, dir string, input []byte, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C"}, authored...)
	cmd.Stdin = bytes.NewReader(input)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}

// origin is a bare repository and a work tree to commit in.
type origin struct {
	t    testing.TB
	bare string
	work string
}

// newOrigin creates the repository at the path below root.
func newOrigin(t testing.TB, root, path string, options ...string) *origin {
	t.Helper()
	o := &origin{t: t, bare: filepath.Join(root, path), work: t.TempDir()}
	gitIn(t, root, append([]string{"init", "--quiet", "--bare", "--initial-branch=main", o.bare}, options...)...)
	gitIn(t, o.work, append([]string{"init", "--quiet", "--initial-branch=main", "."}, options...)...)
	gitIn(t, o.work, "remote", "add", "origin", o.bare)
	return o
}

func (o *origin) git(args ...string) string {
	o.t.Helper()
	return gitIn(o.t, o.work, args...)
}

// config sets something in the bare repository.
func (o *origin) config(name, value string) {
	o.t.Helper()
	gitIn(o.t, o.bare, "config", name, value)
}

func (o *origin) write(name, content string) {
	o.t.Helper()
	path := filepath.Join(o.work, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		o.t.Fatal(err)
	}
}

// commit commits everything with the message and pushes the branch main.
func (o *origin) commit(message string) string {
	o.t.Helper()
	o.git("add", "--all")
	o.git("commit", "--quiet", "--allow-empty", "--message", message)
	o.git("push", "--quiet", "--force", "origin", "HEAD:main")
	return o.git("rev-parse", "HEAD")
}

// firstCommit is an origin at the path repo below root, and its first commit.
func firstCommit(t testing.TB) (root string, o *origin, sha string) {
	t.Helper()
	root = t.TempDir()
	o = newOrigin(t, root, "repo")
	return root, o, o.commit("first")
}

// backend is git's own HTTP server for the repositories below root.
func backend(t testing.TB, root string) http.Handler {
	t.Helper()
	return &cgi.Handler{
		Path:   filepath.Join(gitIn(t, root, "--exec-path"), "git-http-backend"),
		Env:    []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + root},
		Stderr: io.Discard,
	}
}

// version0 is a server that does not know version 2 of the protocol.
func version0(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		request.Header.Del("Git-Protocol")
		next.ServeHTTP(w, request)
	})
}

func serve(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// repository is an origin with a first commit, and its URL on git's own HTTP server.
func repository(t testing.TB) (o *origin, url string) {
	t.Helper()
	root := t.TempDir()
	o = newOrigin(t, root, "org/repo.git")
	o.write("Pulumi.yaml", "name: demo\nruntime: yaml\n")
	o.commit("first")
	return o, serve(t, backend(t, root)).URL + "/org/repo.git"
}

func newClient(t testing.TB, options git.Options) *git.Client {
	t.Helper()
	if options.Dir == "" {
		options.Dir = t.TempDir()
	}
	// A file that a call leaves behind would fill the controller's disk.
	t.Cleanup(func() {
		if left, err := os.ReadDir(options.Dir); err != nil || len(left) > 0 {
			t.Errorf("left in the directory: %v %v", left, err)
		}
	})
	options.AllowLocalAddresses = true
	return git.NewClient(options)
}

// failure has the fields of an error that tests check.
type failure struct {
	Message    string
	RetryAfter time.Duration
}

// expectKind checks the kind of the error, and what holds for every error.
func expectKind(t testing.TB, err error, kind git.Kind) failure {
	t.Helper()
	g := NewWithT(t)
	var typed *git.Error
	g.ExpectWithOffset(1, errors.As(err, &typed)).To(BeTrue(), "%v", err)
	g.ExpectWithOffset(1, typed.Kind).To(Equal(kind), typed.Message)
	g.ExpectWithOffset(1, len(typed.Message)).To(And(BeNumerically(">", 0), BeNumerically("<=", 500)))
	g.ExpectWithOffset(1, typed.Message).NotTo(ContainSubstring("\n"))
	return failure{typed.Message, typed.RetryAfter}
}

// resolveFails resolves the ref, which has to fail.
func resolveFails(t testing.TB, client *git.Client, remote git.Remote, ref string, kind git.Kind) failure {
	t.Helper()
	_, err := client.Resolve(t.Context(), remote, ref)
	return expectKind(t, err, kind)
}

// checkoutFails checks the commit out, which has to fail.
func checkoutFails(t testing.TB, client *git.Client, remote git.Remote, sha string, kind git.Kind) failure {
	t.Helper()
	_, err := client.Archive(t.Context(), remote, sha, io.Discard)
	return expectKind(t, err, kind)
}

// unpacked is the content of a checkout: files by path, with an asterisk for those that can be executed, directories as <dir>.
func unpacked(t testing.TB, checkout checkout) map[string]string {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	_, err := archive.Unpack(t.Context(), bytes.NewReader(checkout.tarball), dir, archive.Limits{})
	g.Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	g.Expect(filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil || name == ".":
			return err
		case info.IsDir():
			files[name] = "<dir>"
			return nil
		}
		content, err := os.ReadFile(path)
		if info.Mode()&0o100 != 0 {
			name += "*"
		}
		files[name] = string(content)
		return err
	})).To(Succeed())
	return files
}

// digest is the SHA-256 of what Archive writes, and of the tarball inside.
func digest(t testing.TB, checkout checkout) (packed, tarball string) {
	t.Helper()
	g := NewWithT(t)
	sum := sha256.Sum256(checkout.tarball)
	zip, err := gzip.NewReader(bytes.NewReader(checkout.tarball))
	g.Expect(err).NotTo(HaveOccurred())
	tar, err := io.ReadAll(zip)
	g.Expect(err).NotTo(HaveOccurred())
	inner := sha256.Sum256(tar)
	return hex.EncodeToString(sum[:]), hex.EncodeToString(inner[:])
}

// checkout is what Archive returns and writes.
type checkout struct {
	git.Commit
	tarball []byte
}

func checkedOut(t testing.TB, client *git.Client, remote git.Remote, sha string) checkout {
	t.Helper()
	var written bytes.Buffer
	commit, err := client.Archive(t.Context(), remote, sha, &written)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return checkout{commit, written.Bytes()}
}

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

func copyAll(to io.Writer, from io.Reader) { _, _ = io.Copy(to, from) }
