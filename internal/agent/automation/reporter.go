package automation

import (
	"maps"
	"strconv"
	"sync"
	"time"

	gproto "google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// reportInterval is the shortest time between two reports of progress: a stack of a thousand resources has thousands of
// events.
const reportInterval = 200 * time.Millisecond

// reporter holds the operation as it is and passes on how it changes.
type reporter struct {
	progress func(*proto.Operation)

	mu        sync.Mutex
	operation *proto.Operation
	reported  time.Time
	pending   *time.Timer
	closed    bool
}

// update changes the operation and reports it: at once when urgent, otherwise when the interval is over.
func (r *reporter) update(urgent bool, change func(*proto.Operation)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.operation)
	if wait := reportInterval - time.Since(r.reported); !urgent && wait > 0 {
		if r.pending == nil {
			r.pending = time.AfterFunc(wait, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.report()
			})
		}
		return
	}
	r.report()
}

// report needs the lock, so that the calls are serial.
func (r *reporter) report() {
	if r.pending != nil {
		r.pending.Stop()
		r.pending = nil
	}
	r.reported = time.Now()
	if !r.closed && r.progress != nil {
		r.progress(gproto.CloneOf(r.operation))
	}
}

// close ends the reports and returns the operation; nothing is reported after it returned.
func (r *reporter) close() *proto.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.pending != nil {
		r.pending.Stop()
	}
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
