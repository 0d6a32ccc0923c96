package v1

import (
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

const (
	// MinResyncInterval is the shortest resync interval of a Stack, and the default.
	MinResyncInterval = 60 * time.Second

	// DefaultRetryMaxBackoff is the longest time between two attempts of a failed update if the spec sets none.
	DefaultRetryMaxBackoff = 24 * time.Hour

	// DefaultUpdateHistoryLimit is how many ended Updates of a Stack are kept if the spec sets no limit.
	DefaultUpdateHistoryLimit = 10
)

// GetConditions returns the conditions of the Stack.
func (in *Stack) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the Stack.
func (in *Stack) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// CancelRequested reports whether CancelUpdateAnnotation of a Stack or an Update requests to stop the operation.
func CancelRequested(object metav1.Object) bool {
	return object.GetAnnotations()[CancelUpdateAnnotation] == "true"
}

// OwningStack returns the first Stack among the owners of the object, or nil if there is none.
func OwningStack(object metav1.Object) *metav1.OwnerReference {
	for _, owner := range object.GetOwnerReferences() {
		if isStack(owner) {
			return &owner
		}
	}
	return nil
}

func isStack(owner metav1.OwnerReference) bool {
	return owner.Kind == StackKind && strings.HasPrefix(owner.APIVersion, GroupVersion.Group+"/")
}

// Owns reports whether the Stack is among the owners of the object. The UID alone is not enough: the admission policy that keeps users from
// naming a Stack as an owner looks at the kind, and the garbage collector keeps an owner whose kind it does not know.
func (in *Stack) Owns(object metav1.Object) bool {
	return slices.ContainsFunc(object.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return isStack(owner) && owner.UID == in.UID })
}

// Created reports whether the controller of the Stack created the Update that is in progress, and nobody has edited its specification since.
// Only the status of the Stack proves that: anybody who may create Updates can set owner references, labels and annotations.
func (in *Stack) Created(update metav1.Object) bool {
	current := in.Status.CurrentUpdate
	return current != nil && current.UID != "" && current.UID == update.GetUID() && update.GetGeneration() == 1
}

// KeepsOutputsOf reports whether the Update has outputs that may be needed again: they were written for spec.outputs, or, if isInput is true,
// other Stacks have them as inputs.
func (in *Stack) KeepsOutputsOf(update metav1.Object, isInput bool) bool {
	written, stored := in.Status.OutputObjects, in.Status.StoredOutputs
	return len(in.Spec.Outputs) > 0 && written != nil && written.UID == update.GetUID() ||
		(isInput || len(in.Spec.ShareOutputs) > 0) && stored != nil && stored.UID == update.GetUID()
}

// VerifiedDigests returns the digests of artifacts that count as verified until their source refuses what it publishes.
func (in *StackStatus) VerifiedDigests() []string {
	return append([]string{in.VerifiedDigest}, in.EarlierVerifiedDigests...)
}

// SharesOutput reports whether Stacks of the namespace may use the output, which is secret or not. Those of its own may use all.
func (in *Stack) SharesOutput(namespace, output string, secret bool) bool {
	return namespace == in.Namespace || slices.ContainsFunc(in.Spec.ShareOutputs, func(share OutputShare) bool {
		return (share.Secrets || !secret) && slices.Contains(share.Outputs, output) &&
			slices.ContainsFunc(share.Namespaces, func(pattern string) bool {
				// A name has no slash, and a pattern no other special character: the API server refuses them.
				matches, err := path.Match(pattern, namespace)
				return err == nil && matches
			})
	})
}

// GetLastHandledReconcileRequest returns the value of reconcile.fluxcd.io/requestedAt that was handled last.
func (in *Stack) GetLastHandledReconcileRequest() string {
	return in.Status.GetLastHandledReconcileRequest()
}

// GetLastHandledForceRequestStatus returns a pointer to the status field with the value of reconcile.fluxcd.io/forceAt that was handled
// last.
func (in *Stack) GetLastHandledForceRequestStatus() *string {
	return &in.Status.LastHandledForceAt
}

// GetTimeout returns how long one update may take; 0 means that there is no limit.
func (in *Stack) GetTimeout() time.Duration {
	if in.Spec.Timeout == nil {
		return 0
	}
	return max(in.Spec.Timeout.Duration, 0)
}

// GetResyncInterval returns the resync interval of the Stack, which is at least MinResyncInterval.
func (in *Stack) GetResyncInterval() time.Duration {
	if in.Spec.ResyncFrequency != nil {
		return max(in.Spec.ResyncFrequency.Duration, MinResyncInterval)
	}
	return max(seconds(in.Spec.ResyncFrequencySeconds), MinResyncInterval)
}

// GetRetryInterval returns the fixed time between two attempts of a failed update; 0 means that the time grows with every failure.
func (in *Stack) GetRetryInterval() time.Duration {
	if in.Spec.RetryInterval == nil {
		return 0
	}
	return max(in.Spec.RetryInterval.Duration, 0)
}

// GetRetryMaxBackoff returns the longest time between two attempts of a failed update.
func (in *Stack) GetRetryMaxBackoff() time.Duration {
	if in.Spec.RetryMaxBackoffDurationSeconds <= 0 {
		return DefaultRetryMaxBackoff
	}
	return seconds(in.Spec.RetryMaxBackoffDurationSeconds)
}

// GetWorkspaceReclaimPolicy returns what happens to the Workspace after a successful update.
func (in *Stack) GetWorkspaceReclaimPolicy() WorkspaceReclaimPolicy {
	if in.Spec.WorkspaceReclaimPolicy == "" {
		return WorkspaceReclaimRetain
	}
	return in.Spec.WorkspaceReclaimPolicy
}

// GetUpdateHistoryLimit returns how many ended Updates are kept, 0 to 100.
func (in *Stack) GetUpdateHistoryLimit() int {
	if in.Spec.UpdateHistoryLimit == nil {
		return DefaultUpdateHistoryLimit
	}
	return min(max(int(*in.Spec.UpdateHistoryLimit), 0), 100)
}

// seconds converts a number of seconds, however large, without overflow.
func seconds(n int64) time.Duration {
	const limit = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(max(n, 0), limit)) * time.Second
}

// IsPreview reports whether the Stack only previews: it says so in its spec, or gives its Updates that type, as was usual before spec.preview.
func (in *Stack) IsPreview() bool {
	template := in.Spec.UpdateTemplate
	return in.Spec.Preview || template != nil && template.Spec != nil && template.Spec.Type == autov1alpha1.UpdateTypePreview
}

// HasGitSource reports whether any field of a direct git source is set.
func (in *Stack) HasGitSource() bool {
	return in.Spec.GitSource != (GitSource{})
}
