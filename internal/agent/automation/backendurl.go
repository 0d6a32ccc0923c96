package automation

import (
	"net/url"
	"strings"
)

// backendPasswords returns the password in the URL of a backend, as it stands there and without its escapes; nothing when
// there is none. The URL need not be a valid one: the CLI shows what it cannot read.
func backendPasswords(text string) []string {
	_, rest, found := strings.Cut(text, "://")
	if !found {
		return nil
	}
	authority, _, _ := strings.Cut(rest, "?")
	at := strings.LastIndex(authority, "@")
	if at < 0 {
		return nil
	}
	_, password, found := strings.Cut(authority[:at], ":")
	if !found || password == "" {
		return nil
	}
	if plain, err := url.PathUnescape(password); err == nil && plain != password {
		return []string{password, plain}
	}
	return []string{password}
}
