package server

import (
	"context"
	"strings"
	"sync"
	"unicode/utf8"

	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// maxOperationMessage bounds Operation.message, in bytes.
	maxOperationMessage = 4 << 10
	// maxOutputsSize bounds the outputs of an operation, in bytes. A Secret, where they end, holds 1 MiB.
	maxOutputsSize = 8 << 20
)

// operation is one operation that the agent knows: what it is now, and who waits for a change.
type operation struct {
	// cancel asks the operation to end, for the reason given. The first reason counts.
	cancel context.CancelCauseFunc

	mu sync.Mutex
	// current has no outputs. It is replaced, never modified, so that watchers can read it without the lock.
	current *proto.Operation
	// changed is closed when current is replaced.
	changed chan struct{}
	// ended is closed when current is final.
	ended chan struct{}
	// unsaved is the result that could not be written to the disk.
	unsaved *proto.Operation
}

// newOperation wraps the operation as it is now.
func newOperation(current *proto.Operation, cancel context.CancelCauseFunc) *operation {
	o := &operation{cancel: cancel, current: current, changed: make(chan struct{}), ended: make(chan struct{})}
	if current.GetState().Final() {
		close(o.ended)
	}
	return o
}

// observe returns the operation as it is now, and a channel that is closed when it is something else.
func (o *operation) observe() (*proto.Operation, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current, o.changed
}

// snapshot returns the operation as it is now.
func (o *operation) snapshot() *proto.Operation {
	current, _ := o.observe()
	return current
}

// final tells whether the operation is over.
func (o *operation) final() bool {
	return o.snapshot().GetState().Final()
}

// replace tells everybody who watches what the operation is now.
func (o *operation) replace(next *proto.Operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current = next
	close(o.changed)
	o.changed = make(chan struct{})
	if next.GetState().Final() {
		close(o.ended)
	}
}

// keepResult holds a result in memory that could not be written to the disk.
func (o *operation) keepResult(result *proto.Operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsaved = result
}

// keptResult returns what keepResult was given.
func (o *operation) keptResult() *proto.Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unsaved
}

// advanced returns current with the progress that the runner reported. The state only ever moves forward, and not to
// its end: that is for the result.
func advanced(current, progress *proto.Operation) *proto.Operation {
	next := gproto.CloneOf(current)
	if state := progress.GetState(); state > current.GetState() && !state.Final() {
		next.State = state
	}
	next.ResourceChanges = progress.GetResourceChanges()
	next.Message = progress.GetMessage()
	next.Permalink = progress.GetPermalink()
	next.LockHolder = progress.GetLockHolder()
	next.Project = progress.GetProject()
	// The runner may go on to use what it passed.
	return sanitize(gproto.CloneOf(next))
}

// withoutOutputs returns a copy that has no outputs.
func withoutOutputs(result *proto.Operation) *proto.Operation {
	bare := gproto.CloneOf(result)
	bare.Outputs = nil
	return bare
}

// sanitize makes the operation one that can be encoded and sent: text that is not UTF-8 cannot, and everything is bounded.
func sanitize(operation *proto.Operation) *proto.Operation {
	operation.Message = clip(operation.GetMessage(), maxOperationMessage)
	operation.Permalink = clip(operation.GetPermalink(), maxOperationMessage)
	if project := operation.GetProject(); project != nil {
		project.Name = clip(project.GetName(), maxOperationMessage)
		project.Runtime = clip(project.GetRuntime(), maxOperationMessage)
	}
	if holder := operation.GetLockHolder(); holder != nil {
		holder.User = clip(holder.GetUser(), maxOperationMessage)
		holder.Host = clip(holder.GetHost(), maxOperationMessage)
	}
	for key := range operation.GetResourceChanges() {
		if !utf8.ValidString(key) {
			delete(operation.ResourceChanges, key)
		}
	}
	size := 0
	for key, output := range operation.GetOutputs() {
		size += len(key) + len(output.GetValue())
		if !utf8.ValidString(key) {
			delete(operation.Outputs, key)
		}
	}
	if size > maxOutputsSize {
		operation.Outputs = nil
		operation.Message = clip("the outputs are left out: they are larger than 8 MiB; "+operation.GetMessage(), maxOperationMessage)
	}
	return operation
}

// clip returns valid UTF-8 of at most max bytes.
func clip(text string, max int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= max {
		return text
	}
	const ellipsis = "…"
	text = text[:max-len(ellipsis)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + ellipsis
}
