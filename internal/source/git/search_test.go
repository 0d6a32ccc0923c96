package git_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// jgit makes git's own server behave like one that is built on JGit: in version 2 of the protocol it gives only commits that are the tip of a
// ref. It counts the histories that it sends.
type jgit struct {
	next      http.Handler
	tips      func() string
	histories atomic.Int32
}

var wants = regexp.MustCompile(`want ([0-9a-f]{40})`)

func (j *jgit) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodGet {
		j.next.ServeHTTP(w, request)
		return
	}
	body, _ := io.ReadAll(request.Body)
	for _, want := range wants.FindAllSubmatch(body, -1) {
		if !strings.Contains(j.tips(), string(want[1])) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			message := fmt.Sprintf("ERR want %s not valid", want[1])
			_, _ = fmt.Fprintf(w, "%04x%s", len(message)+4, message)
			return
		}
	}
	if bytes.Contains(body, []byte("command=fetch")) && !bytes.Contains(body, []byte("deepen")) {
		j.histories.Add(1)
	}
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	j.next.ServeHTTP(w, request)
}

func startJGit(t *testing.T) (server *jgit, o *origin, remote git.Remote) {
	root := t.TempDir()
	o = newOrigin(t, root, "repo")
	server = &jgit{next: backend(t, root), tips: func() string { return gitIn(t, o.bare, "for-each-ref", "--format=%(objectname)") }}
	return server, o, git.Remote{URL: serve(t, server).URL + "/repo"}
}

func TestCommitThatIsNoTipIsCheckedOutOfAServerThatGivesOnlyTips(t *testing.T) {
	g := NewWithT(t)
	server, o, remote := startJGit(t)
	parent := o.commit("first")
	tip := o.commit("second")
	client := newClient(t, git.Options{})
	g.Expect(checkedOut(t, client, remote, tip).SHA).To(Equal(tip))
	g.Expect(server.histories.Load()).To(BeZero())
	g.Expect(checkedOut(t, client, remote, parent).SHA).To(Equal(parent))
	g.Expect(server.histories.Load()).To(Equal(int32(1)))

	missing := strings.Repeat("1", 40)
	first := checkoutFails(t, client, remote, missing, git.RevisionNotFound)
	for range 3 {
		g.Expect(checkoutFails(t, client, remote, missing, git.RevisionNotFound).Message).To(Equal(first.Message))
	}
	g.Expect(server.histories.Load()).To(Equal(int32(2)), "the history is the same")
	o.commit("third")
	checkoutFails(t, client, remote, missing, git.RevisionNotFound)
	g.Expect(server.histories.Load()).To(Equal(int32(3)))
}

func TestHistoryIsSearchedAgainOnlyWhenItHasChanged(t *testing.T) {
	g := NewWithT(t)
	server, o, remote := startJGit(t)
	o.commit("first")
	client := newClient(t, git.Options{})
	first := resolveFails(t, client, remote, "1234567", git.RevisionNotFound)
	for range 3 {
		g.Expect(resolveFails(t, client, remote, "1234567", git.RevisionNotFound).Message).To(Equal(first.Message))
	}
	g.Expect(server.histories.Load()).To(Equal(int32(1)))
	o.commit("second")
	resolveFails(t, client, remote, "1234567", git.RevisionNotFound)
	g.Expect(server.histories.Load()).To(Equal(int32(2)))
	_, err := client.ResolveName(t.Context(), remote, "7654321")
	expectKind(t, err, git.RevisionNotFound)
	g.Expect(server.histories.Load()).To(Equal(int32(2)), "a name is not searched for")
}

func TestHistoryThatIsTooLargeIsNotSearchedAgainSoon(t *testing.T) {
	g := NewWithT(t)
	server, o, remote := startJGit(t)
	for n := range 40 {
		o.commit(fmt.Sprint(n))
	}
	client := newClient(t, git.Options{Limits: archive.Limits{MaxEntries: 1}})
	for range 3 {
		g.Expect(resolveFails(t, client, remote, "1234567", git.TooLarge).Message).To(ContainSubstring("give the full hash of the commit"))
		o.commit("another")
	}
	g.Expect(server.histories.Load()).To(Equal(int32(1)))
}
