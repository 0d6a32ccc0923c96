package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

const (
	// pollTimeout bounds one poll with all its steps: reading Secrets, getting a token, asking the server. Finding the commit of an
	// abbreviated hash takes longest.
	pollTimeout = 3 * time.Minute
	// sleepTime is how long the loop sleeps when nothing is due.
	sleepTime = time.Hour

	// firstRetry is the wait after the first failure; each further wait is twice as long, up to the interval of the poll and at most
	// maxRetry. Ten seconds are enough not to disturb a server that restarts. Five minutes are short enough that nobody has to request a
	// poll after a repair, however long the interval is.
	firstRetry = 10 * time.Second
	maxRetry   = 5 * time.Minute

	// firstReferenceRetry and maxReferenceRetry are the same for a Secret that does not exist: such a poll costs only one read.
	firstReferenceRetry = 2 * time.Second
	maxReferenceRetry   = 30 * time.Second

	// minRateRetry and maxRateRetry bound how long a server can ask the controller to wait.
	minRateRetry = time.Minute
	maxRateRetry = time.Hour

	// Servers answer from replicas, some of which are behind for seconds after a push. For doubtful after a commit was replaced, it is the
	// answer again only when it is that of each round for settling; a round follows after firstRetry then. maxReplaced is how many such
	// commits a poll remembers.
	doubtful    = 2 * time.Minute
	settling    = 30 * time.Second
	maxReplaced = 10
)

var errPanic = errors.New("an internal error, which the log of the controller has")

// poll asks for one ref of one repository, in rounds. Its fields are guarded by Git.mu, except the first ones, which identify it and never
// change.
type poll struct {
	key        repositoryKey
	repo       gitRepository
	ref        string
	nameOnly   bool
	host       string
	references []references.Key

	subscriptions map[*subscription]struct{}
	answer        answer

	state pollState
	due   time.Time // while it is timed
	index int       // in the heap, while it is timed
	// waitsIn has the namespaces for whose slots the poll waits, while it is ready. holder is the namespace whose slot it has, while it
	// runs.
	waitsIn []string
	holder  string
	// interval is the shortest interval of the subscriptions when the next round was planned.
	interval time.Duration
	// ended is when the last round ended in which the server was asked.
	ended time.Time
	// rounds counts the rounds that have begun. decided is the number of the last round that led to an answer for subscribers.
	rounds, decided int64
	// again is set to poll again right after the running round.
	again bool
	// onlyIfRemoteChanged is set when the next round is needed only if credentials or settings have changed. remoteKey identifies those of the
	// last round. same identifies those with which the running round is not needed; it is not guarded during the round.
	onlyIfRemoteChanged bool
	remoteKey, same     string
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

// Start polls refs until ctx ends.
func (g *Git) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, s := range g.subscribers {
		running.Go(func() { s.notices.Deliver(ctx) })
	}
	for ctx.Err() == nil {
		begun, wait := g.begin()
		for _, p := range begun {
			running.Go(func() { g.poll(ctx, p) })
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

// wakeUp makes the loop check the queue.
func (g *Git) wakeUp() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// begin returns the polls whose next round begins now, and the time until it has to be called again.
func (g *Git) begin() (begun []*poll, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	for _, p := range g.queue.expire(now) {
		if p.answer.final && !p.onlyIfRemoteChanged {
			if g.dropIdle(p, now); len(p.subscriptions) > 0 {
				g.plan(p, now)
			}
			continue
		}
		g.queue.enqueue(p, false)
	}
	begun = g.queue.begin(g.concurrent, min(maxPerHost, g.concurrent))
	for _, p := range begun {
		p.rounds++
		p.again = false
		p.same = ""
		if p.onlyIfRemoteChanged {
			p.onlyIfRemoteChanged, p.same = false, p.remoteKey
		}
	}
	if len(g.queue.timed) == 0 {
		return begun, sleepTime
	}
	return begun, max(g.queue.timed[0].due.Sub(now), 0)
}

// pollResult is what one round has found.
type pollResult struct {
	revision git.Revision
	failure  *gitFailure
	// remoteKey identifies the credentials and settings. unchanged says that they are the same as before, and that the server was not
	// asked.
	remoteKey string
	unchanged bool
}

// poll runs one round, and records its result.
func (g *Git) poll(ctx context.Context, p *poll) {
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	result := g.ask(asking, p)
	if ctx.Err() != nil {
		return // A failure because of the shutdown is not an answer.
	}
	g.finish(p, result)
}

func (g *Git) ask(ctx context.Context, p *poll) (result pollResult) {
	defer func() {
		if recover() != nil {
			g.options.Log.Error(errPanic, "cannot poll a repository", "repository", p.repo.shown(), "ref", p.ref, "stack", string(debug.Stack()))
			result = pollResult{failure: gitFailureOf(errPanic, p.repo)}
		}
	}()
	remote, err := readRemote(ctx, g.options.APIReader, p.repo)
	if err != nil {
		return pollResult{failure: gitFailureOf(err, p.repo)}
	}
	key := remote.Key()
	if p.same != "" && p.same == key {
		return pollResult{remoteKey: key, unchanged: true}
	}
	if failure := g.pauses.ofServer(remote, p.repo); failure != nil {
		return pollResult{failure: failure, remoteKey: key}
	}
	remote.Namespace = p.holder
	resolve := g.client.Resolve
	if p.nameOnly {
		resolve = g.client.ResolveName
	}
	revision, err := resolve(ctx, remote, p.ref)
	failure := gitFailureOf(err, p.repo)
	g.pauses.record(remote, failure, err)
	return pollResult{revision: revision, failure: failure, remoteKey: key}
}

// finish records the result, notifies the objects for which it changes something, and plans the next round.
func (g *Git) finish(p *poll, result pollResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.wakeUp()
	g.queue.end(p)
	if len(p.subscriptions) == 0 {
		return
	}
	now := g.clock.Now()
	p.remoteKey = result.remoteKey
	if !result.unchanged {
		g.record(p, result, now)
	}
	g.dropIdle(p, now)
	switch {
	case len(p.subscriptions) == 0:
	case p.again && !p.answer.isLimited():
		g.queue.enqueue(p, true)
	default:
		g.plan(p, now)
	}
}

func (g *Git) record(p *poll, result pollResult, now time.Time) {
	before := p.answer
	var decided bool
	p.answer, decided = before.after(result, now)
	if result.failure == nil && result.revision.Ref == "" && strings.HasPrefix(result.revision.SHA, strings.ToLower(p.ref)) {
		// The commit of an abbreviated hash does not change.
		p.answer.final = true
	}
	p.ended = now
	if decided {
		p.decided = p.rounds
	}
	changed := !p.answer.shows(before)
	if changed && result.failure != nil {
		g.options.Log.Info("cannot read a git repository", "repository", p.repo.shown(), "ref", p.ref, "problem", result.failure.Error(),
			"detail", result.failure.detail)
	}
	limited := p.answer.isLimited() && !before.isLimited()
	for sub := range p.subscriptions {
		if changed || sub.waits && (p.decided >= sub.needs || limited) {
			sub.notify()
		}
	}
}

// plan sets the time of the next round, counted from the last one that asked the server.
func (g *Git) plan(p *poll, now time.Time) {
	if p.answer.final {
		// The round only checks whether objects are still subscribed, see dropIdle.
		g.queue.schedule(p, now.Add(idleGrace))
		return
	}
	p.interval = 0
	for sub := range p.subscriptions {
		if p.interval == 0 || sub.interval < p.interval {
			p.interval = sub.interval
		}
	}
	wait := p.answer.wait(p.interval)
	if p.answer.isLimited() {
		// The jitter only adds to the wait, so that the server is not asked earlier than it allows.
		wait += time.Duration(g.options.Jitter * rand.Float64() * float64(wait))
	} else {
		wait = g.jittered(wait)
	}
	g.queue.schedule(p, p.ended.Add(wait))
}

// jittered returns the wait, made longer or shorter by a random part of it, up to Jitter.
func (g *Git) jittered(wait time.Duration) time.Duration {
	return wait + time.Duration(g.options.Jitter*(2*rand.Float64()-1)*float64(wait))
}

// answer is the result of the rounds of a poll so far.
type answer struct {
	// revision is the last revision that was found, first at the time since. Its SHA is empty before the first one.
	revision git.Revision
	since    time.Time
	// replaced has the revisions that were the answer before it, the last one at the end.
	replaced []replacedRevision
	// doubted is when the server first named one of them again, without the revision since then; zero if it does not.
	doubted time.Time
	// problem is why there is no artifact now, nil when the revision is current.
	problem *Problem
	// final says that another round cannot find anything else.
	final bool
	// failure is why the last round failed, nil if it did not. failures counts the failures in a row of the same class.
	failure  *gitFailure
	failures int64
}

// replacedRevision is a revision that another one has replaced at that time.
type replacedRevision struct {
	git.Revision
	at time.Time
}

// after returns the answer after one more round, and whether the round decided anything. The first failure that may be over at the next
// round changes nothing for subscribers if they have an answer already, and a token that the server may not know yet changes nothing at all
// while it is known that somebody has to act: otherwise the reason would alternate with each token. A revision that was replaced a moment
// ago changes nothing at first, either: it would be deployed over the newer one.
func (a answer) after(result pollResult, now time.Time) (next answer, decided bool) {
	next = a
	next.failure = result.failure
	if result.failure == nil {
		return next.found(result.revision, now)
	}
	next.doubted = time.Time{} // nobody knows what the server named meanwhile
	class := result.failure.class
	if result.failure.newToken && a.failure != nil && (a.failure.class == credentialFailure || a.failure.class == absentFailure) {
		return a, false
	}
	if a.failure == nil || a.failure.class != class {
		next.failures = 0
	}
	next.failures++
	known := a.problem != nil || a.revision.SHA != ""
	if next.failures == 1 && known && (class == transientFailure || class == rateFailure) {
		return next, false
	}
	next.problem = &result.failure.Problem
	next.final = class == finalFailure
	return next, true
}

// found is after for a round that found a revision.
func (a answer) found(revision git.Revision, now time.Time) (next answer, decided bool) {
	a.failures, a.final = 0, false
	recent := slices.DeleteFunc(slices.Clone(a.replaced), func(r replacedRevision) bool { return now.Sub(r.at) >= doubtful })
	if revision != a.revision && slices.ContainsFunc(recent, func(r replacedRevision) bool { return r.Revision == revision }) {
		if a.doubted.IsZero() {
			a.doubted = now
		}
		if now.Sub(a.doubted) < settling {
			return a, false
		}
	}
	a.problem, a.doubted = nil, time.Time{}
	if revision != a.revision {
		a.replaced = append(recent[max(0, len(recent)-maxReplaced+1):], replacedRevision{a.revision, now})
		a.revision, a.since = revision, now
	}
	return a, true
}

// isLimited reports whether the server asked the controller to wait.
func (a answer) isLimited() bool {
	return a.failure != nil && a.failure.class == rateFailure
}

// shows reports whether both look the same to a subscriber.
func (a answer) shows(b answer) bool {
	if a.problem == nil || b.problem == nil {
		return a.problem == b.problem && a.revision == b.revision
	}
	return *a.problem == *b.problem
}

// wait returns the time until the next round, without jitter, for subscriptions whose shortest interval is given.
func (a answer) wait(interval time.Duration) time.Duration {
	if a.failure == nil && !a.doubted.IsZero() {
		return min(interval, firstRetry)
	}
	if a.failure == nil {
		return interval
	}
	most := min(interval, maxRetry)
	switch a.failure.class {
	case referenceFailure:
		return backoff.Exponential(firstReferenceRetry, 2, a.failures, maxReferenceRetry)
	case credentialFailure:
		return most
	case rateFailure:
		return min(max(a.failure.retryAfter, minRateRetry, backoff.Exponential(firstRetry, 2, a.failures, most)), maxRateRetry)
	}
	return backoff.Exponential(firstRetry, 2, a.failures, most)
}
