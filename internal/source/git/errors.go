package git

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// Kind is the kind of a failure. It determines who has to act, and how.
type Kind string

// The kinds of errors.
const (
	// AuthenticationFailed: the server does not accept the credentials, or wants some.
	AuthenticationFailed Kind = "AuthenticationFailed"
	// HostKeyUnknown: the known hosts have no ssh host key of the server, or another one than it presents.
	HostKeyUnknown Kind = "HostKeyUnknown"
	// RepositoryNotFound: the server has no such repository, or does not show it with these credentials.
	RepositoryNotFound Kind = "RepositoryNotFound"
	// RevisionNotFound: the repository has no such ref or commit, or the abbreviation is ambiguous.
	RevisionNotFound Kind = "RevisionNotFound"
	// RateLimited: the server wants fewer requests. RetryAfter says when to ask again.
	RateLimited Kind = "RateLimited"
	// Timeout: the server sends no complete answer in time, or sends too slowly.
	Timeout Kind = "Timeout"
	// Unreachable: there is no connection, it broke, or the server failed.
	Unreachable Kind = "Unreachable"
	// AddressRefused: the host has an address that the client does not connect to.
	AddressRefused Kind = "AddressRefused"
	// CertificateInvalid: the server's certificate is not trusted, or the server does not accept the client's certificate.
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

const (
	// maxRetryAfter bounds how long a server can ask clients to wait.
	maxRetryAfter = time.Hour

	// maxMessage bounds the message of an Error in bytes, maxForeign the text of a server in it, and maxShown the name of a repository or a
	// ref.
	maxMessage = 500
	maxForeign = 200
	maxShown   = 150
	// maxRedacted bounds in bytes the foreign text in which secrets are looked for. Longer text is left out.
	maxRedacted = 16 << 10

	// minRedactable is the shortest secret, in bytes, that is replaced in foreign text. To replace a shorter one would destroy the text, so
	// foreign text is left out altogether when there is a shorter secret.
	minRedactable = 4
	// maxRedactable bounds the credentials that are looked for in foreign text, in bytes: whoever owns a Secret with many may own the server,
	// too, and each is looked for in all of its text. No key is longer. If there are more, foreign text is left out altogether.
	maxRedactable = 32 << 10

	redacted = "***"
)

// Error is the type of the errors of this package. Each function documents its exceptions.
type Error struct {
	// Kind says what went wrong.
	Kind Kind

	// RetryAfter is how long the server asks clients to wait, at most maxRetryAfter; zero if it does not say.
	RetryAfter time.Duration

	// Message is for the user. It names the host and the repository, holds no credential and at most maxMessage bytes.
	Message string

	// Detail is for the log of the controller only: the text of the connection or of a server that the Message leaves out. It holds no
	// credential and at most maxForeign bytes.
	Detail string

	cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the Error of the submodule, the reason why the context ended, ErrNewToken, errOnlyTips, or that
// the disk is full (syscall.ENOSPC).
func (e *Error) Unwrap() error { return e.cause }

// knownError is a failure whose kind does not depend on where it happens.
type knownError struct {
	kind Kind
	text string
}

func (e *knownError) Error() string { return e.text }

// serverError is a server's own text about why it does not answer.
type serverError string

func (e serverError) Error() string { return string(e) }

// fail returns an Error about the repository. Arguments that come from a server must have been passed through secrets.foreign.
func (r *repository) fail(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: plaintext.Cut(r.name()+": "+plain(r.secrets.redact(fmt.Sprintf(format, args...))), maxMessage)}
}

func (r *repository) name() string {
	return "git repository " + plaintext.Cut(plain(r.secrets.redact(r.endpoint.display())), maxShown)
}

// failure turns an error of the network, of a server's answer, of the content of a commit or of a library into an Error, unless it is one
// already. The error of a cancelled context is only wrapped.
func (r *repository) failure(ctx context.Context, attempt string, err error) error {
	var typed *Error
	var known *knownError
	var said serverError
	var slow *throughput.Error
	switch cause := ctx.Err(); {
	case errors.As(err, &typed):
		return typed
	case errors.As(context.Cause(ctx), &slow):
		typed = r.fail(Timeout, "%s: %s", attempt, slow.Error())
		typed.cause = slow
		return typed
	case errors.Is(cause, context.Canceled):
		return fmt.Errorf("%s: %w", r.name(), cause)
	case cause != nil:
		reason := "no complete answer in time"
		if errors.Is(err, errBusy) {
			reason = errBusy.Error()
		}
		typed = r.fail(Timeout, "%s: %s", attempt, reason)
		typed.cause = cause
		return typed
	case errors.As(err, &known):
		return r.fail(known.kind, "%s: %s", attempt, err.Error())
	case errors.As(err, &said):
		typed = r.fail(kindOfText(string(said)), "%s: the server says: %s", attempt, strings.TrimPrefix(r.secrets.foreign(string(said)), "ERROR: "))
		typed.cause = causeOfText(string(said))
		return typed
	}
	if errors.Is(err, syscall.ENOSPC) {
		typed = r.fail(Other, "%s: the disk of the controller is full", attempt)
		typed.cause = syscall.ENOSPC
		return typed
	}
	kind, text := explainConnection(err)
	typed = r.fail(kind, "%s: %s", attempt, text)
	if requested := (*url.Error)(nil); errors.As(err, &requested) {
		err = requested.Err // without the address
	}
	typed.Detail = r.secrets.foreign(err.Error())
	return typed
}

// notValid is what servers that are built on JGit, such as Gerrit, say of a commit that is not the tip of a ref: "want … not valid".
const notValid = "not valid"

// errOnlyTips is the cause of an error of a server that may give a commit only with the history of a ref.
var errOnlyTips = errors.New("the commit is not the tip of a ref")

func causeOfText(text string) error {
	if strings.Contains(strings.ToLower(text), notValid) {
		return errOnlyTips
	}
	return nil
}

// kindOfText classifies errors that servers report as text only, over ssh and in the middle of a conversation.
func kindOfText(text string) Kind {
	text = strings.ToLower(text)
	for _, known := range []struct {
		kind  Kind
		words []string
	}{
		{RevisionNotFound, []string{"not our ref", "no such commit", "unadvertised object", notValid}},
		{RateLimited, []string{"rate limit", "too many requests", "try again later"}},
		{RepositoryNotFound, []string{"not found", "does not exist", "does not appear to be a git repository", "could not be found", "no such", "not a git"}},
		{AuthenticationFailed, []string{"denied", "permission", "not authorized", "unauthorized", "forbidden", "authentication", "access"}},
	} {
		if slices.ContainsFunc(known.words, func(words string) bool { return strings.Contains(text, words) }) {
			return known.kind
		}
	}
	return Unreachable
}

// secrets are the values that must not be in any message.
type secrets struct {
	values []string
	// size is the size of the credentials in bytes.
	size int
	// silent says that foreign text is left out, see minRedactable and maxRedactable.
	silent bool
}

// secretsOf returns the credentials of the remote in the forms in which a server might send them back.
func secretsOf(remote Remote, e endpoint) *secrets {
	s, auth := &secrets{}, remote.Auth
	s.add(auth.Token, auth.BearerToken, auth.Password, string(auth.Passphrase), e.password, remote.Proxy.Password)
	if proxy, err := url.Parse(remote.Proxy.Address); err == nil {
		password, _ := proxy.User.Password()
		s.add(password)
	}
	keys := [][]byte{auth.PrivateKey, remote.ClientKey}
	if auth.GitHubApp != nil {
		keys = append(keys, auth.GitHubApp.PrivateKey)
	}
	// A token is often the user name.
	for _, basic := range [][2]string{{e.user, e.password}, {auth.Username, auth.Password}} {
		if e.scheme != schemeSSH && (basic[1] == "" || basic[1] == "x-oauth-basic") {
			s.add(basic[0])
		}
	}
	for _, key := range keys {
		s.addLines(key)
	}
	return s
}

// addLines adds the lines of a key, one of which a message may quote.
func (s *secrets) addLines(key []byte) {
	for line := range bytes.Lines(key) {
		if line = bytes.TrimSpace(line); len(line) > 20 && !bytes.HasPrefix(line, []byte("-----")) && s.mayAdd(len(line)) {
			s.values = append(s.values, string(line))
		}
	}
	s.sort()
}

// add adds the values that are not empty.
func (s *secrets) add(values ...string) {
	for _, value := range values {
		switch value = strings.TrimSpace(value); {
		case value == "":
		case len(value) < minRedactable:
			s.silent = true
		case s.mayAdd(len(value)):
			s.values = append(s.values, value, url.QueryEscape(value), url.PathEscape(value),
				base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)))
		}
	}
	s.sort()
}

// sort puts the longest first: a secret may be a part of another.
func (s *secrets) sort() {
	slices.SortFunc(s.values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// mayAdd reports whether a credential of this size, in bytes, can be looked for.
func (s *secrets) mayAdd(size int) bool {
	s.size += size
	s.silent = s.silent || s.size > maxRedactable
	return s.size <= maxRedactable
}

// foreign prepares text of a server, or of a library that may quote a server, for a message: without secrets, on one line, and cut.
func (s *secrets) foreign(message string) string {
	if s.silent || len(message) > maxRedacted {
		return ""
	}
	return plaintext.Cut(plain(s.redact(message)), maxForeign)
}

func (s *secrets) redact(text string) string {
	for _, value := range s.values {
		text = strings.ReplaceAll(text, value, redacted)
	}
	return text
}

// plain returns the text as one line of valid UTF-8 without control characters.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsGraphic(r) || r == utf8.RuneError:
			return -1
		default:
			return r
		}
	}, text)
	return strings.Join(strings.Fields(text), " ")
}
