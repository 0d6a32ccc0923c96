// Package tracing sends a trace of each Update to an OpenTelemetry collector when the Update has ended: a span from the change of the
// source to the result, which contains a span for each phase. Nothing is passed from one step of an Update to the next, so the trace of an
// Update during which the controller restarts is complete except for some of the spans of phases.
package tracing

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
)

const (
	// logInterval is how often a failure to send is logged at most.
	logInterval = time.Minute
	// stopTimeout bounds the delivery of what is queued at the end.
	stopTimeout = 3 * time.Second

	// phaseSource is the time between the change of the source and the creation of the Update.
	phaseSource = "source"
)

// Tracer sends traces. Its queue is bounded, and nothing waits for it: what does not fit is dropped.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer that is configured by the standard environment variables of OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT and others).
// It does not connect yet. service is the name of the service unless OTEL_SERVICE_NAME is set.
func New(ctx context.Context, service, version string, log logr.Logger) (*Tracer, error) {
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv()) // the last one wins
	if err != nil {
		return nil, fmt.Errorf("describe the service as OTEL_RESOURCE_ATTRIBUTES says: %w", err)
	}
	sometimes := &rate.Sometimes{First: 1, Interval: logInterval}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { log.Error(err, "traces were not delivered") })
	}))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return &Tracer{provider: provider, tracer: provider.Tracer(service, trace.WithInstrumentationVersion(version))}, nil
}

func newExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	var exporter sdktrace.SpanExporter
	var err error
	switch protocol {
	case "http/protobuf":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q, it must be grpc or http/protobuf", protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare to send traces: %w", err)
	}
	return exporter, nil
}

// Stop sends what is queued, for at most stopTimeout.
func (t *Tracer) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// Ended sends the trace of an Update that has ended, with these phases. It implements metrics.Observer.
func (t *Tracer) Ended(update *autov1alpha1.Update, phases []metrics.Segment) {
	created, now := update.CreationTimestamp.Time, time.Now()
	begin := created
	if changed, err := time.Parse(time.RFC3339, update.Annotations[pulumiv1.SourceTimeAnnotation]); err == nil && !changed.After(created) {
		begin = changed
		phases = append([]metrics.Segment{{Phase: phaseSource, Start: changed, End: endOfSource(created, phases)}}, phases...)
	}
	object := objectOf(update)
	ctx, whole := t.tracer.Start(inTrace(update), fmt.Sprintf("%s: %s/%s", object.kind, update.Namespace, object.name), trace.WithTimestamp(begin),
		trace.WithAttributes(attributesOf(update, object)...))
	for _, phase := range phases {
		_, span := t.tracer.Start(ctx, string(phase.Phase), trace.WithTimestamp(phase.Start))
		span.End(trace.WithTimestamp(phase.End))
	}
	// The trace has no message: messages may be long, and are in events and the status.
	if update.HasFailed() {
		whole.SetStatus(codes.Error, conditions.GetReason(update, autov1alpha1.UpdateFailed))
	} else {
		whole.SetStatus(codes.Ok, "")
	}
	whole.End(trace.WithTimestamp(now))
}

// endOfSource returns when the Update was created. The API server records only the second. The first phase begins at the creation, so its
// start is more exact, if this controller saw it.
func endOfSource(created time.Time, phases []metrics.Segment) time.Time {
	if len(phases) > 0 && phases[0].Start.After(created) && phases[0].Start.Before(created.Add(2*time.Second)) {
		return phases[0].Start
	}
	return created
}

// inTrace returns a context in which the next span begins, or joins, the trace of the Update. All Updates that follow a change of a source
// to the same revision share the trace of that revision. An Update with another cause has a trace of its own.
func inTrace(update *autov1alpha1.Update) context.Context {
	seed := string(update.UID)
	if from := update.Spec.Source; from != nil && from.Revision != "" && update.Annotations[pulumiv1.SourceTimeAnnotation] != "" {
		seed = from.Revision
	}
	sum := sha256.Sum256([]byte(seed))
	return trace.ContextWithSpanContext(context.Background(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(sum[:16]), TraceFlags: trace.FlagsSampled}))
}

// object is what a trace is about: the Stack, or the Update itself when it has none.
type object struct{ kind, name string }

func objectOf(update *autov1alpha1.Update) object {
	if name := update.Labels[pulumiv1.StackNameLabel]; name != "" {
		return object{pulumiv1.StackKind, name}
	}
	return object{autov1alpha1.UpdateKind, update.Name}
}

// attributesOf returns the attributes of a trace, with the keys that notification-controller's traces use where these have one.
func attributesOf(update *autov1alpha1.Update, about object) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("object.kind", about.kind),
		attribute.String("object.namespace", update.Namespace),
		attribute.String("object.name", about.name),
		attribute.String(eventv1.MetaTokenKey, string(update.UID)),
		attribute.String("pulumi.operation", string(update.Spec.Type)),
		attribute.String("pulumi.stack", update.Spec.StackName),
		attribute.String("pulumi.result", strings.ToLower(string(update.Status.State))),
	}
	if from := update.Spec.Source; from != nil {
		attributes = append(attributes, attribute.String(eventv1.MetaRevisionKey, from.Revision), attribute.String(eventv1.MetaDigestKey, from.Digest))
		if from.Commit != nil {
			attributes = append(attributes, attribute.String("commit", from.Commit.SHA))
		}
	}
	return attributes
}
