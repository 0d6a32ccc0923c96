package source

import (
	"strings"
	"testing"
)

// FuzzCommitRevision checks that the hash that is read from a revision is a hash, and that the shown address of a repository has no
// credentials.
func FuzzCommitRevision(f *testing.F) {
	sha := strings.Repeat("a1", 20)
	f.Add("main@sha1:"+sha, "https://user:canary-password@github.com/org/app")
	f.Add("refs/heads/a@b/"+sha, "git@github.com:org/app")
	f.Add(strings.Repeat("x/@", 5000)+sha, "ssh://canary-password@host/x?token=canary-password#canary-password")
	f.Add("main/"+sha+"\n", "https://host/x\x00")
	f.Add("latest@sha256:"+strings.Repeat("b", 64), "oci://host/x")
	f.Fuzz(func(t *testing.T, revision, address string) {
		name, hash := splitRevision(revision)
		if hash != "" && (len(hash) != 40 && len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" || !strings.HasSuffix(revision, hash)) {
			t.Fatalf("%q has the hash %q", revision, hash)
		}
		if !strings.HasPrefix(revision, name) || hash == "" && name != "" {
			t.Fatalf("%q has the name %q", revision, name)
		}
		shown := shownRepository(address)
		if strings.ContainsAny(shown, "\n\x00") {
			t.Fatalf("%q is shown as %q", address, shown)
		}
		if at := strings.Index(address, ":canary-password@"); at > 0 && strings.Count(address, "canary") == 1 && strings.Contains(address[:at], "://") &&
			!strings.ContainsAny(address[strings.Index(address, "://")+3:at], "/?#") && strings.Contains(shown, "canary") {
			t.Fatalf("%q is shown as %q", address, shown)
		}
	})
}
