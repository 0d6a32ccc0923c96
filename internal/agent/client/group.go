package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/lru"
)

const (
	// promptTime is how long an agent may take to answer before its call needs one of the slots of its group. promptTimeSlow is the same
	// for an agent whose last call waited and failed, and for all agents of a group in which a call with a slot did so recently.
	promptTime     = time.Second
	promptTimeSlow = 100 * time.Millisecond
	// strainedTime is how long ago counts as recently.
	strainedTime = time.Minute
	// slowCalls is how many calls of a group may wait for slow agents at the same time.
	slowCalls = 2
	// pauseFactor is how many times as long as a failed call waited its slot stays taken.
	pauseFactor = 4
	// maxGroups is how many groups are kept. The least recently used one is removed first.
	maxGroups = 10_000
)

// errCrowded is the error when other calls of the group have taken all slots.
var errCrowded = errors.New("the agent did not answer at once, and calls to other agents of its namespace wait already")

// Group is the agents of one owner, which are those of a namespace. A few goroutines call the agents of all owners, so agents that do not
// answer must not block all of these goroutines. Therefore a call that is not answered promptly needs one of a few slots of the group to
// continue waiting, and a slow call that failed keeps its slot for a while.
type Group struct {
	slots chan struct{}

	mu sync.Mutex
	// slowUntil is the time until which the group uses promptTimeSlow.
	slowUntil time.Time
}

func newGroup() *Group {
	return &Group{slots: make(chan struct{}, slowCalls)}
}

// Groups are the groups of all owners. The zero value is empty and ready to use. It is safe for concurrent use.
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

// prompt returns how long a call may wait without a slot. suspect is true if the last call to its agent waited and failed.
func (g *Group) prompt(suspect bool) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if suspect || time.Now().Before(g.slowUntil) {
		return promptTimeSlow
	}
	return promptTime
}

// wait bounds a call: it cancels the context of the call when its time without a slot is over and no slot is free. The caller calls done
// when the call has ended; inVain is true for a call that waited and failed.
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

// free gives a slot back, after a delay if its call waited in vain.
func (g *Group) free(inVain bool, waited time.Duration) {
	if !inVain {
		<-g.slots
		return
	}
	g.mu.Lock()
	g.slowUntil = time.Now().Add(strainedTime)
	g.mu.Unlock()
	time.AfterFunc(pauseFactor*waited, func() { <-g.slots })
}
