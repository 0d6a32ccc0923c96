package events_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	"github.com/stack-controller/stack-controller/internal/report/events"
)

// receiver takes the place of notification-controller: a real HTTP server.
type receiver struct {
	*httptest.Server
	events      chan eventv1.Event // those that were accepted
	requests    atomic.Int32
	connections atomic.Int32
	// answer decides on the n-th request, counted from 1; nil accepts all.
	answer func(n int32, event eventv1.Event) int
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	return newReceiverThat(t, nil)
}

func newReceiverThat(t *testing.T, answer func(n int32, event eventv1.Event) int) *receiver {
	t.Helper()
	r := &receiver{events: make(chan eventv1.Event, 2000), answer: answer}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.handle))
	r.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			r.connections.Add(1)
		}
	}
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) handle(w http.ResponseWriter, request *http.Request) {
	n := r.requests.Add(1)
	var event eventv1.Event
	if err := json.NewDecoder(request.Body).Decode(&event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status := http.StatusAccepted
	if r.answer != nil {
		status = r.answer(n, event)
	}
	if status == http.StatusAccepted {
		r.events <- event
	}
	w.Header().Set("Retry-After", "3600")
	w.WriteHeader(status)
	fmt.Fprint(w, "an answer with a body")
}

// messages takes n accepted events.
func (r *receiver) messages(g Gomega, n int) []string {
	var messages []string
	for range n {
		var event eventv1.Event
		g.Eventually(r.events, timeout).Should(Receive(&event))
		messages = append(messages, event.Message)
	}
	return messages
}

func TestAHangingReceiverHoldsUpNeitherCallersNorKubernetesEvents(t *testing.T) {
	g := NewWithT(t)
	hang := make(chan struct{})
	receiver := newReceiverThat(t, func(int32, eventv1.Event) int { <-hang; return http.StatusAccepted })
	t.Cleanup(func() { close(hang) })
	f := start(t, events.Options{Address: receiver.URL, DrainTimeout: 50 * time.Millisecond})

	const count = 200
	slowest := time.Duration(0)
	for i := range count {
		begin := time.Now()
		// Different objects, so that client-go does not fold the events into one.
		object := subject()
		object.Name = fmt.Sprintf("web-%d", i)
		f.Event(object, corev1.EventTypeNormal, "Done", "message")
		slowest = max(slowest, time.Since(begin))
		g.Eventually(f.kubernetes, timeout).Should(Receive())
	}
	g.Expect(slowest).To(BeNumerically("<", 5*time.Second))
	g.Expect(receiver.requests.Load()).To(BeNumerically("<=", 1))

	begin := time.Now()
	f.stop()
	g.Expect(time.Since(begin)).To(BeNumerically("<", 5*time.Second))
	g.Expect(f.count("abandoned")).To(BeEquivalentTo(count))
}

func TestEventsArriveInOrderAfterAnOutage(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiverThat(t, func(n int32, _ eventv1.Event) int {
		if n <= 2 {
			return http.StatusServiceUnavailable
		}
		return http.StatusAccepted
	})
	f := start(t, events.Options{Address: receiver.URL})
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("message %d", i))
		f.Event(subject(), corev1.EventTypeNormal, "Done", want[i])
	}
	g.Expect(receiver.messages(g, 20)).To(Equal(want))
	g.Eventually(func() float64 { return f.count("sent") }, timeout, pollInterval).Should(BeEquivalentTo(20))
	g.Expect(receiver.requests.Load()).To(BeEquivalentTo(22))
}

func TestAnEventThatTheReceiverDoesNotWantIsNotRepeated(t *testing.T) {
	for status, outcome := range map[int]string{
		http.StatusTooManyRequests:   "duplicate",
		http.StatusBadRequest:        "rejected",
		http.StatusTemporaryRedirect: "rejected",
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			g := NewWithT(t)
			receiver := newReceiverThat(t, func(n int32, _ eventv1.Event) int {
				if n == 1 {
					return status
				}
				return http.StatusAccepted
			})
			f := start(t, events.Options{Address: receiver.URL})
			f.Event(subject(), corev1.EventTypeNormal, "Done", "first")
			f.Event(subject(), corev1.EventTypeNormal, "Done", "second")
			g.Expect(receiver.messages(g, 1)).To(Equal([]string{"second"}))
			g.Expect(f.count(outcome)).To(BeEquivalentTo(1))
			g.Expect(receiver.requests.Load()).To(BeEquivalentTo(2))
		})
	}
}

func TestAnEventExpiresWhenTheReceiverStaysAway(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	receiver.Close()
	f := start(t, events.Options{Address: receiver.URL, Expiry: time.Millisecond})
	f.Event(subject(), corev1.EventTypeNormal, "Done", "lost")
	f.Event(subject(), corev1.EventTypeNormal, "Done", "lost too")
	g.Eventually(func() float64 { return f.count("expired") }, timeout, pollInterval).Should(BeEquivalentTo(2))
	g.Expect(f.logged).To(Receive(ContainSubstring("not delivered")))
	g.Expect(f.logged).NotTo(Receive(), "a second line within the same minute")
}

func TestAFullQueueKeepsTheNewestEvents(t *testing.T) {
	g := NewWithT(t)
	release := make(chan struct{})
	receiver := newReceiverThat(t, func(n int32, _ eventv1.Event) int {
		if n == 1 {
			<-release
		}
		return http.StatusAccepted
	})
	f := start(t, events.Options{Address: receiver.URL, QueueSize: 10_000})
	f.Event(subject(), corev1.EventTypeNormal, "Done", "in delivery")
	g.Eventually(receiver.requests.Load, timeout, pollInterval).Should(BeEquivalentTo(1))
	long := strings.Repeat("x", 4000)
	for i := range 5 {
		f.Event(subject(), corev1.EventTypeNormal, "Done", fmt.Sprintf("%d %s", i, long))
	}
	close(release)
	g.Expect(receiver.messages(g, 3)).To(Equal([]string{"in delivery", "3 " + long, "4 " + long}))
	g.Expect(f.count("overflow")).To(BeEquivalentTo(3))
	g.Expect(f.logged).To(Receive(ContainSubstring("more than 10000 bytes")))
	g.Expect(f.logged).NotTo(Receive(), "a second line within the same minute")
}

func TestStoppingDeliversWhatIsQueued(t *testing.T) {
	g := NewWithT(t)
	release := make(chan struct{})
	receiver := newReceiverThat(t, func(n int32, _ eventv1.Event) int {
		if n == 1 {
			<-release
		}
		return http.StatusAccepted
	})
	f := start(t, events.Options{Address: receiver.URL, DrainTimeout: timeout})
	for i := range 10 {
		f.Event(subject(), corev1.EventTypeNormal, "Done", fmt.Sprint(i))
	}
	g.Eventually(receiver.requests.Load, timeout, pollInterval).Should(BeEquivalentTo(1))
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	f.stop()
	g.Expect(receiver.messages(g, 10)).To(HaveLen(10))
	g.Expect(f.count("abandoned")).To(BeZero())
}

func TestDeliveriesShareOneConnection(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	f := start(t, events.Options{Address: receiver.URL})
	for i := range 20 {
		f.Event(subject(), corev1.EventTypeNormal, "Done", fmt.Sprint(i))
	}
	receiver.messages(g, 20)
	g.Expect(receiver.connections.Load()).To(BeEquivalentTo(1))
}

func TestEventsAreDeliveredOverTheTransport(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	var requested atomic.Value
	through := roundTrip(func(request *http.Request) (*http.Response, error) {
		requested.Store(request.URL.String())
		elsewhere := request.Clone(request.Context())
		elsewhere.URL.Host = receiver.Listener.Addr().String()
		return http.DefaultTransport.RoundTrip(elsewhere)
	})
	f := start(t, events.Options{Address: "http://notification-controller.invalid:80/", Transport: through})
	f.Event(subject(), corev1.EventTypeNormal, "Done", "message")
	g.Expect(receiver.messages(g, 1)).To(ConsistOf("message"))
	g.Expect(requested.Load()).To(Equal("http://notification-controller.invalid:80/"))
}

func TestReceiverThatHasTurnedToTLSDoesNotLoseEventsAtOnce(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	f := start(t, events.Options{Address: strings.Replace(server.URL, "https://", "http://", 1), Expiry: time.Second})
	f.Event(subject(), corev1.EventTypeNormal, "Done", "message")
	g.Eventually(f.logged, timeout).Should(Receive(ContainSubstring("--authorized-event-server-spiffe-id")))
	g.Expect(f.count("expired")).To(BeEquivalentTo(1))
}

// TestAReceiverThatDoesNotExistIsNoLoss is about an installation without notification-controller, which the alert about lost events leaves out.
func TestAReceiverThatDoesNotExistIsNoLoss(t *testing.T) {
	for ended, missing := range map[string]bool{"unknown": true, "expired": false} {
		t.Run(ended, func(t *testing.T) {
			g := NewWithT(t)
			resolves := roundTrip(func(*http.Request) (*http.Response, error) {
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no answer", Name: "notification-controller", IsNotFound: missing}}
			})
			f := start(t, events.Options{Address: "http://notification-controller/", Transport: resolves, Expiry: time.Millisecond})
			f.Event(subject(), corev1.EventTypeNormal, "Done", "message")
			g.Eventually(func() float64 { return f.count(ended) }, timeout, pollInterval).Should(BeEquivalentTo(1))
			if missing {
				g.Eventually(f.logged, timeout).Should(Receive(ContainSubstring("remove the flag")))
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
