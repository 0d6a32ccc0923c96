package pod

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// explainMissing says why there is no pod, and whether its creation failed.
func explainMissing(o *observation) (status runtime.Status, failed bool) {
	if o.statefulSet == nil {
		return runtime.Status{Reason: autov1alpha1.InitializingReason, Message: "the StatefulSet is being created"}, false
	}
	newest := newestEvent(o.events, "FailedCreate", "SuccessfulCreate")
	if newest == nil || newest.Type != corev1.EventTypeWarning {
		return runtime.Status{
			Reason:     autov1alpha1.WaitingForReplicasReason,
			Message:    fmt.Sprintf("the pod of StatefulSet %s has not been created yet", o.statefulSet.Name),
			RetryAfter: growing(o.now.Sub(o.missingSince)),
		}, false
	}
	reason, cause := creationProblem(newest.Message)
	status = failing(reason, "the pod cannot be created, trying again: "+quote(cause))
	status.RetryAfter = maxInterval
	return status, true
}

// creationProblem finds the cause in what the StatefulSet controller, or the API server, says.
func creationProblem(message string) (reason, cause string) {
	// "create Pod NAME in StatefulSet NAME failed error: CAUSE"
	_, cause, found := strings.Cut(message, " failed error: ")
	if !found {
		cause = message
	}
	switch {
	case strings.Contains(cause, "exceeded quota"), strings.Contains(cause, "failed quota"):
		return autov1alpha1.QuotaExceededReason, cause
	case strings.Contains(cause, "violates PodSecurity"):
		return autov1alpha1.PodSecurityViolationReason, cause
	case strings.Contains(cause, "error looking up service account"):
		return autov1alpha1.ServiceAccountNotFoundReason, cause
	case strings.Contains(cause, "because it is being terminated"):
		return autov1alpha1.NamespaceTerminatingReason, cause
	}
	return autov1alpha1.PodCreationFailedReason, cause
}

// newestEvent returns the event, of those with one of the reasons if any are given, that happened last; of several in the
// same second, one that is no problem. Nil when there is none.
func newestEvent(events []corev1.Event, reasons ...string) *corev1.Event {
	var newest *corev1.Event
	for i := range events {
		if len(reasons) > 0 && !slices.Contains(reasons, events[i].Reason) {
			continue
		}
		if newest == nil || happened(&events[i]).After(happened(newest)) ||
			happened(&events[i]).Equal(happened(newest)) && events[i].Type == corev1.EventTypeNormal {
			newest = &events[i]
		}
	}
	return newest
}

// happened is when the event happened last, to the second, which is as precise as the older kind of events is.
func happened(event *corev1.Event) time.Time {
	latest := event.CreationTimestamp.Time
	for _, at := range []time.Time{event.FirstTimestamp.Time, event.LastTimestamp.Time, event.EventTime.Time} {
		if at.After(latest) {
			latest = at
		}
	}
	if event.Series != nil && event.Series.LastObservedTime.After(latest) {
		latest = event.Series.LastObservedTime.Time
	}
	return latest.Truncate(time.Second)
}
