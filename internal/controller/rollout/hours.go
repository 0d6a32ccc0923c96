package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/internal/windows"
)

const (
	// hoursBudget bounds the time in which one reconcile evaluates windows of Stacks: a Stack has up to 50, and there may be 10,000 Stacks. The
	// rest is evaluated hoursInterval later; until then these Stacks get no turn.
	hoursBudget   = 100 * time.Millisecond
	hoursInterval = time.Second
)

// hours has what the windows of the Stacks of a StackRollout allow, until that changes.
type hours struct {
	known map[types.UID]hour
	// now is when they were asked last: a clock may go back.
	now time.Time
}

type hour struct {
	generation int64
	state      windows.State
}

// hoursOf returns a function that evaluates the windows of a Stack, for one reconcile of a StackRollout with so many Stacks. Windows are
// evaluated once until the next time at which one opens or closes.
func (r *Reconciler) hoursOf(rollout types.NamespacedName, stacks int, now time.Time) func(*waves.Member) windows.State {
	value, _ := r.hours.LoadOrStore(rollout, &hours{known: map[types.UID]hour{}}) // one StackRollout is reconciled once at a time
	h := value.(*hours)
	known := h.known
	now = now.Round(0) // without the monotonic clock, which never goes back
	if len(known) > 2*stacks || now.Before(h.now) {
		clear(known) // most of these Stacks are gone, or these times are not over yet
	}
	h.now = now
	var spent time.Duration
	return func(m *waves.Member) windows.State {
		had, found := known[m.UID]
		if found && had.generation == m.Generation && (had.state.Next.IsZero() || now.Before(had.state.Next)) {
			return had.state
		}
		if spent > hoursBudget {
			return windows.State{Next: now.Add(hoursInterval)}
		}
		start := time.Now()
		state, err := windows.At(m.Windows, now)
		if err != nil {
			state = windows.State{} // the Stack says so
		}
		spent += time.Since(start)
		known[m.UID] = hour{m.Generation, state}
		return state
	}
}
