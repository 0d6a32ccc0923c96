package flux_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/tests/otlpreceiver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// tracingAlert has notification-controller send its traces to the same receiver.
const tracingAlert = `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {name: traces}
spec: {type: otel, address: RECEIVER/v1/traces}
---
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: traces}
spec:
  providerRef: {name: traces}
  eventSeverity: info
  eventSources: [{kind: GitRepository, name: traced}, {kind: Stack, name: traced}]
`

func TestTraceOfACommitGoesFromItsSourceToTheEndOfTheUpdate(t *testing.T) {
	p := begin(t, "traced")
	p.apply(strings.ReplaceAll(tracingAlert, "RECEIVER", traces.Endpoint("http/protobuf")))
	repository := p.repository(p.Name, scene.Returning(p.Name, 0))
	p.Create(system.NewStack(p.Name, p.Name, sourcev1.GitRepositoryKind))
	p.Await(statuscheck.Ready(""))
	sha := p.commit(repository, p.Name, scene.Returning(p.Name, 1))
	update := p.LastUpdate(p.Await(deployed(sha)))

	var whole otlpreceiver.Span
	p.Eventually(func(g Gomega) {
		spans := spansWith("token", string(update.UID), "pulumi.operation")
		g.Expect(spans).To(HaveLen(1))
		whole = spans[0]
	}).Should(Succeed())
	p.Expect(whole.Name).To(Equal("Stack: traced/traced"))
	p.Expect(whole.Attributes).To(And(HaveKeyWithValue("revision", "main@sha1:"+sha), HaveKeyWithValue("pulumi.result", "succeeded")))
	repositoryNow := &sourcev1.GitRepository{}
	p.Get(p.Name, repositoryNow)
	p.Expect(whole.Start).To(BeTemporally("~", repositoryNow.Status.Artifact.LastUpdateTime.Time, 1e9))
	p.Expect(whole.End).NotTo(BeTemporally("<", update.Status.EndTime.Time))
	var phases []string
	for _, span := range traces.Spans() {
		if span.Parent == whole.ID {
			p.Expect(span.End).NotTo(BeTemporally("<", span.Start), span.Name)
			phases = append(phases, span.Name)
		}
	}
	p.Expect(phases).To(ContainElements("source", "prepare", "run"))

	// The traces of notification-controller have the same revision.
	p.Eventually(func(g Gomega) {
		p.Request() // an Alert has no status that says when it is in use
		g.Expect(spansWith("revision", "main@sha1:"+sha, "object.uid")).NotTo(BeEmpty())
	}, p.Patience, "1s").Should(Succeed())

	// A request is not a commit: it has a trace of its own.
	p.Eventually(func(g Gomega) {
		requested := spansWith("revision", "main@sha1:"+sha, "pulumi.operation")
		g.Expect(len(requested)).To(BeNumerically(">", 1))
		g.Expect(requested[1].Trace).NotTo(Equal(whole.Trace))
	}).Should(Succeed())
}

// spansWith returns the spans that have the attribute with the value, and the other attribute.
func spansWith(key, value, other string) (found []otlpreceiver.Span) {
	for _, span := range traces.Spans() {
		if _, has := span.Attributes[other]; has && span.Attributes[key] == value {
			found = append(found, span)
		}
	}
	return found
}
