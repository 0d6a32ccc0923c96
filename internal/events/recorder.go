// Package events records what happens to objects: as Kubernetes events, and as notifications to Flux's
// notification-controller. Recording never waits for either.
package events

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
)

const (
	// maxKubernetesMessage is the limit of the events.k8s.io API, in bytes.
	maxKubernetesMessage = 1024
	// maxNotificationMessage is the limit of Flux's event API, which counts characters; in bytes.
	maxNotificationMessage = 39000

	defaultQueueSize    = 8 << 20
	defaultExpiry       = 5 * time.Minute
	defaultDrainTimeout = 3 * time.Second
	logInterval         = time.Minute
)

// Options configure a Recorder.
type Options struct {
	// Scheme knows the kinds of the objects that events are about.
	Scheme *runtime.Scheme
	// Kubernetes records the Kubernetes events. The recorder of a controller-runtime manager does so from a bounded
	// queue of its own and never waits.
	Kubernetes record.EventRecorder
	// Address is the URL of notification-controller; empty means that nobody is notified.
	Address string
	// Controller is the name under which the events are reported.
	Controller string
	// Log receives failures, at most one line per minute and kind of failure.
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
	instance string
	queue    *queue
	sender   *sender // nil when nobody is notified
	metrics  *prometheus.CounterVec
	log      map[outcome]*rate.Sometimes
}

var _ record.EventRecorder = &Recorder{}

// NewRecorder returns a Recorder; Start runs it.
func NewRecorder(options Options) (*Recorder, error) {
	if options.QueueSize == 0 {
		options.QueueSize = defaultQueueSize
	}
	if options.Expiry == 0 {
		options.Expiry = defaultExpiry
	}
	if options.DrainTimeout == 0 {
		options.DrainTimeout = defaultDrainTimeout
	}
	var receiver *sender
	if options.Address != "" {
		var err error
		if receiver, err = newSender(options.Address); err != nil {
			return nil, err
		}
	}
	instance, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the name of this host: %w", err)
	}
	metrics, err := registerMetrics(options.Registerer)
	if err != nil {
		return nil, err
	}
	recorder := &Recorder{
		options:  options,
		instance: instance,
		queue:    newQueue(options.QueueSize),
		sender:   receiver,
		metrics:  metrics,
		log:      map[outcome]*rate.Sometimes{},
	}
	for _, result := range outcomes {
		recorder.log[result] = &rate.Sometimes{First: 1, Interval: logInterval}
	}
	return recorder, nil
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
// "pulumi.com/revision". The object's own annotations of the group event.toolkit.fluxcd.io are added.
//
// An event of type Trace (eventv1.EventTypeTrace) is recorded in Kubernetes only. The message holds no secrets;
// Kubernetes keeps its first kilobyte, notification-controller its first 39,000 bytes.
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	ref, err := reference.GetReference(r.options.Scheme, object)
	if err != nil {
		r.options.Log.Error(err, "cannot record an event without a reference to its object", "reason", reason)
		return
	}
	metadata := metadataOf(object, annotations)
	message := fmt.Sprintf(format, args...)
	kubernetesType := eventType
	if eventType == eventv1.EventTypeTrace {
		kubernetesType = corev1.EventTypeNormal
	}
	r.options.Kubernetes.AnnotatedEventf(object, metadata, kubernetesType, reason, "%s", truncate(message, maxKubernetesMessage))
	if eventType == eventv1.EventTypeTrace || r.sender == nil {
		return
	}
	r.enqueue(&eventv1.Event{
		InvolvedObject:      *ref,
		Severity:            severityOf(eventType),
		Timestamp:           metav1.Now(),
		Message:             truncate(message, maxNotificationMessage),
		Reason:              reason,
		Metadata:            metadata,
		ReportingController: r.options.Controller,
		ReportingInstance:   r.instance,
	})
}

func (r *Recorder) enqueue(event *eventv1.Event) {
	body, err := json.Marshal(event)
	if err != nil {
		r.options.Log.Error(err, "cannot encode an event", "reason", event.Reason)
		return
	}
	dropped := r.queue.push(notification{body: body, expires: time.Now().Add(r.options.Expiry)})
	if dropped > 0 {
		r.record(overflow, dropped, fmt.Errorf("more than %d bytes wait for the events receiver", r.options.QueueSize))
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a controller that does not lead records events too.
func (r *Recorder) NeedLeaderElection() bool {
	return false
}

// Start implements manager.Runnable: it delivers notifications until the context ends, and then for a few seconds more
// what is queued. A manager ends its runnables together; who wants the last events of the controllers delivered too
// runs Start around the manager.
func (r *Recorder) Start(ctx context.Context) error {
	if r.sender == nil {
		<-ctx.Done()
		return nil
	}
	delivery, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(r.options.DrainTimeout, cancel) })
	defer stop()
	for {
		item, ok := r.queue.pop(ctx)
		if !ok {
			return nil
		}
		result, err := abandoned, delivery.Err()
		if err == nil {
			result, err = r.sender.deliver(delivery, item)
		}
		r.record(result, 1, err)
	}
}

// record counts the outcome, and logs its cause when it was a loss.
func (r *Recorder) record(result outcome, count int, err error) {
	r.metrics.WithLabelValues(string(result)).Add(float64(count))
	if err != nil {
		r.log[result].Do(func() {
			r.options.Log.Error(err, "events were not delivered to notification-controller", "outcome", result)
		})
	}
}

// metadataOf returns the annotations and those of the object that are meant for its events.
func metadataOf(object runtime.Object, annotations map[string]string) map[string]string {
	metadata := make(map[string]string, len(annotations))
	maps.Copy(metadata, annotations)
	annotated, ok := object.(metav1.ObjectMetaAccessor)
	if !ok {
		return metadata
	}
	for key, value := range annotated.GetObjectMeta().GetAnnotations() {
		if strings.HasPrefix(key, eventv1.Group+"/") {
			metadata[key] = value
		}
	}
	return metadata
}

func severityOf(eventType string) string {
	if eventType == corev1.EventTypeWarning {
		return eventv1.EventSeverityError
	}
	return eventv1.EventSeverityInfo
}

// truncate shortens the text to at most limit bytes without cutting a character in two.
func truncate(text string, limit int) string {
	const ellipsis = "…"
	if len(text) <= limit {
		return text
	}
	end := limit - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
