package source

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// minGitInterval is the shortest time between two looks that nobody asked for.
	minGitInterval = time.Second

	// A follower that has not asked for idleIntervals of its own, and for idleTime, is sent an event, and forgotten when it has
	// not asked idleGrace later. Nobody has to ask often, because events tell what changes; this is for objects that end without
	// a Forget.
	idleIntervals = 3
	idleTime      = time.Hour
	idleGrace     = 10 * time.Minute
)

// poll is the looking at one ref of one repository. Its fields are guarded by Git.mu, apart from those of its identity.
type poll struct {
	key        repositoryKey
	repo       gitRepository
	ref        string
	host       string
	references []objectReference

	followers map[*follower]struct{}
	answer    answer

	state pollState
	due   time.Time // while it is timed
	index int       // in the heap, while it is timed
	// planned is when the next look would be if nothing asked for an earlier one.
	planned time.Time
	// ended is when the last look at the server did.
	ended time.Time
	// looks counts the looks that began; decided is the number of the last one that found an answer to show.
	looks, decided int64
	// again is set to look again right after the running look.
	again bool
	// unlessSame is set when the next look is only for the case that credentials have changed. remoteKey identifies those of the
	// last look; same those that make the running look unnecessary, and is not guarded while it runs.
	unlessSame      bool
	remoteKey, same string
}

type pollState int

const (
	// pollIdle is a poll that no queue has.
	pollIdle pollState = iota
	// pollTimed waits for its time, pollReady for a slot.
	pollTimed
	pollReady
	pollRunning
)

type followerKey struct {
	subscription *GitSubscription
	waiter       types.NamespacedName
}

// follower is an object that follows a ref.
type follower struct {
	key      followerKey
	poll     *poll
	interval time.Duration
	token    string
	// needs is the number of the look whose answer is asked for.
	needs int64
	// waits is set while the follower was told that its answer is pending.
	waits bool
	// seen is when it asked last, asked is when it was sent an event because that was long ago.
	seen, asked time.Time
}

// follow makes the waiter a follower of the ref, and returns what is known of it.
func (g *Git) follow(s *GitSubscription, repo gitRepository, query GitQuery) (answer, *Problem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.followerOf(s, query)
	demand := query.Token != "" && query.Token != f.token
	if key := repo.key("ref", query.Source.Ref); f.poll == nil || f.poll.key != key {
		// What it asked for and did not get yet, it wants to have of the other ref.
		demand = demand || f.poll != nil && f.poll.decided < f.needs
		g.leave(f)
		g.join(f, key, repo, query.Source.Ref)
	}
	if query.Token != "" {
		f.token = query.Token
	}
	p := f.poll
	if demand {
		f.needs = p.looks + 1
		g.demand(p)
	}
	g.hasten(p, f.interval)
	return f.answer()
}

func (g *Git) followerOf(s *GitSubscription, query GitQuery) *follower {
	key := followerKey{s, query.Waiter}
	f := g.followers[key]
	if f == nil {
		f = &follower{key: key}
		g.followers[key] = f
	}
	f.interval = max(query.Interval, minGitInterval)
	f.seen, f.asked = g.clock.Now(), time.Time{}
	return f
}

// answer is what the follower may know. It remembers when that is nothing yet.
func (f *follower) answer() (answer, *Problem) {
	p := f.poll
	switch {
	case p.decided > 0 && p.decided >= f.needs:
		f.waits = false
		if p.answer.problem != nil {
			problem := *p.answer.problem
			return answer{}, &problem
		}
		return p.answer, nil
	case p.answer.limited():
		// It may take an hour, which is worth to be told.
		f.waits = true
		return answer{}, p.answer.trouble.shown()
	}
	f.waits = true
	return answer{}, &Problem{
		Reason:  pulumiv1.SourceUnavailableReason,
		Message: fmt.Sprintf("looking for %s in %s", p.ref, p.repo.shown()),
		Watched: true,
		Pending: true,
	}
}

// join makes the follower one of the poll, which begins with it when there is none.
func (g *Git) join(f *follower, key repositoryKey, repo gitRepository, ref string) {
	p := g.polls[key]
	if p == nil {
		p = &poll{
			key: key, repo: repo, ref: ref, host: repo.host(),
			references: referencesOf(repo.namespace, repo.auth),
			followers:  map[*follower]struct{}{},
		}
		g.polls[key] = p
		for _, reference := range p.references {
			if g.users[reference] == nil {
				g.users[reference] = map[*poll]struct{}{}
			}
			g.users[reference][p] = struct{}{}
		}
		g.queue.now(p, false)
		g.wakeUp()
	}
	p.followers[f] = struct{}{}
	f.poll, f.needs = p, 0
}

// leave ends the following, and the poll when nobody follows it any more.
func (g *Git) leave(f *follower) {
	p := f.poll
	if p == nil {
		return
	}
	f.poll = nil
	delete(p.followers, f)
	if len(p.followers) > 0 {
		return
	}
	delete(g.polls, p.key)
	for _, reference := range p.references {
		delete(g.users[reference], p)
		if len(g.users[reference]) == 0 {
			delete(g.users, reference)
		}
	}
	if p.state != pollRunning {
		g.queue.remove(p)
	}
}

func (g *Git) forget(key followerKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.followers[key]; f != nil {
		g.leave(f)
		delete(g.followers, key)
	}
}

// demand has the poll looked at now, as far as the server allows it.
func (g *Git) demand(p *poll) {
	p.unlessSame = false
	switch {
	case p.state == pollRunning:
		p.again = true
		return
	case p.answer.limited():
		// The look that is planned is the earliest.
		return
	case p.answer.settled && p.answer.problem != nil:
		// Nothing else can be found: what is known is as new as it can be.
		p.looks++
		p.decided = p.looks
		return
	}
	g.queue.now(p, true)
	g.wakeUp()
}

// hurry has a poll looked at soon for a follower that doubts its answer, though not sooner than after a failure.
func (g *Git) hurry(key followerKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.followers[key]
	if f == nil || f.poll.state != pollTimed || f.poll.answer.trouble != nil {
		return
	}
	if soon := f.poll.ended.Add(firstRetry); f.poll.due.After(soon) {
		g.queue.at(f.poll, soon)
		g.wakeUp()
	}
}

// hasten moves the next look forward for a follower with a shorter interval than the others.
func (g *Git) hasten(p *poll, interval time.Duration) {
	if p.state != pollTimed || p.answer.settled || p.answer.trouble != nil {
		return
	}
	if due := p.ended.Add(g.jittered(interval)); p.due.Sub(p.ended) > g.longest(interval) && p.due.After(due) {
		p.planned = due
		g.queue.at(p, due)
		g.wakeUp()
	}
}

// ReferencesChanged is told that a Secret or ConfigMap appeared, changed or is gone. Repositories that are read with it are looked
// at again at once, unless what they are read with is still the same.
func (g *Git) ReferencesChanged(kind, namespace, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.users[objectReference{kind, namespace, name}] {
		switch p.state {
		case pollRunning:
			// The look may have read it before it changed.
			p.unlessSame = !p.again || p.unlessSame
			p.again = true
		case pollTimed:
			if p.answer.settled && p.answer.problem == nil {
				continue
			}
			p.unlessSame = true
			g.queue.at(p, later(g.clock.Now(), p.ended.Add(minGitInterval)))
			g.wakeUp()
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// tend sends followers that have not asked for long an event, and forgets those that do not ask then.
func (g *Git) tend(p *poll, now time.Time) {
	for f := range p.followers {
		idle := now.Sub(f.seen) > max(idleIntervals*f.interval, idleTime)
		switch {
		case !idle:
		case f.asked.IsZero():
			f.asked = now
			g.tell(f)
		case now.Sub(f.asked) > idleGrace:
			g.leave(f)
			delete(g.followers, f.key)
		}
	}
}

// tell sends the follower an event. What it waited for, it asks for then.
func (g *Git) tell(f *follower) {
	f.waits = false
	f.key.subscription.notices.Add(f.key.waiter)
}

// interval is the shortest one of the followers.
func (p *poll) interval() time.Duration {
	shortest := time.Duration(0)
	for f := range p.followers {
		if shortest == 0 || f.interval < shortest {
			shortest = f.interval
		}
	}
	return shortest
}
