package source

import (
	"time"

	"github.com/stack-controller/stack-controller/internal/git"
)

const (
	// firstRetry is the wait after the first failure; each further wait is twice as long, up to the interval of the poll and at
	// most maxRetry. Ten seconds leave a server that restarts in peace; five minutes are short enough that nobody who mended it
	// wants to hurry it up, however long the interval is.
	firstRetry = 10 * time.Second
	maxRetry   = 5 * time.Minute

	// firstReferenceRetry and maxReferenceRetry are the same for a Secret that does not exist: looking costs one read.
	firstReferenceRetry = 2 * time.Second
	maxReferenceRetry   = 30 * time.Second

	// minRateRetry and maxRateRetry bound the time that a server asks to be left alone.
	minRateRetry = time.Minute
	maxRateRetry = time.Hour
)

// answer is what the looks at a ref have found out.
type answer struct {
	// revision is the last one that was found, at the time since; its SHA is empty before.
	revision git.Revision
	since    time.Time
	// problem is why there is no artifact now, nil when the revision is current.
	problem *Problem
	// settled says that another look cannot find anything else.
	settled bool

	// failures counts the looks that failed in a row for a cause of the same class.
	failures int
	trouble  *gitTrouble
}

// after returns the answer after one more look, and whether the look decided anything: a failure that may well be over at the
// next look changes nothing the first time.
func (a answer) after(revision git.Revision, trouble *gitTrouble, now time.Time) (next answer, decided bool) {
	next = a
	next.trouble = trouble
	if trouble == nil {
		next.problem, next.failures, next.settled = nil, 0, false
		if revision != a.revision {
			next.revision, next.since = revision, now
		}
		return next, true
	}
	if a.trouble == nil || a.trouble.class != trouble.class {
		next.failures = 0
	}
	next.failures++
	passing := trouble.class == transientTrouble || trouble.class == rateTrouble
	if passing && next.failures == 1 && a.known() {
		return next, false
	}
	next.problem = trouble.shown()
	next.settled = trouble.class == finalTrouble
	return next, true
}

// known tells whether there is anything to show.
func (a answer) known() bool {
	return a.problem != nil || a.revision.SHA != ""
}

// limited tells whether the server asked to be left alone.
func (a answer) limited() bool {
	return a.trouble != nil && a.trouble.class == rateTrouble
}

// shows tells whether both look the same to who follows the ref.
func (a answer) shows(b answer) bool {
	if a.problem == nil || b.problem == nil {
		return a.problem == b.problem && a.revision == b.revision
	}
	return *a.problem == *b.problem
}

// wait returns the time until the next look, without jitter, for followers of whom the most impatient wants one every interval.
func (a answer) wait(interval time.Duration) time.Duration {
	if a.trouble == nil {
		return interval
	}
	most := min(interval, maxRetry)
	switch a.trouble.class {
	case referenceTrouble:
		return growing(firstReferenceRetry, a.failures, maxReferenceRetry)
	case credentialTrouble:
		return most
	case rateTrouble:
		return min(max(a.trouble.retryAfter, minRateRetry, growing(firstRetry, a.failures, most)), maxRateRetry)
	}
	return growing(firstRetry, a.failures, most)
}

func growing(first time.Duration, failures int, most time.Duration) time.Duration {
	wait := first
	for range failures - 1 {
		if wait *= 2; wait >= most {
			break
		}
	}
	return min(wait, most)
}
