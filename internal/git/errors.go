package git

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what went wrong, and so who has to do what about it.
type Kind string

// The kinds of errors.
const (
	// AuthenticationFailed: the server does not accept the credentials, or wants some.
	AuthenticationFailed Kind = "AuthenticationFailed"
	// HostKeyUnknown: the server's ssh host key is not among the known hosts, or another one is.
	HostKeyUnknown Kind = "HostKeyUnknown"
	// RepositoryNotFound: the server has no such repository, or does not show it with these credentials.
	RepositoryNotFound Kind = "RepositoryNotFound"
	// RevisionNotFound: the repository has no such ref or commit, or the abbreviation is ambiguous.
	RevisionNotFound Kind = "RevisionNotFound"
	// RateLimited: the server wants fewer requests. RetryAfter says when to ask again.
	RateLimited Kind = "RateLimited"
	// Timeout: no complete answer in time.
	Timeout Kind = "Timeout"
	// Unreachable: no connection, or it broke, or the server is in trouble itself.
	Unreachable Kind = "Unreachable"
	// CertificateInvalid: the server's certificate is not trusted, or it does not accept the client's.
	CertificateInvalid Kind = "CertificateInvalid"
	// LFSPointers: files are pointers to Git LFS objects instead of content.
	LFSPointers Kind = "LFSPointers"
	// TooLarge: the commit exceeds one of the Limits.
	TooLarge Kind = "TooLarge"
	// Submodule: a submodule cannot be checked out. The wrapped error says why.
	Submodule Kind = "Submodule"
	// InvalidURL: the URL is not one of a remote repository.
	InvalidURL Kind = "InvalidURL"
	// InvalidCredentials: the credentials cannot be used as they are: a key does not parse, a passphrase is wrong.
	InvalidCredentials Kind = "InvalidCredentials"
	// Other is everything else.
	Other Kind = "Other"
)

// Error is every error of this package, except one for a context that its owner has cancelled.
type Error struct {
	// Kind says what went wrong.
	Kind Kind

	// RetryAfter is how long the server wants to be left alone, between zero (it does not say) and MaxRetryAfter.
	RetryAfter time.Duration

	// Message is for the user. It names the host and the repository, holds no credential and at most MaxMessage bytes.
	Message string

	cause error
}

// MaxRetryAfter bounds what a server can ask for with RateLimited.
const MaxRetryAfter = time.Hour

func (e *Error) Error() string { return e.Message }

// Unwrap is the Error of the submodule, or that of the context.
func (e *Error) Unwrap() error { return e.cause }

// fail makes an Error about the repository. Arguments that come from a server must have gone through secrets.foreign.
func (r *repository) fail(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: r.message(fmt.Sprintf(format, args...))}
}

func (r *repository) message(text string) string {
	name := shorten(plain(r.secrets.redact(r.endpoint.display())), maxShown)
	return shorten("git repository "+name+": "+plain(r.secrets.redact(text)), MaxMessage)
}

// failure makes an Error of what a network, a server's answer or a library reports, unless it is one already.
func (r *repository) failure(ctx context.Context, attempt string, err error) error {
	if own := (*Error)(nil); errors.As(err, &own) {
		return own
	}
	switch cause := ctx.Err(); {
	case errors.Is(cause, context.Canceled):
		return fmt.Errorf("git repository %s: %w", shorten(plain(r.secrets.redact(r.endpoint.display())), maxShown), cause)
	case cause != nil:
		failed := r.fail(Timeout, "%s: no complete answer in time", attempt)
		failed.cause = cause
		return failed
	}
	kind, hint := kindOf(err)
	return r.fail(kind, "%s: %s", attempt, withHint(r.secrets.foreign(innermost(err)), hint))
}

func withHint(text, hint string) string {
	return strings.Trim(strings.Join([]string{text, hint}, "; "), "; ")
}

// innermost is the text of the error without what url.Error and the like add, which quotes addresses.
func innermost(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// kindOfText classifies what servers say in words, over ssh and in the middle of a conversation.
func kindOfText(text string, otherwise Kind) Kind {
	text = strings.ToLower(text)
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(text, word) {
				return true
			}
		}
		return false
	}
	switch {
	case has("not our ref", "no such commit", "unadvertised object"):
		return RevisionNotFound
	case has("rate limit", "too many requests", "try again later"):
		return RateLimited
	case has("not found", "does not exist", "does not appear to be a git repository", "could not be found", "no such", "not a git"):
		return RepositoryNotFound
	case has("denied", "permission", "not authorized", "unauthorized", "forbidden", "authentication", "access"):
		return AuthenticationFailed
	default:
		return otherwise
	}
}
