package git_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

func TestCheckoutWaitsForMemoryWithItsContext(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	sha := o.git("rev-parse", "HEAD")
	client := newClient(t, git.Options{CheckoutTimeout: time.Second})
	release, err := client.TakeMemory(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(checkoutFails(t, client, git.Remote{URL: url}, sha, git.Timeout).Message).To(ContainSubstring("busy with other checkouts"))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = client.Archive(ctx, git.Remote{URL: url}, sha, io.Discard)
	g.Expect(errors.Is(err, context.Canceled)).To(BeTrue(), "%v", err)
	release()

	checkedOut(t, client, git.Remote{URL: url}, sha)
	// The checkout gave all memory back, so the whole budget can be taken at once.
	release, err = client.TakeMemory(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	release()
}

// A checkout holds no memory while its server is slow, neither before the first packfile is downloaded nor while the packfile of a
// submodule is missing.
func TestSlowServerHoldsNoMemory(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	o := newOrigin(t, root, "repo")
	reached, end := make(chan struct{}), make(chan struct{})
	tarpit := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		close(reached)
		select {
		case <-end:
		case <-request.Context().Done():
		}
	}))
	sha := o.withSubmodule("vendor/slow", tarpit.URL+"/slow", "1111111111111111111111111111111111111111")
	client := newClient(t, git.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := client.Archive(ctx, git.Remote{URL: serve(t, backend(t, root)).URL + "/repo", RecurseSubmodules: true}, sha, io.Discard)
		ended <- err
	}()
	g.Eventually(reached, "30s").Should(BeClosed())
	taking, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	release, err := client.TakeMemory(taking)
	g.Expect(err).NotTo(HaveOccurred(), "all of the memory is free")
	release()
	cancel()
	g.Expect(<-ended).To(HaveOccurred())
	close(end)
}

func TestPackingEndsWithItsContext(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	o.write("big", random(1, 8<<20))
	client, sha := newClient(t, git.Options{}), o.commit("big")
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := client.Archive(ctx, git.Remote{URL: url}, sha, writer)
		_ = writer.Close()
		packed <- err
	}()
	_, err := io.CopyN(io.Discard, reader, 1<<20)
	g.Expect(err).NotTo(HaveOccurred())
	cancel()
	rest, err := io.Copy(io.Discard, reader)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rest).To(BeNumerically("<", 1<<20), "bytes after the end")
	g.Expect(errors.Is(<-packed, context.Canceled)).To(BeTrue())
}

// With these limits one checkout takes all of the memory. Of the checkouts with which another namespace waits, only a few come before this
// one.
func TestCheckoutIsNotBehindAllThoseOfAnotherNamespace(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	origin := newOrigin(t, root, "repo")
	origin.write("file", "content")
	sha := origin.commit("first")
	requests, repositories := atomic.Int64{}, backend(t, root)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		repositories.ServeHTTP(w, request)
		requests.Add(1)
	}))
	client := newClient(t, git.Options{Limits: archive.Limits{MaxEntries: 1_000_000}})
	var running sync.WaitGroup
	const flood = 24
	ended := make(chan string, flood+1)
	checkout := func(namespace string) {
		_, err := client.Archive(t.Context(), git.Remote{URL: server.URL + "/repo", Namespace: namespace}, sha, io.Discard)
		if err != nil {
			t.Error(err)
		}
		ended <- namespace
	}
	checkout("alone")
	<-ended
	each := requests.Load()
	release, err := client.TakeMemory(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	waiting := func(checkouts int64) {
		g.Eventually(requests.Load, "30s").Should(Equal((1 + checkouts) * each))
		time.Sleep(300 * time.Millisecond) // until the last one waits for memory, too
	}
	for range flood {
		running.Go(func() { checkout("flood") })
	}
	waiting(flood)
	running.Go(func() { checkout("team") })
	waiting(flood + 1)
	release()
	running.Wait()
	close(ended)
	var order []string
	for namespace := range ended {
		order = append(order, namespace)
	}
	g.Expect(order[:10]).To(ContainElement("team"), "%v", order)
}
