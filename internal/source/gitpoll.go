package source

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/stack-controller/stack-controller/internal/git"
)

const (
	// lookTimeout bounds one look with all that it takes: reading Secrets, getting a token, asking the server. What a part of a
	// hash stands for takes longest.
	lookTimeout = 3 * time.Minute
	// sleepTime is how long the loop sleeps when nothing is due.
	sleepTime = time.Hour
)

// Start looks at refs until ctx ends.
func (g *Git) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, s := range g.subscriptions {
		running.Go(func() { s.notices.Deliver(ctx) })
	}
	for ctx.Err() == nil {
		begun, wait := g.begin()
		for _, p := range begun {
			running.Go(func() { g.look(ctx, p) })
		}
		timer := g.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-g.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
	running.Wait()
	return nil
}

// wakeUp has the loop look at the queue.
func (g *Git) wakeUp() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// begin returns the polls to look at now, and the time until it has to be called again.
func (g *Git) begin() (begun []*poll, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	for _, p := range g.queue.expire(now) {
		if p.answer.settled && !p.unlessSame {
			if g.tend(p, now); len(p.followers) > 0 {
				g.plan(p, now)
			}
			continue
		}
		g.queue.now(p, false)
	}
	begun = g.queue.begin(g.options.Concurrent, min(maxPerHost, g.options.Concurrent))
	for _, p := range begun {
		p.looks++
		p.again = false
		p.same = ""
		if p.unlessSame {
			p.unlessSame, p.same = false, p.remoteKey
		}
	}
	next, ok := g.queue.next()
	if !ok {
		return begun, sleepTime
	}
	return begun, max(next.Sub(now), 0)
}

// sighting is what a look has found.
type sighting struct {
	revision git.Revision
	trouble  *gitTrouble
	// remoteKey identifies the credentials; unchanged says that they are the same, and that the server was not asked.
	remoteKey string
	unchanged bool
}

// look asks the server, and has the followers told.
func (g *Git) look(ctx context.Context, p *poll) {
	asking, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	seen := g.ask(asking, p)
	if ctx.Err() != nil {
		return // What failed because everything ends is no answer.
	}
	g.finish(p, seen)
}

func (g *Git) ask(ctx context.Context, p *poll) (seen sighting) {
	defer func() {
		if recover() != nil {
			g.options.Log.Error(errPanic, "cannot look at a repository", "repository", p.repo.shown(), "ref", p.ref, "stack", string(debug.Stack()))
			seen = sighting{trouble: troubleOf(errPanic, p.repo)}
		}
	}()
	remote, err := readRemote(ctx, g.options.Live, p.repo)
	if err != nil {
		return sighting{trouble: troubleOf(err, p.repo)}
	}
	key := remote.Key()
	if p.same != "" && p.same == key {
		return sighting{remoteKey: key, unchanged: true}
	}
	revision, err := g.client.Resolve(ctx, remote, p.ref)
	return sighting{revision: revision, trouble: troubleOf(err, p.repo), remoteKey: key}
}

// finish keeps what was seen, tells the followers when it changes something for them, and plans the next look.
func (g *Git) finish(p *poll, seen sighting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.wakeUp()
	g.queue.end(p)
	if len(p.followers) == 0 {
		return
	}
	now := g.clock.Now()
	p.remoteKey = seen.remoteKey
	if !seen.unchanged {
		g.record(p, seen, now)
	}
	g.tend(p, now)
	switch {
	case len(p.followers) == 0:
	case p.again && !p.answer.limited():
		g.queue.now(p, true)
	case seen.unchanged:
		g.queue.at(p, p.planned)
	default:
		g.plan(p, now)
	}
}

func (g *Git) record(p *poll, seen sighting, now time.Time) {
	before := p.answer
	var decided bool
	p.answer, decided = before.after(seen.revision, seen.trouble, now)
	// A commit that was found by a part of its hash stays what it is.
	found := seen.trouble == nil && seen.revision.Ref == "" && strings.HasPrefix(seen.revision.SHA, strings.ToLower(p.ref))
	p.answer.settled = p.answer.settled || found
	p.ended = now
	if decided {
		p.decided = p.looks
	}
	changed := !p.answer.shows(before)
	if changed && seen.trouble != nil {
		g.options.Log.Info("cannot read a git repository", "repository", p.repo.shown(), "ref", p.ref, "problem", seen.trouble.Error())
	}
	limited := p.answer.limited() && !before.limited()
	for f := range p.followers {
		if changed || f.waits && (p.decided >= f.needs || limited) {
			g.tell(f)
		}
	}
}

// plan sets the time of the next look.
func (g *Git) plan(p *poll, now time.Time) {
	wait := p.answer.wait(p.interval())
	switch {
	case p.answer.settled:
		// Only to see whether anybody still follows.
		wait = idleGrace
	case p.answer.limited():
		// Not earlier than the server wants.
		wait += time.Duration(g.options.Jitter * rand.Float64() * float64(wait))
	default:
		wait = g.jittered(wait)
	}
	p.planned = now.Add(wait)
	g.queue.at(p, p.planned)
}

// jittered returns a time that is up to Jitter of it longer or shorter.
func (g *Git) jittered(wait time.Duration) time.Duration {
	return wait + time.Duration(g.options.Jitter*(2*rand.Float64()-1)*float64(wait))
}

// longest returns the longest time that jittered makes of the wait.
func (g *Git) longest(wait time.Duration) time.Duration {
	return wait + time.Duration(g.options.Jitter*float64(wait))
}
