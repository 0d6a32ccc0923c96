package git_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// azure makes git's own server behave like Azure DevOps: it speaks version 0 of the protocol, has multi_ack but not its detailed form, has
// allow-tip-sha1-in-want but not the capability for reachable commits, and answers a request without multi_ack with status 400. It counts
// the bytes of packfiles.
type azure struct {
	next     http.Handler
	packed   atomic.Int64
	requests atomic.Int32
}

func (a *azure) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	request.Header.Del("Git-Protocol")
	if request.Method == http.MethodGet {
		answer := httptest.NewRecorder()
		a.next.ServeHTTP(answer, request)
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		w.WriteHeader(answer.Code)
		// A capability of the same length, so that the length of the packet stays right.
		_, _ = w.Write(bytes.Replace(answer.Body.Bytes(), []byte("multi_ack_detailed"), []byte("multi-ack-detailed"), 1))
		return
	}
	var content io.Reader = request.Body
	if request.Header.Get("Content-Encoding") == "gzip" {
		content, _ = gzip.NewReader(content)
	}
	body, _ := io.ReadAll(content)
	first, _, _ := strings.Cut(string(body), "\n")
	if a.requests.Add(1); !strings.Contains(" "+first+" ", " multi_ack ") {
		http.Error(w, "TF401030: the request is not valid", http.StatusBadRequest)
		return
	}
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	request.Header.Del("Content-Encoding")
	a.next.ServeHTTP(countingWriter{w, &a.packed}, request)
}

type countingWriter struct {
	http.ResponseWriter
	count *atomic.Int64
}

func (c countingWriter) Write(p []byte) (int, error) {
	c.count.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func TestCommitAloneIsFetchedFromAzureDevOps(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	o := newOrigin(t, root, "repo")
	for n := range 5 {
		o.write("big", fmt.Sprint(n, strings.Repeat(fmt.Sprint(n), 1000)))
		o.write("random", random(int64(n), 200_000))
		o.commit("more")
	}
	hidden := o.git("rev-parse", "HEAD")
	// The wanted commit is at the tip of a ref that the server does not show, so it can be requested only by its SHA.
	o.git("push", "--quiet", "origin", "HEAD:refs/internal/1")
	o.git("reset", "--quiet", "--hard", "HEAD~2")
	o.commit("the tip of main")
	o.config("transfer.hideRefs", "refs/internal")
	o.config("uploadpack.allowAnySHA1InWant", "false")
	o.config("uploadpack.allowReachableSHA1InWant", "false")
	o.config("uploadpack.allowTipSHA1InWant", "true") // the last, because the first takes this one away, too
	server := &azure{next: backend(t, root)}
	remote := git.Remote{URL: serve(t, server).URL + "/repo"}
	client := newClient(t, git.Options{})

	g.Expect(unpacked(t, checkedOut(t, client, remote, hidden))["random"]).To(Equal(random(4, 200_000)))
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
	g.Expect(server.packed.Load()).To(BeNumerically("<", 300_000), "one commit and no history")

	server.packed.Store(0)
	old := o.git("rev-parse", "HEAD~1")
	g.Expect(unpacked(t, checkedOut(t, client, remote, old))["random"]).To(Equal(random(2, 200_000)))
	g.Expect(server.packed.Load()).To(BeNumerically("<", 300_000))
	checkoutFails(t, client, remote, strings.Repeat("12", 20), git.RevisionNotFound)
}
