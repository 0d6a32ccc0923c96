package events

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// write logs the event with the keys of Flux's controllers, so that the log has a line for each decision that changed something. As in
// Flux, a failure is logged as an error without a stack trace. The keys of the annotations are the last parts of their names: revision,
// originRevision, token.
func (r *Recorder) write(about *corev1.ObjectReference, annotations map[string]string, eventType, reason, message string) {
	severity := eventv1.EventSeverityInfo
	if eventType == corev1.EventTypeWarning {
		severity = eventv1.EventSeverityError
	}
	values := []any{"controllerKind", about.Kind, about.Kind, klog.KRef(about.Namespace, about.Name), "namespace", about.Namespace,
		"name", about.Name, "reason", reason, "severity", severity}
	for _, key := range []string{eventv1.MetaRevisionKey, eventv1.MetaOriginRevisionKey, eventv1.MetaTokenKey} {
		for annotation, value := range annotations {
			if path.Base(annotation) == key {
				values = append(values, key, value)
			}
		}
	}
	message = plaintext.Cut(message, maxKubernetesMessage)
	if severity == eventv1.EventSeverityError {
		r.options.Log.Error(nil, message, values...)
		return
	}
	r.options.Log.Info(message, values...)
}
