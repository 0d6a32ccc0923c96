package update

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// endings are the ends of operations that observers saw. An agent whose pod is ended tells how its operation ended, and may be
// gone, with all that it knew, before it can be asked again.
type endings struct {
	mu   sync.Mutex
	seen map[types.NamespacedName]*proto.Operation
}

func newEndings() *endings {
	return &endings{seen: map[types.NamespacedName]*proto.Operation{}}
}

// keep remembers the final operation.
func (e *endings) keep(key types.NamespacedName, operation *proto.Operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[key] = operation
}

// drop forgets what was seen for the Update.
func (e *endings) drop(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, key)
}

// of returns how the operation of the Update ended; nil when nobody saw it, and when outputs belong to it that only the agent
// had: such an operation is run again.
func (e *endings) of(key types.NamespacedName, uid types.UID) *proto.Operation {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := e.seen[key]
	if ended == nil || ended.GetId() != string(uid) {
		return nil
	}
	succeeded := ended.GetState() == proto.OperationState_OPERATION_STATE_SUCCEEDED
	if succeeded && (ended.GetKind() == proto.OperationKind_OPERATION_KIND_UP || ended.GetKind() == proto.OperationKind_OPERATION_KIND_REFRESH) {
		return nil
	}
	return ended
}
