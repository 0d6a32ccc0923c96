package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/git"
	"github.com/stack-controller/stack-controller/internal/references"
)

const (
	// pollTimeout bounds one poll with all that it takes: reading Secrets, getting a token, asking the server. What a part of a
	// hash stands for takes longest.
	pollTimeout = 3 * time.Minute
	// sleepTime is how long the loop sleeps when nothing is due.
	sleepTime = time.Hour

	// firstRetry is the wait after the first failure; each further wait is twice as long, up to the interval of the poll and at
	// most maxRetry. Ten seconds leave a server that restarts in peace; five minutes are short enough that nobody who repaired it
	// asks for an earlier one, however long the interval is.
	firstRetry = 10 * time.Second
	maxRetry   = 5 * time.Minute

	// firstReferenceRetry and maxReferenceRetry are the same for a Secret that does not exist: looking costs one read.
	firstReferenceRetry = 2 * time.Second
	maxReferenceRetry   = 30 * time.Second

	// minRateRetry and maxRateRetry bound the time that a server asks to be left alone.
	minRateRetry = time.Minute
	maxRateRetry = time.Hour
)

var errPanic = errors.New("an internal error, which the log of the controller has")

// poll asks for one ref of one repository, round after round. Its fields are guarded by Git.mu, apart from those of its identity.
type poll struct {
	key        repositoryKey
	repo       gitRepository
	ref        string
	host       string
	references []references.Key

	subscriptions map[*subscription]struct{}
	answer        answer

	state pollState
	due   time.Time // while it is timed
	index int       // in the heap, while it is timed
	// waitsIn has the namespaces that it waits for a slot of, while it is ready; holder is the one whose slot it has, while it runs.
	waitsIn []string
	holder  string
	// interval is the shortest one of the subscriptions when the next round was planned.
	interval time.Duration
	// ended is when the last round that asked the server did.
	ended time.Time
	// rounds counts the rounds that began; decided is the number of the last one that found an answer to show.
	rounds, decided int64
	// again is set to ask again right after the running round.
	again bool
	// unlessSame is set when the next round is only for the case that credentials have changed. remoteKey identifies those of the
	// last round; same those that make the running round unnecessary, and is not guarded while it runs.
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

// wakeUp has the loop check the queue.
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
		if p.answer.final && !p.unlessSame {
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
		if p.unlessSame {
			p.unlessSame, p.same = false, p.remoteKey
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
	// remoteKey identifies the credentials; unchanged says that they are the same, and that the server was not asked.
	remoteKey string
	unchanged bool
}

// poll asks the server, and has the objects notified.
func (g *Git) poll(ctx context.Context, p *poll) {
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	result := g.ask(asking, p)
	if ctx.Err() != nil {
		return // What failed because everything ends is no answer.
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
	remote, err := readRemote(ctx, g.options.Live, p.repo)
	if err != nil {
		return pollResult{failure: gitFailureOf(err, p.repo)}
	}
	key := remote.Key()
	if p.same != "" && p.same == key {
		return pollResult{remoteKey: key, unchanged: true}
	}
	remote.Namespace = p.holder
	revision, err := g.client.Resolve(ctx, remote, p.ref)
	return pollResult{revision: revision, failure: gitFailureOf(err, p.repo), remoteKey: key}
}

// finish keeps the result, notifies the objects when it changes something for them, and plans the next round.
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
		// A commit that was found by a part of its hash stays what it is.
		p.answer.final = true
	}
	p.ended = now
	if decided {
		p.decided = p.rounds
	}
	changed := !p.answer.shows(before)
	if changed && result.failure != nil {
		g.options.Log.Info("cannot read a git repository", "repository", p.repo.shown(), "ref", p.ref, "problem", result.failure.Error())
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
		// Only to see whether anybody is still interested.
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
		// Not earlier than the server wants.
		wait += time.Duration(g.options.Jitter * rand.Float64() * float64(wait))
	} else {
		wait = g.jittered(wait)
	}
	g.queue.schedule(p, p.ended.Add(wait))
}

// jittered returns a time that is up to Jitter of it longer or shorter.
func (g *Git) jittered(wait time.Duration) time.Duration {
	return wait + time.Duration(g.options.Jitter*(2*rand.Float64()-1)*float64(wait))
}

// answer is what the rounds of a poll have found out.
type answer struct {
	// revision is the last one that was found, at the time since; its SHA is empty before.
	revision git.Revision
	since    time.Time
	// problem is why there is no artifact now, nil when the revision is current.
	problem *Problem
	// final says that another round cannot find anything else.
	final bool
	// failure is why the last round failed, nil when it did not; failures counts those in a row for a cause of the same class.
	failure  *gitFailure
	failures int64
}

// after returns the answer after one more round, and whether the round decided anything: a failure that may well be over at the
// next one changes nothing the first time.
func (a answer) after(result pollResult, now time.Time) (next answer, decided bool) {
	next = a
	next.failure = result.failure
	if result.failure == nil {
		next.problem, next.failures, next.final = nil, 0, false
		if result.revision != a.revision {
			next.revision, next.since = result.revision, now
		}
		return next, true
	}
	class := result.failure.class
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

// isLimited reports whether the server asked to be left alone.
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

// wait returns the time until the next round, without jitter, for subscriptions of which the most impatient wants one every interval.
func (a answer) wait(interval time.Duration) time.Duration {
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
