package tracing_test

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/metrics"
	"github.com/stack-controller/stack-controller/internal/report/tracing"
	"github.com/stack-controller/stack-controller/tests/framework/otlpreceiver"
)

func newUpdate(uid, stack, revision string) *autov1alpha1.Update {
	created := time.Now().Add(-time.Minute).Truncate(time.Second)
	started := metav1.NewTime(created.Add(5 * time.Second))
	return &autov1alpha1.Update{
		Namespace: "apps", Name: stack + "-1", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(created),
		Labels: map[string]string{pulumiv1.StackNameLabel: stack},
		Spec: autov1alpha1.UpdateSpec{
			Type: autov1alpha1.UpdateTypeUp, StackName: "dev", Source: &autov1alpha1.UpdateSource{Revision: revision, Digest: "sha256:1"},
		},
		Status: autov1alpha1.UpdateStatus{State: autov1alpha1.UpdateStateSucceeded, StartTime: &started},
	}
}

// followed makes the Update one that follows a change of the source ten seconds before its creation.
func followed(update *autov1alpha1.Update) *autov1alpha1.Update {
	at := update.CreationTimestamp.Add(-10 * time.Second)
	update.Annotations = map[string]string{pulumiv1.SourceTimeAnnotation: at.UTC().Format(time.RFC3339)}
	return update
}

func TestUpdatesThatFollowARevisionAreOneTraceWithTheirPhases(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			g := NewWithT(t)
			receiver, err := otlpreceiver.Start()
			g.Expect(err).NotTo(HaveOccurred())
			defer receiver.Stop()
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.Endpoint(protocol))
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=prod")
			tracer, err := tracing.New(t.Context(), "stack-controller", "v1", logr.Discard())
			g.Expect(err).NotTo(HaveOccurred())
			updates, err := metrics.NewUpdates(prometheus.NewRegistry(), tracer)
			g.Expect(err).NotTo(HaveOccurred())

			whole := followed(newUpdate("uid-1", "network", "main@sha1:1"))
			updates.Waiting(whole, metrics.PhaseQueue, time.Time{})
			updates.Waiting(whole, metrics.PhaseFetch, time.Time{})
			updates.Started(whole)
			updates.Ended(whole, metrics.Took{Total: 3 * time.Second, Run: 2 * time.Second})
			// An Update of another Stack, of which the controller saw only the end.
			updates.Ended(followed(newUpdate("uid-2", "shop", "main@sha1:1")), metrics.Took{Total: time.Second, Run: time.Second})
			// An Update that somebody requested.
			failed := newUpdate("uid-3", "network", "main@sha1:1")
			failed.Status.State = autov1alpha1.UpdateStateFailed
			failed.Status.Conditions = []metav1.Condition{
				{Type: autov1alpha1.UpdateFailed, Status: metav1.ConditionTrue, Reason: "ProgramError"}, {Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}}
			updates.Ended(failed, metrics.Took{})
			g.Expect(tracer.Stop()).To(Succeed())

			spans := receiver.Spans()
			g.Expect(receiver.Resource()).To(And(HaveKeyWithValue("service.name", "stack-controller"),
				HaveKeyWithValue("service.version", "v1"), HaveKeyWithValue("k8s.cluster.name", "prod")))
			one, two, three := find(g, spans, "uid-1"), find(g, spans, "uid-2"), find(g, spans, "uid-3")
			g.Expect(one.Name).To(Equal("Stack: apps/network"))
			g.Expect(one.Attributes).To(And(HaveKeyWithValue("revision", "main@sha1:1"), HaveKeyWithValue("object.kind", "Stack"),
				HaveKeyWithValue("pulumi.operation", "up"), HaveKeyWithValue("pulumi.result", "succeeded")))
			g.Expect(one.Failure).To(BeEmpty())
			g.Expect(two.Trace).To(Equal(one.Trace))
			g.Expect(three.Trace).NotTo(Equal(one.Trace))
			g.Expect(three.Failure).To(Equal("ProgramError"))

			var phases []string
			for _, span := range spans {
				if span.Parent == one.ID {
					phases = append(phases, span.Name)
					g.Expect(span.Trace).To(Equal(one.Trace))
					g.Expect(span.Start).NotTo(BeTemporally("<", one.Start))
					g.Expect(span.End).NotTo(BeTemporally("<", span.Start))
				}
			}
			g.Expect(phases).To(ConsistOf("source", "queue", "fetch", "prepare", "run"))
			g.Expect(one.Start).To(BeTemporally("==", whole.CreationTimestamp.Add(-10*time.Second)))
		})
	}
}

func TestUnknownProtocolIsRefused(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke-signals")
	_, err := tracing.New(t.Context(), "stack-controller", "v1", logr.Discard())
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring(`it must be grpc or http/protobuf`)))
}

// find returns the span of the Update.
func find(g *WithT, spans []otlpreceiver.Span, uid string) otlpreceiver.Span {
	for _, span := range spans {
		if span.Attributes["token"] == uid {
			return span
		}
	}
	g.Expect(spans).To(BeEmpty(), "none of them is that of "+uid)
	return otlpreceiver.Span{}
}
