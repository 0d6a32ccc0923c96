package events_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	"github.com/stack-controller/stack-controller/internal/report/events"
)

const (
	timeout      = 20 * time.Second
	pollInterval = 10 * time.Millisecond
)

// subject is the object that the events of these tests are about.
func subject() *appsv1.Deployment {
	return &appsv1.Deployment{Namespace: "prod", Name: "web"}
}

// fixture is a running Recorder with what it sent to Kubernetes.
type fixture struct {
	*events.Recorder
	kubernetes chan *corev1.Event
	metrics    *prometheus.Registry
	logged     chan string // without the lines that repeat events
	repeated   chan string // the lines that repeat events
	stop       func()      // ends the Recorder and waits for it
}

// start runs a Recorder on a real client-go event broadcaster.
func start(t *testing.T, options events.Options) *fixture {
	t.Helper()
	g := NewWithT(t)
	f := &fixture{
		kubernetes: make(chan *corev1.Event, 2000),
		metrics:    prometheus.NewRegistry(),
		logged:     make(chan string, 2000),
		repeated:   make(chan string, 2000),
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartEventWatcher(func(event *corev1.Event) { f.kubernetes <- event })
	options.Scheme = clientgoscheme.Scheme
	options.Kubernetes = broadcaster.NewRecorder(options.Scheme, corev1.EventSource{Component: "stack-controller"})
	options.Controller = "stack-controller"
	options.Registerer = f.metrics
	options.Log = funcr.New(func(_, line string) {
		if strings.Contains(line, `"severity"=`) {
			f.repeated <- line
			return
		}
		f.logged <- line
	}, funcr.Options{})
	recorder, err := events.NewRecorder(options)
	g.Expect(err).NotTo(HaveOccurred())
	f.Recorder = recorder

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- recorder.Start(ctx) }()
	stopped := false
	f.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			g.Eventually(ended, timeout).Should(Receive(BeNil()))
		}
	}
	t.Cleanup(func() {
		f.stop()
		broadcaster.Shutdown()
	})
	return f
}

// count returns the number of notifications that ended with the outcome.
func (f *fixture) count(outcome string) float64 {
	families, err := f.metrics.Gather()
	if err != nil {
		return -1
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == outcome {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return -1
}

func TestNotificationControllerLearnsWhatHappenedToWhichRevision(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	source := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "prod", Name: "source"}
	f := start(t, events.Options{
		Address: receiver.URL,
		Action:  func(_ runtime.Object, reason string) string { return "action of " + reason },
		Related: func(runtime.Object) *corev1.ObjectReference { return source },
	})

	object := subject()
	object.Annotations = map[string]string{
		"event.toolkit.fluxcd.io/change_request": "42",
		"example.com/unrelated":                  "x",
	}
	f.AnnotatedEventf(object, map[string]string{
		"apps/revision": "main@sha1:0123",
		"apps/token":    "sha256:abcd",
	}, corev1.EventTypeWarning, "UpdateFailed", "pulumi %s failed", "up")

	var event eventv1.Event
	g.Eventually(receiver.events, timeout).Should(Receive(&event))
	g.Expect(event.InvolvedObject.APIVersion).To(Equal("apps/v1"))
	g.Expect(event.InvolvedObject.Kind).To(Equal("Deployment"))
	g.Expect(event.InvolvedObject.Namespace + "/" + event.InvolvedObject.Name).To(Equal("prod/web"))
	g.Expect(event.Severity).To(Equal(eventv1.EventSeverityError))
	g.Expect(event.Reason).To(Equal("UpdateFailed"))
	g.Expect(event.Action).To(Equal("action of UpdateFailed"))
	g.Expect(event.RelatedObject).To(Equal(source))
	g.Expect(event.ReportingInstance).NotTo(BeEmpty())
	g.Expect(event.Message).To(Equal("pulumi up failed"))
	g.Expect(event.ReportingController).To(Equal("stack-controller"))
	g.Expect(event.Timestamp.IsZero()).To(BeFalse())
	g.Expect(event.Metadata).To(Equal(map[string]string{
		"apps/revision":                          "main@sha1:0123",
		"apps/token":                             "sha256:abcd",
		"event.toolkit.fluxcd.io/change_request": "42",
	}))

	var recorded *corev1.Event
	g.Eventually(f.kubernetes, timeout).Should(Receive(&recorded))
	g.Expect(recorded.Type).To(Equal(corev1.EventTypeWarning))
	g.Expect(recorded.Message).To(Equal("pulumi up failed"))
	g.Expect(recorded.Annotations).To(HaveKeyWithValue("apps/revision", "main@sha1:0123"))
}

// As many events wait for Kubernetes as client-go allows, whatever they have.
func TestAnnotationsOfAnObjectForItsEventsAreBounded(t *testing.T) {
	g := NewWithT(t)
	f := start(t, events.Options{Address: newReceiver(t).URL})
	object := subject()
	object.Annotations = map[string]string{
		"event.toolkit.fluxcd.io/change_request": "42",
		"event.toolkit.fluxcd.io/large":          strings.Repeat("x", 200<<10),
	}
	for i := range 1000 {
		object.Annotations[fmt.Sprint("event.toolkit.fluxcd.io/many-small-annotations-", i)] = ""
	}
	f.AnnotatedEventf(object, map[string]string{"apps/revision": "main@sha1:0123"}, corev1.EventTypeWarning, "UpdateFailed", "failed")
	var recorded *corev1.Event
	g.Eventually(f.kubernetes, timeout).Should(Receive(&recorded))
	size := 0
	for key, value := range recorded.Annotations {
		size += len(key) + len(value)
	}
	g.Expect(size).To(And(BeNumerically(">", 4000), BeNumerically("<", 5000)))
	g.Expect(recorded.Annotations).To(And(HaveKeyWithValue("apps/revision", "main@sha1:0123"), HaveKeyWithValue("event.toolkit.fluxcd.io/change_request", "42")))
}

func TestTraceEventsNotifyNobody(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	f := start(t, events.Options{Address: receiver.URL})

	f.Event(subject(), eventv1.EventTypeTrace, "Step", "a step")
	f.Event(subject(), corev1.EventTypeNormal, "Done", "all steps")

	var event eventv1.Event
	g.Eventually(receiver.events, timeout).Should(Receive(&event))
	g.Expect(event.Reason).To(Equal("Done"))
	g.Expect(event.Severity).To(Equal(eventv1.EventSeverityInfo))
	var recorded *corev1.Event
	g.Eventually(f.kubernetes, timeout).Should(Receive(&recorded))
	g.Expect(recorded.Reason).To(Equal("Step"))
	g.Expect(recorded.Type).To(Equal(corev1.EventTypeNormal))
}

func TestWithoutAddressOnlyKubernetesEventsAreWritten(t *testing.T) {
	g := NewWithT(t)
	f := start(t, events.Options{})
	f.Event(subject(), corev1.EventTypeNormal, "Done", "100% done")
	var recorded *corev1.Event
	g.Eventually(f.kubernetes, timeout).Should(Receive(&recorded))
	g.Expect(recorded.Message).To(Equal("100% done"))
}

func TestLongMessagesAreShortenedForEachReader(t *testing.T) {
	g := NewWithT(t)
	receiver := newReceiver(t)
	f := start(t, events.Options{Address: receiver.URL})
	f.Eventf(subject(), corev1.EventTypeNormal, "Done", "%s", strings.Repeat("ü", 100_000))

	var recorded *corev1.Event
	g.Eventually(f.kubernetes, timeout).Should(Receive(&recorded))
	g.Expect(len(recorded.Message)).To(BeNumerically("~", 1023, 1))
	g.Expect(recorded.Message).To(HaveSuffix("ü…"))
	g.Expect(utf8.ValidString(recorded.Message)).To(BeTrue())
	var event eventv1.Event
	g.Eventually(receiver.events, timeout).Should(Receive(&event))
	g.Expect(len(event.Message)).To(BeNumerically("~", 38_999, 1))
	g.Expect(utf8.ValidString(event.Message)).To(BeTrue())
}

func TestAnEventAboutNothingIsRefusedWithoutHarm(t *testing.T) {
	g := NewWithT(t)
	f := start(t, events.Options{})
	f.Event(nil, corev1.EventTypeNormal, "Done", "about nothing")
	g.Eventually(f.logged, timeout).Should(Receive(ContainSubstring("without a reference")))
	f.Event(subject(), corev1.EventTypeNormal, "Done", "about something")
	g.Eventually(f.kubernetes, timeout).Should(Receive())
}

func TestAnAddressThatCannotWorkIsRefusedAtOnce(t *testing.T) {
	for _, address := range []string{"notification-controller", "ftp://example.com", "http://", "http://a b"} {
		t.Run(address, func(t *testing.T) {
			_, err := events.NewRecorder(events.Options{Scheme: clientgoscheme.Scheme, Address: address})
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring("the address of the events receiver")))
		})
	}
}

func TestEachEventIsALineOfTheLogWithTheKeysOfFlux(t *testing.T) {
	g := NewWithT(t)
	f := start(t, events.Options{})
	f.AnnotatedEventf(subject(), map[string]string{"apps/revision": "main@sha1:1", "apps/token": "t", "other": "x"}, corev1.EventTypeNormal, "Done", "%s", "all done")
	f.Event(subject(), corev1.EventTypeWarning, "Failed", strings.Repeat("x", 2000))
	var done, failed string
	g.Eventually(f.repeated).Should(Receive(&done))
	g.Eventually(f.repeated).Should(Receive(&failed))
	g.Expect(done).To(And(ContainSubstring(`"msg"="all done"`), ContainSubstring(`"controllerKind"="Deployment"`),
		ContainSubstring(`"Deployment"={"name"="web" "namespace"="prod"}`), ContainSubstring(`"namespace"="prod" "name"="web"`),
		ContainSubstring(`"reason"="Done" "severity"="info" "revision"="main@sha1:1" "token"="t"`), Not(ContainSubstring("other"))))
	g.Expect(failed).To(And(ContainSubstring(`"reason"="Failed" "severity"="error"`), WithTransform(func(line string) int { return len(line) }, BeNumerically("<", 1500))))
}
