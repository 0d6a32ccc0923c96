package operation

import (
	"net/url"
	"strings"
)

// backendVariable says where the state is.
const backendVariable = "PULUMI_BACKEND_URL"

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

// surviveKill changes the URL of a state in a directory so that no file there is ever seen half written. By default the CLI writes a
// second file next to each one, and not at once: when it is killed at that moment, nobody can read the stack any more ("failed to
// load checkpoint: EOF"). Nothing needs those files.
func surviveKill(env map[string]string) {
	text := env[backendVariable]
	if !strings.HasPrefix(text, "file://") {
		return
	}
	_, query, _ := strings.Cut(text, "?")
	values, err := url.ParseQuery(query)
	switch {
	case err != nil || values.Has("metadata"):
	case query == "":
		env[backendVariable] = strings.TrimSuffix(text, "?") + "?metadata=skip"
	default:
		env[backendVariable] = text + "&metadata=skip"
	}
}
