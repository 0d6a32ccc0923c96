package git

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// statusError tells what a status other than 200 means.
func (r *repository) statusError(response *http.Response, now time.Time) error {
	hint := r.saidInBody(response)
	status := response.StatusCode
	if wait, limited := rateLimit(response, now); limited {
		failed := r.fail(RateLimited, "the server wants fewer requests (status %d)%s", status, hint)
		failed.RetryAfter = wait
		return failed
	}
	switch {
	case status == http.StatusUnauthorized && !r.hasCredentials():
		return r.fail(AuthenticationFailed, "the server wants credentials, or there is no such repository (status %d)%s", status, hint)
	case status == http.StatusUnauthorized:
		r.client.apps.forget(r)
		return r.fail(AuthenticationFailed, "the server does not accept the credentials (status %d)%s", status, hint)
	case status == http.StatusForbidden:
		return r.fail(AuthenticationFailed, "the credentials do not allow to read the repository (status %d)%s", status, hint)
	case status == http.StatusProxyAuthRequired:
		return r.fail(AuthenticationFailed, "the proxy does not accept the credentials (status %d)", status)
	case status == http.StatusNotFound || status == http.StatusGone:
		return r.fail(RepositoryNotFound, "there is no such repository, or the credentials do not show it (status %d)%s", status, hint)
	case status >= 300 && status < 400:
		return r.fail(Unreachable, "the server redirects where that is not followed (status %d)", status)
	default:
		failed := r.fail(Unreachable, "the server answers with status %d%s", status, hint)
		failed.RetryAfter = boundedWait(retryAfter(response.Header.Get("Retry-After"), now))
		return failed
	}
}

// saidInBody is the text of the answer, which git shows to its users, too.
func (r *repository) saidInBody(response *http.Response) string {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		return ""
	}
	text, err := readSome(response)
	if text = r.secrets.foreign(text); err != nil || text == "" {
		return ""
	}
	return ": " + text
}

func (r *repository) hasCredentials() bool {
	auth := r.remote.Auth
	return auth.Token != "" || auth.GitHubApp != nil || auth.Username != "" || auth.Password != "" || r.endpoint.password != "" ||
		(r.endpoint.user != "" && r.endpoint.scheme != schemeSSH)
}

// rateLimit recognises status 429, and 403 as GitHub uses it for its limits.
func rateLimit(response *http.Response, now time.Time) (wait time.Duration, limited bool) {
	after := response.Header.Get("Retry-After")
	exhausted := response.Header.Get("X-Ratelimit-Remaining") == "0"
	if response.StatusCode != http.StatusTooManyRequests &&
		(response.StatusCode != http.StatusForbidden || after == "" && !exhausted) {
		return 0, false
	}
	wait = retryAfter(after, now)
	if reset, err := strconv.ParseInt(response.Header.Get("X-Ratelimit-Reset"), 10, 64); err == nil && wait == 0 && exhausted {
		// Compared before it is subtracted: a lie could overflow.
		if latest := now.Add(MaxRetryAfter).Unix(); reset > latest {
			wait = MaxRetryAfter
		} else {
			wait = time.Unix(reset, 0).Sub(now)
		}
	}
	return boundedWait(wait), true
}

// retryAfter reads the header of that name: seconds or a date.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(header, 10, 64); err == nil {
		return time.Duration(min(max(seconds, 0), int64(MaxRetryAfter/time.Second))) * time.Second
	}
	if date, err := http.ParseTime(header); err == nil {
		return date.Sub(now)
	}
	return 0
}

func boundedWait(wait time.Duration) time.Duration { return min(max(wait, 0), MaxRetryAfter) }

// kindOf classifies errors of connections, with a hint for those that say little by themselves.
func kindOf(err error) (kind Kind, hint string) {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
		alert        tls.AlertError
		timeout      net.Error
	)
	text := err.Error()
	switch {
	case errors.As(err, &verification), errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return CertificateInvalid, "the server's certificate is not trusted"
	case errors.As(err, &alert), strings.Contains(text, "remote error: tls:"):
		return CertificateInvalid, "the server does not accept the TLS connection; it may want a client certificate"
	case strings.Contains(text, "Proxy Authentication Required"):
		return AuthenticationFailed, "the proxy does not accept the credentials"
	case errors.As(err, &timeout) && timeout.Timeout():
		return Timeout, ""
	default:
		return Unreachable, ""
	}
}
