package source

import (
	"container/heap"
	"slices"
	"time"
)

// pollQueue orders the looks: those that are due at some time, and those that are due and wait for a slot, by their server.
type pollQueue struct {
	timed   timedPolls
	ready   map[string][]*poll
	running map[string]int
	total   int
}

func newPollQueue() pollQueue {
	return pollQueue{ready: map[string][]*poll{}, running: map[string]int{}}
}

// at has the poll looked at then, instead of when it was to be.
func (q *pollQueue) at(p *poll, due time.Time) {
	q.remove(p)
	p.state, p.due = pollTimed, due
	heap.Push(&q.timed, p)
}

// now has the poll looked at as soon as there is a slot; first puts it before the others that wait for one.
func (q *pollQueue) now(p *poll, first bool) {
	q.remove(p)
	p.state = pollReady
	waiting := q.ready[p.host]
	if first {
		q.ready[p.host] = slices.Insert(waiting, 0, p)
		return
	}
	q.ready[p.host] = append(waiting, p)
}

// remove takes the poll out, unless it runs.
func (q *pollQueue) remove(p *poll) {
	switch p.state {
	case pollTimed:
		heap.Remove(&q.timed, p.index)
	case pollReady:
		q.setReady(p.host, slices.DeleteFunc(q.ready[p.host], func(other *poll) bool { return other == p }))
	}
	p.state = pollIdle
}

func (q *pollQueue) setReady(host string, waiting []*poll) {
	if len(waiting) == 0 {
		delete(q.ready, host)
		return
	}
	q.ready[host] = waiting
}

// expire takes out and returns the polls whose time has come.
func (q *pollQueue) expire(now time.Time) []*poll {
	var due []*poll
	for len(q.timed) > 0 && !q.timed[0].due.After(now) {
		p := q.timed[0]
		q.remove(p)
		due = append(due, p)
	}
	return due
}

// next returns when the next poll is due, and false when none is.
func (q *pollQueue) next() (time.Time, bool) {
	if len(q.timed) == 0 {
		return time.Time{}, false
	}
	return q.timed[0].due, true
}

// begin returns the polls that have a slot now. Servers are served in no particular order, so that none is always the last.
func (q *pollQueue) begin(concurrent, perHost int) []*poll {
	var begun []*poll
	for host, waiting := range q.ready {
		for len(waiting) > 0 && q.total < concurrent && q.running[host] < perHost {
			p := waiting[0]
			waiting = waiting[1:]
			p.state = pollRunning
			q.total++
			q.running[host]++
			begun = append(begun, p)
		}
		q.setReady(host, waiting)
	}
	return begun
}

// end gives the slot of the poll back.
func (q *pollQueue) end(p *poll) {
	p.state = pollIdle
	q.total--
	if q.running[p.host]--; q.running[p.host] == 0 {
		delete(q.running, p.host)
	}
}

// timedPolls is a heap, the earliest first.
type timedPolls []*poll

func (t timedPolls) Len() int           { return len(t) }
func (t timedPolls) Less(i, j int) bool { return t[i].due.Before(t[j].due) }

func (t timedPolls) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements heap.Interface.
func (t *timedPolls) Push(x any) {
	p := x.(*poll)
	p.index = len(*t)
	*t = append(*t, p)
}

// Pop implements heap.Interface.
func (t *timedPolls) Pop() any {
	last := len(*t) - 1
	p := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	return p
}
