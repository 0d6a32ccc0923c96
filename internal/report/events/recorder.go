// Package events records what happens to objects: as Kubernetes events, and as notifications to Flux's notification-controller. The
// recorder of fluxcd/pkg/runtime does both, but it waits for notification-controller in the reconcile that records the event, and nothing
// can be put in the place of its client. Here notifications go into a bounded queue: recording never waits. What is sent is the same. It sends each event that it is given: whether one is repeated is up to the caller.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxKubernetesMessage is the limit of the events.k8s.io API, in bytes.
	maxKubernetesMessage = 1024
	// maxNotificationMessage is the limit of Flux's event API, which counts characters. Here it is applied to bytes.
	maxNotificationMessage = 39000
	// maxOwnMetadata is how many bytes of its own annotations an object adds to an event. It may have 256 KiB, and the events that wait for
	// Kubernetes are bounded by their number only.
	maxOwnMetadata = 4 << 10

	defaultQueueSize    = 8 << 20
	defaultExpiry       = 5 * time.Minute
	defaultDrainTimeout = 3 * time.Second
	logInterval         = time.Minute
)

// Options configure a Recorder.
type Options struct {
	// Scheme knows the kinds of the objects that events are about.
	Scheme *runtime.Scheme
	// Kubernetes records the Kubernetes events. The recorder of a controller-runtime manager uses a bounded queue of its own and never waits.
	Kubernetes record.EventRecorder
	// Address is the URL of notification-controller; empty means that no notifications are sent.
	Address string
	// Transport sends the notifications, for example over mutual TLS; http.DefaultTransport when nil.
	Transport http.RoundTripper
	// Controller is the name under which the events are reported.
	Controller string
	// Action returns what the controller did when an event with the reason occurred to an object, such as "Reconcile".
	Action func(object runtime.Object, reason string) string
	// Related returns the object that the events of an object are about as well, such as its source; nil when there is none.
	Related func(object runtime.Object) *corev1.ObjectReference
	// Log receives a line for each event, and failures of deliveries: of these, at most one line per minute and kind of failure.
	Log logr.Logger
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
	// QueueSize is the number of bytes of notifications that may wait for delivery; 8 MiB when zero. The oldest are
	// dropped to make room.
	QueueSize int
	// Expiry is for how long a notification is kept while notification-controller is unavailable; 5 minutes when
	// zero.
	Expiry time.Duration
	// DrainTimeout bounds the delivery of what is queued when the Recorder stops; 3 seconds when zero.
	DrainTimeout time.Duration
}

// Recorder is a record.EventRecorder that writes Kubernetes events and queues notifications. Deliveries happen while
// it runs (Start). Its methods never wait and may be called at any time, from any goroutine.
type Recorder struct {
	options  Options
	instance string // the name of this machine
	queue    *queue
	client   *http.Client
	metrics  *prometheus.CounterVec
	log      map[outcome]*rate.Sometimes
}

var _ record.EventRecorder = &Recorder{}

// NewRecorder returns a Recorder; Start runs it.
func NewRecorder(options Options) (*Recorder, error) {
	options.QueueSize = cmp.Or(options.QueueSize, defaultQueueSize)
	options.Expiry = cmp.Or(options.Expiry, defaultExpiry)
	options.DrainTimeout = cmp.Or(options.DrainTimeout, defaultDrainTimeout)
	if options.Address != "" {
		if err := checkAddress(options.Address); err != nil {
			return nil, err
		}
	}
	instance, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("create the event recorder: %w", err)
	}
	r := &Recorder{
		options:  options,
		instance: instance,
		queue:    newQueue(options.QueueSize),
		client: &http.Client{
			Timeout:   attemptTimeout,
			Transport: options.Transport,
			// A redirected POST would become a GET, and the notification would seem to be delivered.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		metrics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_controller_notifications_total",
			Help: "Notifications for notification-controller, by how their delivery ended.",
		}, []string{"outcome"}),
		log: map[outcome]*rate.Sometimes{},
	}
	if err := options.Registerer.Register(r.metrics); err != nil {
		return nil, fmt.Errorf("register the metrics of the event recorder: %w", err)
	}
	for _, result := range outcomes {
		r.metrics.WithLabelValues(string(result))
		r.log[result] = &rate.Sometimes{First: 1, Interval: logInterval}
	}
	return r, nil
}

// Event implements record.EventRecorder.
func (r *Recorder) Event(object runtime.Object, eventType, reason, message string) {
	r.AnnotatedEventf(object, nil, eventType, reason, "%s", message)
}

// Eventf implements record.EventRecorder.
func (r *Recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	r.AnnotatedEventf(object, nil, eventType, reason, format, args...)
}

// AnnotatedEventf implements record.EventRecorder. The annotations become the metadata of the notification;
// notification-controller keeps those whose key begins with the API group of the object, for example
// "pulumi.com/revision". The object's own annotations of the group event.toolkit.fluxcd.io are added, the shortest first, up to 4 KiB.
//
// An event of type Trace (eventv1.EventTypeTrace) is recorded in Kubernetes only. The message holds no secrets;
// Kubernetes keeps its first kilobyte, notification-controller its first 39,000 bytes.
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	about, err := reference.GetReference(r.options.Scheme, object)
	if err != nil {
		r.options.Log.Error(err, "cannot record an event without a reference to its object", "reason", reason)
		return
	}
	message := plaintext.Cut(fmt.Sprintf(format, args...), maxNotificationMessage)
	r.write(about, annotations, eventType, reason, message)
	event := &eventv1.Event{
		InvolvedObject:      *about,
		Severity:            severityOf(eventType),
		Timestamp:           metav1.Now(),
		Message:             message,
		Reason:              reason,
		Metadata:            metadataOf(object, annotations),
		ReportingController: r.options.Controller,
		ReportingInstance:   r.instance,
	}
	if eventType == eventv1.EventTypeTrace {
		eventType = corev1.EventTypeNormal // Kubernetes knows two types
	}
	r.options.Kubernetes.AnnotatedEventf(object, event.Metadata, eventType, reason, "%s", plaintext.Cut(message, maxKubernetesMessage))
	unnamed := about.Kind == "" || about.Name == "" || about.Namespace == "" // notification-controller accepts none of these
	if event.Severity == eventv1.EventSeverityTrace || r.options.Address == "" || unnamed {
		return
	}
	if r.options.Action != nil {
		event.Action = r.options.Action(object, reason)
	}
	if r.options.Related != nil {
		event.RelatedObject = r.options.Related(object)
	}
	r.enqueue(event)
}

// severityOf returns Flux's name for a type of event.
func severityOf(eventType string) string {
	switch eventType {
	case corev1.EventTypeWarning:
		return eventv1.EventSeverityError
	case eventv1.EventTypeTrace:
		return eventv1.EventSeverityTrace
	default:
		return eventv1.EventSeverityInfo
	}
}

// metadataOf returns the annotations of the event with those of the object that are meant for events.
func metadataOf(object runtime.Object, annotations map[string]string) map[string]string {
	metadata := maps.Clone(annotations)
	annotated, err := meta.Accessor(object)
	if err != nil {
		return metadata
	}
	own := maps.Clone(annotated.GetAnnotations())
	maps.DeleteFunc(own, func(key, _ string) bool { return !strings.HasPrefix(key, eventv1.Group+"/") })
	length := func(key string) int { return len(key) + len(own[key]) }
	shortestFirst := func(a, b string) int { return cmp.Or(cmp.Compare(length(a), length(b)), cmp.Compare(a, b)) }
	left := maxOwnMetadata
	for _, key := range slices.SortedFunc(maps.Keys(own), shortestFirst) {
		if left -= length(key); left < 0 {
			break
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = own[key]
	}
	return metadata
}

// enqueue puts the notification into the queue.
func (r *Recorder) enqueue(event *eventv1.Event) {
	body, err := json.Marshal(event)
	if err != nil {
		r.record(rejected, 1, fmt.Errorf("encode the event: %w", err))
		return
	}
	dropped := r.queue.push(notification{namespace: event.InvolvedObject.Namespace, body: body, expires: time.Now().Add(r.options.Expiry)})
	if dropped > 0 {
		r.record(overflow, dropped, fmt.Errorf("more than %d bytes wait for the events receiver", r.options.QueueSize))
	}
}

// Start delivers notifications until the context ends, and after that what is still queued, for at most DrainTimeout. A manager stops all
// its runnables together, so Start has to run around the manager: the last events come from controllers that stop.
func (r *Recorder) Start(ctx context.Context) error {
	delivery, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(r.options.DrainTimeout, cancel) })
	defer stop()
	for {
		item, ok := r.queue.pop(ctx)
		if !ok {
			return nil
		}
		result, err := r.deliver(delivery, item)
		r.record(result, 1, err)
	}
}

// record counts the outcome, and logs the cause when notifications were lost.
func (r *Recorder) record(result outcome, count int, err error) {
	r.metrics.WithLabelValues(string(result)).Add(float64(count))
	if err != nil {
		r.log[result].Do(func() {
			r.options.Log.Error(err, "events were not delivered to notification-controller", "outcome", result)
		})
	}
}
