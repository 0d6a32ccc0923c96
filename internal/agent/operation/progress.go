package operation

import (
	"maps"
	"strconv"
	"sync"

	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// reporter holds the operation as it is and passes on how it changes. Whoever watches the operation decides how often to look.
type reporter struct {
	progress func(*proto.Operation)

	mu        sync.Mutex
	operation *proto.Operation
	closed    bool
}

// update changes the operation and reports it.
func (r *reporter) update(change func(*proto.Operation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	change(r.operation)
	if r.progress != nil {
		r.progress(gproto.CloneOf(r.operation))
	}
}

// close ends the reports and returns the operation, which does not change any more.
func (r *reporter) close() *proto.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.operation
}

// progressText is the line that says what runs now.
func progressText(changes map[string]int64, current string) string {
	var done int64
	for count := range maps.Values(changes) {
		done += count
	}
	text := strconv.FormatInt(done, 10) + " resources done"
	if done == 1 {
		text = "1 resource done"
	}
	if current != "" {
		text = current + "; " + text
	}
	return text
}
