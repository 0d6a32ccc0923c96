package stack

import (
	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// reconcileRequest is the value of the Pulumi annotation that asks for an update.
func reconcileRequest(stack *pulumiv1.Stack) string {
	return stack.Annotations[pulumiv1.ReconcileRequestAnnotation]
}

// requestedAt is the value of the Flux annotation that asks for an update.
func requestedAt(stack *pulumiv1.Stack) string {
	token, _ := meta.ReconcileAnnotationValue(stack.Annotations)
	return token
}

// unhandledRequest returns the request, in either annotation, that no update was made for yet.
func unhandledRequest(stack *pulumiv1.Stack) string {
	if request := reconcileRequest(stack); request != "" && request != stack.Status.ObservedReconcileRequest {
		return request
	}
	if token := requestedAt(stack); token != "" && token != stack.Status.LastHandledReconcileAt {
		return token
	}
	return ""
}

func commitOf(artifact *source.Artifact) string {
	if artifact == nil {
		return ""
	}
	return artifact.Commit()
}

func describeRevision(artifact *source.Artifact) string {
	switch {
	case artifact == nil:
		return "none"
	case artifact.Revision == "":
		return artifact.Digest
	}
	return artifact.Revision
}
