package update

import (
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// FuzzCommitMetadata checks that what a source says about its commit can be passed to a process, and contains no credentials from the user
// part of a URL.
func FuzzCommitMetadata(f *testing.F) {
	sha := strings.Repeat("a1", 20)
	f.Add("main@sha1:"+sha, "https://github.com/org/app.git", "Ada", "first line", "infra")
	f.Add("feature@2@sha1:"+sha, "git@github.com:org/group/app", "a@b", "", "")
	f.Add("refs/tags/v1\x00@sha1:x", "ssh://git:canary-password@[::1]:22/a%0ab", "A\nB", "\x1b[31m", "..")
	f.Add("latest@sha256:"+sha, "https://user:canary-password@host", "", "", "")
	f.Add("sha1:\n", "://", "", "", "")
	f.Fuzz(func(t *testing.T, revision, repository, author, message, dir string) {
		source := &autov1alpha1.UpdateSource{Revision: revision, Dir: dir}
		for _, commit := range []*autov1alpha1.CommitInfo{nil, {SHA: revision, Ref: revision, Author: author, Message: message, Repository: repository}} {
			source.Commit = commit
			for variable, value := range commitMetadata(source) {
				if value == "" || strings.ContainsFunc(value, unicode.IsControl) {
					t.Fatalf("%s=%q", variable, value)
				}
				if strings.HasPrefix(variable, "PULUMI_VCS_") && strings.Contains(value, "canary-password") && !strings.Contains(dir, "canary") && hasPassword(repository) {
					t.Fatalf("%s=%q of %q", variable, value, repository)
				}
			}
		}
	})
}

// hasPassword reports whether the canary is in the URL as the password and nowhere else.
func hasPassword(repository string) bool {
	parsed, err := url.Parse(repository)
	if err != nil || parsed.User == nil || strings.Count(repository, "canary-password") != 1 {
		return false
	}
	password, _ := parsed.User.Password()
	return strings.Contains(password, "canary-password")
}

// FuzzConfigLiteral checks that a value of the spec reaches the agent as it was written: text as text, and anything else unchanged.
func FuzzConfigLiteral(f *testing.F) {
	for _, seed := range []string{`"text"`, `"\ud800"`, `12345678901234567890`, `1e400`, `{"a": [1, null, "\u0000"]}`, `null`, ` "x" `, `"unfinished`, "\xff", `{"a":1}{`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		item, err := (&inputReader{}).configItem(t.Context(), &autov1alpha1.ConfigItem{Key: "app:key", Value: &apiextensionsv1.JSON{Raw: raw}})
		if err != nil {
			if quoted := strings.TrimSpace(string(raw)); len(quoted) > 20 && strings.Contains(err.Error(), quoted) {
				t.Fatalf("%v shows %q", err, raw)
			}
			return
		}
		switch value := item.GetValue().(type) {
		case *agentpb.ConfigItem_Text:
			if !utf8.ValidString(value.Text) || !strings.HasPrefix(strings.TrimSpace(string(raw)), `"`) {
				t.Fatalf("%q became the text %q", raw, value.Text)
			}
		case *agentpb.ConfigItem_Json:
			if value.Json != string(raw) {
				t.Fatalf("%q became %q", raw, value.Json)
			}
		default:
			t.Fatalf("%q became %T", raw, value)
		}
	})
}
