package artifact_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

var _ manager.Runnable = &artifact.Fetcher{}

// startFetcher runs a fetcher until the end of the test, or until stop, which waits for its end.
func startFetcher(t *testing.T, store *artifact.Store, concurrency int) (fetcher *artifact.Fetcher, stop func()) {
	t.Helper()
	fetcher = artifact.NewFetcher(store, concurrency)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fetcher.Start(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.CompareAndSwap(false, true) {
			cancel()
			NewWithT(t).Expect(<-ended).To(Succeed())
		}
	}
	t.Cleanup(stop)
	return fetcher, stop
}

func waiterNamed(name string) k8stypes.NamespacedName {
	return k8stypes.NamespacedName{Namespace: "apps", Name: name}
}

// ForWaiter matches the event that is sent to the waiter.
func ForWaiter(waiter k8stypes.NamespacedName) types.GomegaMatcher {
	return Equal(event.GenericEvent{Object: &metav1.PartialObjectMetadata{
		Namespace: waiter.Namespace, Name: waiter.Name,
	}})
}

func TestFailureIsReportedOnceToEachWaiterBeforeTheNextAttempt(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	proceed := make(chan struct{})
	server.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		<-proceed
		w.WriteHeader(http.StatusNotFound)
	})
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 0)
	waiters := []k8stypes.NamespacedName{waiterNamed("a"), waiterNamed("b"), waiterNamed("c")}
	for _, waiter := range waiters {
		g.Expect(fetcher.Request(ref, waiter)).To(BeEmpty())
	}
	close(proceed)
	for range waiters {
		g.Eventually(fetcher.Events()).Should(Receive())
	}
	for _, waiter := range waiters {
		stored, err := fetcher.Request(ref, waiter)
		g.Expect(stored).To(BeEmpty())
		g.Expect(err).To(HaveKind(artifact.NotFound))
	}
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1), "asking for the result does not start an attempt")

	server.answerWith(nil)
	g.Expect(fetcher.Request(ref, waiters[0])).To(BeEmpty())
	g.Eventually(fetcher.Events()).Should(Receive(ForWaiter(waiters[0])))
	g.Expect(fetcher.Request(ref, waiters[0])).To(Equal(ref.Digest))
	g.Expect(server.requests.Load()).To(BeEquivalentTo(2))
	g.Consistently(fetcher.Events(), "50ms").ShouldNot(Receive(), "the result is delivered once")
}

func TestReferenceThatCannotBeFetchedIsRefusedAtOnce(t *testing.T) {
	g := NewWithT(t)
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 0)
	for range 2 {
		_, err := fetcher.Request(artifact.Reference{URL: "http://host/a", Digest: "latest"}, waiterNamed("a"))
		g.Expect(err).To(HaveKind(artifact.Unusable))
		_, err = fetcher.Request(artifact.Reference{URL: "http://host/" + strings.Repeat("a", 4<<10), Digest: digest.FromString("a").String()}, waiterNamed("a"))
		g.Expect(err).To(HaveKind(artifact.Unusable))
	}
	g.Consistently(fetcher.Events(), "50ms").ShouldNot(Receive())
}

func TestThousandWaitersShareOneDownload(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	ref := server.publish("name: demo")
	fetcher := artifact.NewFetcher(newStore(t, artifact.Options{}), 0)
	waiting := map[string]bool{}
	for i := range 1000 {
		waiter := waiterNamed(fmt.Sprintf("stack-%d", i))
		waiting[waiter.Name] = true
		g.Expect(fetcher.Request(ref, waiter)).To(BeEmpty(), "before the start, requests are taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = fetcher.Start(ctx) }()
	for range 1000 {
		var got event.GenericEvent
		g.Eventually(fetcher.Events()).Should(Receive(&got))
		g.Expect(waiting).To(HaveKey(got.Object.GetName()))
		delete(waiting, got.Object.GetName())
	}
	g.Expect(waiting).To(BeEmpty())
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
}

func TestDownloadsGoOnWhenNobodyTakesEvents(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	store := newStore(t, artifact.Options{})
	fetcher, stop := startFetcher(t, store, 2)
	var refs []artifact.Reference
	for i := range 20 {
		ref := server.publish(fmt.Sprint("program ", i))
		refs = append(refs, ref)
		g.Expect(fetcher.Request(ref, waiterNamed(fmt.Sprint(i)))).To(BeEmpty())
	}
	for _, ref := range refs {
		g.Eventually(store.Stored).WithArguments(ref).ShouldNot(BeEmpty())
	}
	stop()
}

func TestDownloadsAndMakingsAtTheSameTimeAreBounded(t *testing.T) {
	g := NewWithT(t)
	server := newServer(t)
	var running, most atomic.Int32
	proceed := make(chan struct{})
	work := func() {
		now := running.Add(1)
		defer running.Add(-1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		<-proceed
	}
	server.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		work()
		w.WriteHeader(http.StatusNotFound)
	})
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), 2)
	for i := range 4 {
		_, made := makerBy(fmt.Sprint(i), func(context.Context, io.Writer) error {
			work()
			return errors.New("done")
		})
		g.Expect(fetcher.Request(made, waiterNamed(fmt.Sprint("made", i)))).To(BeEmpty())
		g.Expect(fetcher.Request(server.publish(fmt.Sprint(i)), waiterNamed(fmt.Sprint(i)))).To(BeEmpty())
	}
	g.Eventually(running.Load).Should(BeEquivalentTo(2))
	close(proceed)
	for range 8 {
		g.Eventually(fetcher.Events()).Should(Receive())
	}
	g.Expect(most.Load()).To(BeEquivalentTo(2))
}

func TestEndOfTheFetcherEndsDownloadsAndMakings(t *testing.T) {
	g := NewWithT(t)
	var running atomic.Int32
	untilEnded := func(step func() error) (err error) {
		running.Add(1)
		defer running.Add(-1)
		for err == nil {
			err = step()
		}
		return err
	}
	server := newServer(t)
	ref := server.publish("name: demo")
	server.answerWith(func(_ http.ResponseWriter, r *http.Request) {
		_ = untilEnded(func() error { <-r.Context().Done(); return r.Context().Err() })
	})
	_, waiting := makerBy("waiting", func(ctx context.Context, _ io.Writer) error {
		return untilEnded(func() error { <-ctx.Done(); return ctx.Err() })
	})
	_, writing := makerBy("writing", func(_ context.Context, to io.Writer) error {
		return untilEnded(func() error { _, err := to.Write([]byte{0}); return err })
	})
	fetcher, stop := startFetcher(t, newStore(t, artifact.Options{Limits: artifact.Limits{MaxDownloadSize: 1 << 40}}), 0)
	for name, ref := range map[string]artifact.Reference{"a": ref, "b": waiting, "c": writing} {
		g.Expect(fetcher.Request(ref, waiterNamed(name))).To(BeEmpty())
	}
	g.Eventually(running.Load).Should(BeEquivalentTo(3))
	stop()
	g.Eventually(running.Load).Should(BeZero())
}
