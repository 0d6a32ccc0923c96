package events_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/internal/report/events"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// An Alert accepts only kinds of Flux unless its definition is patched, so this test reports a GitRepository.
const alert = `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {namespace: default, name: receiver}
spec: {type: generic, address: %q}
---
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {namespace: default, name: errors}
spec:
  providerRef: {name: receiver}
  eventSeverity: info
  eventSources: [{kind: GitRepository, name: program}]
`

func TestEventsReachTheReceiverOfAnAlertThroughNotificationController(t *testing.T) {
	g := NewWithT(t)
	cp, err := controlplane.Start(t.Context(), controlplane.Options{
		Log: os.Stderr, CRDs: []string{}, WithNotificationController: true,
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(cp.Stop()).To(Succeed()) })
	end := newReceiver(t)
	_, err = cp.KubectlInput(context.Background(), fmt.Sprintf(alert, end.URL), "apply", "--filename=-")
	g.Expect(err).NotTo(HaveOccurred())

	f := start(t, events.Options{Address: cp.EventsAddr})
	object := &sourcev1.GitRepository{
		APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind,
		Namespace: "default", Name: "program",
	}
	metadata := map[string]string{
		"source.toolkit.fluxcd.io/revision": "main@sha1:0123",
		"source.toolkit.fluxcd.io/token":    "1",
		"unrelated":                         "x",
	}
	// notification-controller may not have seen the Alert yet. Another token makes it another event.
	attempt := 0
	var event eventv1.Event
	g.Eventually(func(g Gomega) {
		attempt++
		metadata["source.toolkit.fluxcd.io/token"] = fmt.Sprint(attempt)
		f.AnnotatedEventf(object, metadata, corev1.EventTypeWarning, "UpdateFailed", "pulumi up failed")
		g.Eventually(end.events, "2s").Should(Receive(&event))
	}, timeout).Should(Succeed())
	g.Expect(event.InvolvedObject.Name).To(Equal("program"))
	g.Expect(event.Message).To(Equal("pulumi up failed"))
	g.Expect(event.Severity).To(Equal(eventv1.EventSeverityError))
	g.Expect(event.Metadata).To(HaveKeyWithValue("revision", "main@sha1:0123"))
	g.Expect(event.Metadata).NotTo(HaveKey("unrelated"))

	// The same event again is a duplicate: it is not tried again and does not count as a failure.
	f.AnnotatedEventf(object, metadata, corev1.EventTypeWarning, "UpdateFailed", "pulumi up failed")
	g.Eventually(func() float64 { return f.count("duplicate") }, timeout, pollInterval).Should(BeEquivalentTo(1))
}
