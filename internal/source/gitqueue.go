package source

import (
	"container/heap"
	"slices"
	"time"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
)

const (
	// gitConcurrency is how many polls run at the same time; at most half of them for the same namespace.
	gitConcurrency = 16
	// maxPerHost is how many of these polls ask the same server; at most all but one of them for the same namespace.
	maxPerHost = 4
)

// pollQueue orders the polls. Some are due at a later time; others are due now and wait for a slot. The slots are given to the namespaces
// of the subscriptions in turn. So if one namespace has many repositories, or many servers that do not answer, the polls of the others go
// on.
type pollQueue struct {
	timed timedPolls
	// ready has the polls that wait for a slot, by namespace and by server. A poll to which several namespaces subscribe waits in each of
	// them.
	ready map[string]map[string][]*poll
	// turns has the namespaces in ready, the next one first.
	turns []string
	// running counts the slots in use: per namespace, per server, and per namespace and server.
	running map[slots]int
	total   int
}

// slots is the key of a count of slots: a namespace, a server, or both.
type slots struct {
	namespace, host string
}

func newPollQueue() pollQueue {
	return pollQueue{ready: map[string]map[string][]*poll{}, running: map[slots]int{}}
}

// schedule plans the poll for that time, instead of any other time.
func (q *pollQueue) schedule(p *poll, due time.Time) {
	q.remove(p)
	p.state, p.due = pollTimed, due
	heap.Push(&q.timed, p)
}

// enqueue queues the poll for the next free slot. With first, it comes before the other polls that wait for one.
func (q *pollQueue) enqueue(p *poll, first bool) {
	q.remove(p)
	p.state = pollReady
	for sub := range p.subscriptions {
		q.waitIn(sub.key.waiter.Namespace, p, first)
	}
}

// waitIn makes a poll that waits for a slot also wait for a slot of this namespace.
func (q *pollQueue) waitIn(namespace string, p *poll, first bool) {
	if slices.Contains(p.waitsIn, namespace) {
		return
	}
	p.waitsIn = append(p.waitsIn, namespace)
	hosts := q.ready[namespace]
	if hosts == nil {
		hosts = map[string][]*poll{}
		q.ready[namespace] = hosts
		q.turns = append(q.turns, namespace)
	}
	at := len(hosts[p.host])
	if first {
		at = 0
	}
	hosts[p.host] = slices.Insert(hosts[p.host], at, p)
}

// remove takes the poll out, unless it runs.
func (q *pollQueue) remove(p *poll) {
	switch p.state {
	case pollTimed:
		heap.Remove(&q.timed, p.index)
	case pollRunning:
		return
	case pollReady:
		for _, namespace := range p.waitsIn {
			q.removeFrom(namespace, p)
		}
		p.waitsIn = nil
	}
	p.state = pollIdle
}

func (q *pollQueue) removeFrom(namespace string, p *poll) {
	hosts := q.ready[namespace]
	at := slices.Index(hosts[p.host], p)
	if hosts[p.host] = slices.Delete(hosts[p.host], at, at+1); len(hosts[p.host]) > 0 {
		return
	}
	if delete(hosts, p.host); len(hosts) > 0 {
		return
	}
	delete(q.ready, namespace)
	turn := slices.Index(q.turns, namespace)
	q.turns = slices.Delete(q.turns, turn, turn+1)
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

// begin returns the polls that have a slot now.
func (q *pollQueue) begin(concurrent, perHost int) []*poll {
	var begun []*poll
	for turn, p := q.pick(concurrent, perHost); p != nil; turn, p = q.pick(concurrent, perHost) {
		p.holder = q.turns[turn]
		// It has had its turn.
		q.turns = append(slices.Delete(q.turns, turn, turn+1), p.holder)
		q.remove(p)
		p.state = pollRunning
		q.count(p, 1)
		begun = append(begun, p)
	}
	return begun
}

// pick returns the next poll that may have a slot, and the turn of the namespace that gets the slot; nil if there is none. One slot of each
// server is reserved for other namespaces, because a server may be slow only for the requests of this namespace. The servers of a namespace
// are served in random order, so that none is always the last.
func (q *pollQueue) pick(concurrent, perHost int) (turn int, p *poll) {
	for turn, namespace := range q.turns {
		if !fairqueue.MayTake(q.running[slots{namespace: namespace}], concurrent-q.total) {
			continue
		}
		for host, waiting := range q.ready[namespace] {
			if q.running[slots{host: host}] < perHost && q.running[slots{namespace, host}] < max(perHost-1, 1) {
				return turn, waiting[0]
			}
		}
	}
	return 0, nil
}

// end gives the slot of the poll back.
func (q *pollQueue) end(p *poll) {
	p.state = pollIdle
	q.count(p, -1)
}

func (q *pollQueue) count(p *poll, change int) {
	q.total += change
	for _, of := range []slots{{namespace: p.holder}, {host: p.host}, {p.holder, p.host}} {
		if q.running[of] += change; q.running[of] == 0 {
			delete(q.running, of)
		}
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
