// Package agentpb is the protocol between the controller and the agent of one workspace: the code that is generated from
// agent.proto, and the few rules that both sides need and that protobuf cannot express.
package agentpb

import "regexp"

// operationID matches ids that fit a Kubernetes UID and a file name on every file system: no dots, no separators.
var operationID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?$`)

// ValidOperationID reports whether the id can name an operation: 1 to 64 letters, digits and inner dashes.
func ValidOperationID(id string) bool {
	return operationID.MatchString(id)
}

// Final reports whether an operation never leaves the state.
func (s OperationState) Final() bool {
	switch s {
	case OperationState_OPERATION_STATE_SUCCEEDED, OperationState_OPERATION_STATE_FAILED,
		OperationState_OPERATION_STATE_INTERRUPTED, OperationState_OPERATION_STATE_CANCELLED:
		return true
	}
	return false
}

// Unplanned returns the kind without a plan: for an operation that carries out a plan, it is the kind of the same operation without a plan.
func (k OperationKind) Unplanned() OperationKind {
	switch k {
	case OperationKind_OPERATION_KIND_PLANNED_UP:
		return OperationKind_OPERATION_KIND_UP
	case OperationKind_OPERATION_KIND_PLANNED_DESTROY:
		return OperationKind_OPERATION_KIND_DESTROY
	}
	return k
}

// Planned reports whether the operation carries out a plan.
func (k OperationKind) Planned() bool {
	return k.Unplanned() != k
}
