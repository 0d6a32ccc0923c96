package git

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxMessage is the most bytes that a message of an Error has.
	MaxMessage = 500

	// maxForeign is how much of a server's own words a message may have.
	maxForeign = 200

	// maxShown is how much of the name of a repository or a ref a message may have.
	maxShown = 150

	// minRedactable is the length in bytes from which a secret can be found in foreign text without destroying it. When there
	// is a shorter one, foreign text is left out altogether.
	minRedactable = 4

	redacted = "***"
)

// secrets are the values that must not be in any message.
type secrets struct {
	values []string
	// silent leaves foreign text out.
	silent bool
}

// secretsOf are the credentials of the remote in the forms in which a server might send them back.
func secretsOf(remote Remote, e endpoint) *secrets {
	s := &secrets{}
	s.add(remote.Auth.Token, remote.Auth.Password, string(remote.Auth.Passphrase), e.password, remote.Proxy.Password)
	s.add(proxyPassword(remote.Proxy.Address))
	s.addKey(remote.Auth.PrivateKey, remote.ClientKey)
	if app := remote.Auth.GitHubApp; app != nil {
		s.addKey(app.PrivateKey)
	}
	if e.scheme != schemeSSH {
		// A token is often given as the user name.
		if e.password == "" || e.password == "x-oauth-basic" {
			s.add(e.user)
		}
		if remote.Auth.Password == "" || remote.Auth.Password == "x-oauth-basic" {
			s.add(remote.Auth.Username)
		}
	}
	return s
}

func proxyPassword(address string) string {
	parsed, err := url.Parse(address)
	if err != nil || parsed.User == nil {
		return ""
	}
	password, _ := parsed.User.Password()
	return password
}

// addKey adds the lines of keys, because a message may quote one.
func (s *secrets) addKey(keys ...[]byte) {
	for _, key := range keys {
		for line := range strings.Lines(string(key)) {
			if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "-----") {
				s.values = append(s.values, line)
			}
		}
	}
}

// add adds values; empty ones are none.
func (s *secrets) add(values ...string) {
	for _, value := range values {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if len(value) < minRedactable {
			s.silent = true
			continue
		}
		s.values = append(s.values, value, url.QueryEscape(value), url.PathEscape(value),
			base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)))
	}
	// The longest first: a secret may be a part of another.
	slices.SortFunc(s.values, func(a, b string) int { return len(b) - len(a) })
}

// addBasic adds what the header of HTTP basic authentication has.
func (s *secrets) addBasic(username, password string) {
	s.add(password, base64.StdEncoding.EncodeToString([]byte(username+":"+password)))
}

// foreign makes text that comes from a server, or from a library that may quote one, fit for a message.
func (s *secrets) foreign(text string) string {
	if s.silent {
		return ""
	}
	return shorten(plain(s.redact(text)), maxForeign)
}

func (s *secrets) redact(text string) string {
	for _, value := range s.values {
		text = strings.ReplaceAll(text, value, redacted)
	}
	return text
}

// plain is the text as one line of valid UTF-8 without control characters.
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

// shorten cuts the text to at most the given number of bytes, between two characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const ellipsis = "…"
	cut := most - len(ellipsis)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + ellipsis
}
