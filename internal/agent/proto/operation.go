// Package proto is the protocol between the controller and the agent of one workspace: the code that is generated from
// agent.proto, and the few rules that both sides need and that protobuf cannot express.
package proto

import "regexp"

// MaxChunkSize is the largest chunk of PushSource, in bytes.
const MaxChunkSize = 1 << 20

// MaxMessageSize is the largest message that either side accepts, in bytes. A request carries all configuration of an
// operation, an Operation all outputs of a stack.
const MaxMessageSize = 16 << 20

// operationID is what fits a Kubernetes UID and a file name on every file system: no dots, no separators.
var operationID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,62}[A-Za-z0-9])?$`)

// ValidOperationID tells whether the id can name an operation: 1 to 64 letters, digits and inner dashes.
func ValidOperationID(id string) bool {
	return operationID.MatchString(id)
}

// Final tells whether the state is one that an operation never leaves.
func (s OperationState) Final() bool {
	switch s {
	case OperationState_OPERATION_STATE_SUCCEEDED, OperationState_OPERATION_STATE_FAILED,
		OperationState_OPERATION_STATE_INTERRUPTED, OperationState_OPERATION_STATE_CANCELLED:
		return true
	}
	return false
}
