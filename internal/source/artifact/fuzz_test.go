package artifact

import (
	"net/url"
	"strings"
	"testing"
)

// FuzzReference checks that the shown URL of an artifact has neither credentials nor a query, and that every accepted digest is valid.
func FuzzReference(f *testing.F) {
	sum := "sha256:" + strings.Repeat("a1", 32)
	f.Add("http://source-controller.flux-system.svc/gitrepository/a/b/c.tar.gz", sum)
	f.Add("https://user:canary-password@host/x?token=canary-password#canary-password", "sha256:"+strings.Repeat("A1", 32))
	f.Add("http://user:canary-password @host/x", "md5:d41d8cd98f00b204e9800998ecf8427e")
	f.Add("file:///etc/passwd", "sha256:../../etc/passwd")
	f.Add("http://user:canary-password@", strings.Repeat("x", 10_000))
	f.Add("//host/x", "sha512:"+strings.Repeat("0", 128)+"\n")
	f.Fuzz(func(t *testing.T, address, digest string) {
		checked, shown, err := parseURL(address)
		parsed, failed := url.Parse(checked)
		if err == nil && (failed != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "") {
			t.Fatalf("accepted %q", address)
		}
		if whole, failed := url.Parse(address); failed == nil && strings.Count(address, "canary-password") == 1 && !strings.Contains(whole.Host+whole.Path, "canary-password") {
			if strings.Contains(shown, "canary-password") || err != nil && strings.Contains(err.Error(), "canary-password") {
				t.Fatalf("%q is shown as %q, %v", address, shown, err)
			}
		}
		from, err := (&Store{}).locate(Reference{URL: "http://host/a", Digest: digest})
		accepted := from.digest
		if err != nil {
			if len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%d bytes: %q", len(err.Error()), err)
			}
			return
		}
		if strings.ContainsAny(string(accepted), "/\\. \n") || accepted.Validate() != nil || strings.Trim(accepted.Encoded(), "0123456789abcdef") != "" {
			t.Fatalf("accepted the digest %q", digest)
		}
	})
}
