package source

import (
	"errors"
	"net/url"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// maxPauses is how many servers and repositories are remembered that get no requests for some time, of about a kilobyte each.
const maxPauses = 4096

// pauses remembers what need not be asked for some time, because the answer is known: a server that wants to be left alone, and a checkout
// with credentials or settings that have just failed. So callers may ask as often as they like.
type pauses struct {
	clock clock.PassiveClock
	kept  *lru.Cache // pause by a key
}

// pause is the error that is the answer until a time, and the key of the repository that it was the answer for. It is explained to each
// namespace in its own words: with the same credentials, the name of the Secret may be another one.
type pause struct {
	err        error
	repository string
	until      time.Time
}

func newPauses(clock clock.PassiveClock) *pauses { return &pauses{clock, lru.New(maxPauses)} }

// serverKey identifies the server of the repository, with the credentials and settings: the limits of servers are those of a user or of an
// address, not of a repository.
func serverKey(remote git.Remote) string {
	server := remote
	server.RecurseSubmodules = false
	if parsed := parseGitURL(remote.URL); parsed != nil {
		server.URL = (&url.URL{Scheme: parsed.Scheme, Host: parsed.Host, User: parsed.User}).String()
	}
	return "server " + server.Key()
}

func repositoryPauseKey(remote git.Remote) string { return "repository " + remote.Key() }

// ofServer returns why the server of the repository gets no request now; nil when it may be asked.
func (p *pauses) ofServer(remote git.Remote, repo gitRepository) *gitFailure {
	return p.find(serverKey(remote), remote, repo)
}

// ofCheckout returns why nothing is checked out of the repository now; nil when it may be tried. Polls of the repository go on, and find out
// when its credentials are accepted.
func (p *pauses) ofCheckout(remote git.Remote, repo gitRepository) *gitFailure {
	if failure := p.ofServer(remote, repo); failure != nil {
		return failure
	}
	return p.find(repositoryPauseKey(remote), remote, repo)
}

func (p *pauses) find(key string, remote git.Remote, repo gitRepository) *gitFailure {
	found, _ := p.kept.Get(key)
	known, _ := found.(pause)
	left := known.until.Sub(p.clock.Now())
	if left <= 0 {
		return nil
	}
	failure := *gitFailureOf(known.err, repo)
	if failure.retryAfter = left; known.repository != remote.Key() {
		// The message names a repository that may be one of another namespace.
		failure.Message = repo.shown() + ": the server has asked the controller to wait before its next request"
		failure.detail = ""
	}
	return &failure
}

// record remembers the result of a request: err is the error of the git client, and failure what it was translated to, nil for a success.
func (p *pauses) record(remote git.Remote, failure *gitFailure, err error) {
	if failure == nil {
		p.kept.Remove(repositoryPauseKey(remote))
		return
	}
	key, wait := serverKey(remote), min(failure.retryAfter, maxRateRetry)
	var own, ofSubmodule *git.Error
	if errors.As(err, &own) && errors.As(own.Unwrap(), &ofSubmodule) {
		key = repositoryPauseKey(remote) // the server of a submodule has asked for it
	}
	switch {
	case failure.newToken:
		p.prolong(repositoryPauseKey(remote))
		return
	case failure.class == rateFailure:
		wait = max(wait, minRateRetry)
	case failure.class == credentialFailure:
		key, wait = repositoryPauseKey(remote), maxRetry
	}
	if wait > 0 {
		p.kept.Add(key, pause{err, remote.Key(), p.clock.Now().Add(wait)})
	}
}

// prolong makes a pause that is just over the answer for a little longer: a new token that the server does not know yet tells nothing else.
func (p *pauses) prolong(key string) {
	found, _ := p.kept.Get(key)
	known, _ := found.(pause)
	if over := p.clock.Since(known.until); over >= 0 && over < maxRetry {
		known.until = p.clock.Now().Add(firstRetry)
		p.kept.Add(key, known)
	}
}
