package operation

import (
	"strconv"
	"sync"

	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// reporter holds the operation as it is, and reports every change. The receiver of the reports decides how many of them it passes on. The
// output and the events of a process are read by other goroutines; both readers have ended when the process has.
type reporter struct {
	progress func(*agentpb.Operation)

	mu        sync.Mutex
	operation *agentpb.Operation
}

// update changes the operation and reports it.
func (r *reporter) update(change func(*agentpb.Operation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.operation)
	if r.progress != nil {
		r.progress(gproto.CloneOf(r.operation))
	}
}

// progressText is the line that says what runs now.
func progressText(changes map[string]int64, current string) string {
	var done int64
	for _, count := range changes {
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
