package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/lru"
)

const (
	// promptTime is how long an agent may take for an answer before its call needs one of the slots of its group. promptTimeStrained is that
	// of an agent that let its last call wait in vain, and of all in a group with one that did so lately.
	promptTime         = time.Second
	promptTimeStrained = 100 * time.Millisecond
	// strainedTime is how long it counts as lately.
	strainedTime = time.Minute
	// slowCalls is how many calls of a group may wait for slow agents at the same time.
	slowCalls = 2
	// pauseFactor is for how many times as long as a call waited in vain its slot stays taken.
	pauseFactor = 4
	// maxGroups is how many groups are kept; the one that was asked for least recently goes first.
	maxGroups = 10_000
)

// errCrowded says that others of the group keep calls waiting.
var errCrowded = errors.New("the agent did not answer at once, and calls to other agents of its namespace wait already")

// Group is the agents of one owner: those of a namespace. Those who call agents are few, and serve all owners: agents that do not answer must not
// keep all of them waiting. So a call whose answer takes its time needs one of few slots of the group to go on waiting, and
// one that waited in vain keeps its slot taken for a while.
type Group struct {
	slots chan struct{}

	mu sync.Mutex
	// strained is until when the group is so.
	strained time.Time
}

func newGroup() *Group {
	return &Group{slots: make(chan struct{}, slowCalls)}
}

// Groups are the groups of all owners. The zero value has none; it is safe for concurrent use.
type Groups struct {
	mu     sync.Mutex
	groups *lru.Cache
}

// Of returns the group of the owner.
func (g *Groups) Of(owner string) *Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.groups == nil {
		g.groups = lru.New(maxGroups)
	}
	known, _ := g.groups.Get(owner)
	group, found := known.(*Group)
	if !found {
		group = newGroup()
		g.groups.Add(owner, group)
	}
	return group
}

// prompt is how long a call may wait without a slot. suspect says that its agent let a call wait in vain.
func (g *Group) prompt(suspect bool) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if suspect || time.Now().Before(g.strained) {
		return promptTimeStrained
	}
	return promptTime
}

// wait bounds a call: it ends the context of the call when its time without a slot is over and there is no slot. done takes how the
// call ended.
func (g *Group) wait(ctx context.Context, suspect bool) (bounded context.Context, done func(inVain bool)) {
	bounded, cancel := context.WithCancelCause(ctx)
	var mu sync.Mutex
	var taken, ended bool
	var start time.Time
	take := func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		select {
		case g.slots <- struct{}{}:
			taken, start = true, time.Now()
		default:
			cancel(errCrowded)
		}
	}
	timer := time.AfterFunc(g.prompt(suspect), take)
	return bounded, func(inVain bool) {
		timer.Stop()
		cancel(nil)
		mu.Lock()
		defer mu.Unlock()
		ended = true
		if taken {
			g.free(inVain, time.Since(start))
		}
	}
}

// free gives a slot back: later, when its call waited in vain.
func (g *Group) free(inVain bool, waited time.Duration) {
	if !inVain {
		<-g.slots
		return
	}
	g.mu.Lock()
	g.strained = time.Now().Add(strainedTime)
	g.mu.Unlock()
	time.AfterFunc(pauseFactor*waited, func() { <-g.slots })
}
