package artifact_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// newTarpit returns a server that accepts every request, and sends one byte every 100 ms until the client closes the connection. stuck is
// the number of such requests.
func newTarpit(t *testing.T) (tarpit *server, stuck *atomic.Int32) {
	tarpit, stuck = newServer(t), &atomic.Int32{}
	tarpit.answerWith(func(w http.ResponseWriter, r *http.Request) {
		stuck.Add(1)
		defer stuck.Add(-1)
		drip := time.NewTicker(100 * time.Millisecond)
		defer drip.Stop()
		for {
			_, _ = w.Write([]byte{0})
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-drip.C:
			}
		}
	})
	return tarpit, stuck
}

// perNamespace is how many downloads of one namespace run at the same time in these tests.
const perNamespace = 4

func TestTarpitsOfOneNamespaceDoNotDelayDownloadsOfAnother(t *testing.T) {
	g := NewWithT(t)
	tarpit, stuck := newTarpit(t)
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), perNamespace)
	for i := range 50 {
		waiter := k8stypes.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}
		g.Expect(fetcher.Request(tarpit.publish(fmt.Sprint("tarpit ", i)), waiter)).To(BeEmpty())
	}
	g.Eventually(stuck.Load).Should(BeEquivalentTo(perNamespace))

	server := newServer(t)
	for i := range 20 {
		ref, waiter := server.publish(fmt.Sprint("program ", i)), waiterNamed(fmt.Sprint(i))
		g.Expect(fetcher.Request(ref, waiter)).To(BeEmpty())
		g.Eventually(fetcher.Events()).Should(Receive(ForWaiter(waiter)))
		g.Expect(fetcher.Request(ref, waiter)).To(Equal(ref.Digest))
	}
	g.Expect(stuck.Load()).To(BeEquivalentTo(perNamespace), "the attacker still has all that it may have")
}

func TestArtifactIsNotBehindWhatAnotherNamespaceRequestedBeforeIt(t *testing.T) {
	g := NewWithT(t)
	tarpit, stuck := newTarpit(t)
	server := newServer(t)
	ref := server.publish("name: shared")
	fetcher, _ := startFetcher(t, newStore(t, artifact.Options{}), perNamespace)
	for i := range 50 {
		waiter := k8stypes.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}
		g.Expect(fetcher.Request(tarpit.publish(fmt.Sprint("tarpit ", i)), waiter)).To(BeEmpty())
	}
	g.Eventually(stuck.Load).Should(BeEquivalentTo(perNamespace))
	// The attacker requests the same artifact, and waits behind its own tarpits.
	g.Expect(fetcher.Request(ref, k8stypes.NamespacedName{Namespace: "evil", Name: "shared"})).To(BeEmpty())
	waiter := waiterNamed("app")
	g.Expect(fetcher.Request(ref, waiter)).To(BeEmpty())
	g.Eventually(fetcher.Events()).Should(Receive(ForWaiter(waiter)))
	g.Expect(server.requests.Load()).To(BeEquivalentTo(1))
}
