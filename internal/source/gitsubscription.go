package source

import (
	"crypto/sha256"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
)

const (
	// minGitInterval is the shortest time between two polls that nobody asked for.
	minGitInterval = time.Second

	// An object that has not asked for idleIntervals of its own intervals, and for at least idleTime, is notified. If it does not ask
	// within idleGrace after that, its subscription ends. An object does not have to ask often, because events report changes. This rule is
	// for objects that end without a call of Forget.
	idleIntervals = 3
	idleTime      = time.Hour
	idleGrace     = 10 * time.Minute
)

type subscriptionKey struct {
	subscriber *GitSubscriber
	waiter     types.NamespacedName
}

// subscription is the interest of an object in a ref. Its fields are guarded by Git.mu.
type subscription struct {
	key      subscriptionKey
	poll     *poll
	interval time.Duration
	// token is a hash of the last token, which may be long.
	token [sha256.Size]byte
	// needs is the number of the first round whose answer is new enough for the object.
	needs int64
	// waits is set while the last answer to the object was that the result is pending.
	waits bool
	// seen is when the object asked last. asked is when the object was notified because it had not asked for long.
	seen, asked time.Time
}

// subscribe subscribes the waiter to the ref, and returns what is known of it.
func (g *Git) subscribe(s *GitSubscriber, repo gitRepository, query GitQuery) (answer, *Problem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := subscriptionKey{s, query.Waiter}
	sub := g.subscriptions[key]
	if sub == nil {
		sub = &subscription{key: key}
		g.subscriptions[key] = sub
	}
	sub.interval = max(query.Interval, minGitInterval)
	sub.seen, sub.asked = g.clock.Now(), time.Time{}
	token := sha256.Sum256([]byte(query.Token))
	requested := query.Token != "" && token != sub.token
	purpose := "ref"
	if query.NameOnly {
		purpose = "name"
	}
	if key := repo.key(purpose, query.Source.Ref); sub.poll == nil || sub.poll.key != key {
		// A request that was not answered yet applies to the new ref.
		requested = requested || sub.poll != nil && sub.poll.decided < sub.needs
		g.leave(sub)
		g.join(sub, key, repo, query)
	}
	if query.Token != "" {
		sub.token = token
	}
	if requested {
		sub.needs = sub.poll.rounds + 1
		g.pollNow(sub.poll)
	}
	g.pollWithin(sub.poll, sub.interval)
	return sub.answer()
}

// answer returns the answer for the object. If there is none yet, answer sets waits.
func (sub *subscription) answer() (answer, *Problem) {
	p := sub.poll
	switch {
	case p.decided > 0 && p.decided >= sub.needs:
		sub.waits = false
		if p.answer.problem != nil {
			return answer{}, p.answer.problem
		}
		return p.answer, nil
	case p.answer.isLimited():
		// The wait may take an hour, so the object gets the reason.
		sub.waits = true
		return answer{}, &p.answer.failure.Problem
	}
	sub.waits = true
	return answer{}, &Problem{
		Reason:  pulumiv1.SourceUnavailableReason,
		Message: fmt.Sprintf("looking for %s in %s", p.ref, p.repo.shown()),
		Watched: true,
		Pending: true,
	}
}

// join adds the subscription to the poll of the ref, and creates the poll if there is none.
func (g *Git) join(sub *subscription, key repositoryKey, repo gitRepository, query GitQuery) {
	p := g.polls[key]
	if p == nil {
		p = &poll{
			key: key, repo: repo, ref: query.Source.Ref, nameOnly: query.NameOnly, host: repo.host(),
			references:    referencesOf(repo.namespace, repo.auth),
			subscriptions: map[*subscription]struct{}{},
		}
		g.polls[key] = p
		for _, reference := range p.references {
			if g.readers[reference] == nil {
				g.readers[reference] = sets.New[*poll]()
			}
			g.readers[reference].Insert(p)
		}
	}
	p.subscriptions[sub] = struct{}{}
	sub.poll, sub.needs = p, 0
	switch {
	case len(p.subscriptions) == 1:
		g.queue.enqueue(p, false)
		g.wakeUp()
	case p.state == pollReady:
		g.queue.waitIn(sub.key.waiter.Namespace, p, false)
		g.wakeUp()
	}
}

// leave removes the subscription from its poll, and ends the poll if no subscription is left.
func (g *Git) leave(sub *subscription) {
	p := sub.poll
	if p == nil {
		return
	}
	sub.poll = nil
	delete(p.subscriptions, sub)
	if len(p.subscriptions) > 0 {
		return
	}
	delete(g.polls, p.key)
	for _, reference := range p.references {
		delete(g.readers[reference], p)
		if len(g.readers[reference]) == 0 {
			delete(g.readers, reference)
		}
	}
	g.queue.remove(p)
}

func (g *Git) forget(key subscriptionKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sub := g.subscriptions[key]; sub != nil {
		g.leave(sub)
		delete(g.subscriptions, key)
	}
}

// pollNow makes the next round begin now, unless the server has asked the controller to wait.
func (g *Git) pollNow(p *poll) {
	switch {
	case p.state == pollRunning:
		p.onlyIfRemoteChanged, p.again = false, true
	case p.answer.isLimited():
		// The planned round is the earliest one that the server allows. If it is planned only in case that credentials have changed, it
		// stays so.
	case p.answer.final && p.answer.problem != nil:
		// Another round cannot find anything else, so the known answer counts as new.
		p.rounds++
		p.decided = p.rounds
	default:
		p.onlyIfRemoteChanged = false
		g.queue.enqueue(p, true)
		g.wakeUp()
	}
}

// pollSoon moves the next round forward for an object whose answer may be outdated, but leaves at least firstRetry after the last round.
func (g *Git) pollSoon(key subscriptionKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sub := g.subscriptions[key]; sub != nil && sub.poll.state == pollTimed && sub.poll.answer.failure == nil {
		g.moveForward(sub.poll, sub.poll.ended.Add(firstRetry))
	}
}

// pollWithin moves the next round forward if the interval of an object is shorter than those of the others.
func (g *Git) pollWithin(p *poll, interval time.Duration) {
	if p.state != pollTimed || p.answer.final || p.answer.failure != nil || interval >= p.interval {
		return
	}
	p.interval = interval
	g.moveForward(p, p.ended.Add(g.jittered(interval)))
}

// moveForward makes a timed poll due at the time, unless it is due earlier.
func (g *Git) moveForward(p *poll, due time.Time) {
	if p.due.After(due) {
		g.queue.schedule(p, due)
		g.wakeUp()
	}
}

// ReferencesChanged is called when a Secret or ConfigMap was created, changed or deleted. Repositories that are read with it are polled
// again, at the earliest minGitInterval after their last poll, unless their credentials and settings are still the same.
func (g *Git) ReferencesChanged(key references.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.readers[key] {
		switch p.state {
		case pollRunning:
			// The round may have read it before it changed.
			p.onlyIfRemoteChanged = !p.again || p.onlyIfRemoteChanged
			p.again = true
		case pollTimed:
			if p.answer.final && p.answer.problem == nil {
				continue
			}
			p.onlyIfRemoteChanged = true
			due := p.ended.Add(minGitInterval)
			if now := g.clock.Now(); due.Before(now) {
				due = now
			}
			g.queue.schedule(p, due)
			g.wakeUp()
		}
	}
}

// dropIdle notifies objects that have not asked for a long time, and ends their subscriptions if they still do not ask.
func (g *Git) dropIdle(p *poll, now time.Time) {
	for sub := range p.subscriptions {
		idle := now.Sub(sub.seen) > max(idleIntervals*sub.interval, idleTime)
		switch {
		case !idle:
		case sub.asked.IsZero():
			sub.asked = now
			sub.notify()
		case now.Sub(sub.asked) > idleGrace:
			g.leave(sub)
			delete(g.subscriptions, sub.key)
		}
	}
}

// notify wakes the object, which then asks for its answer.
func (sub *subscription) notify() {
	sub.waits = false
	sub.key.subscriber.notices.Add(sub.key.waiter)
}
