package operation

import (
	"net/url"
	"strings"
)

// backendVariable has the URL of the backend.
const backendVariable = "PULUMI_BACKEND_URL"

// backendPasswords returns the password in the URL of a backend, as it is written there and without its escapes; nothing when there is
// none. The URL need not be valid, because the CLI prints a URL that it cannot read.
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

// skipBackendMetadata changes the URL of a backend in a directory so that no file there is ever seen half written. By default the CLI
// writes a second file next to each file, and not at the same moment: if it is killed in between, the stack can no longer be read
// ("failed to load checkpoint: EOF"). Nothing needs the second files.
func skipBackendMetadata(env map[string]string) {
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
