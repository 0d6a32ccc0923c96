package git

import (
	"errors"
	"net/url"
	"path"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// badBases are addresses that a tenant may write as that of an API, to request something else.
var badBases = []string{
	"", "https://", "https:///x", "//api.example.com", "api.example.com", "/api/v3", "ftp://api.example.com", "file:///etc", "https:api.example.com",
	"https://api.example.com/metrics?", "https://api.example.com/metrics?x=", "https://api.example.com/metrics#", "https://api.example.com?x=", "https://api.example.com#",
	"https://api.example.com/metrics%3f", "https://api.example.com/metrics%23", "https://api.example.com/metrics%00", "https://api.example.com/%2e%2e/x", "https://api.example.com/x%2fy",
	"https://api.example.com/a%252fb", "https://api.example.com/metrics;x=", "https://api.example.com/metrics\\", "https://api.example.com/metrics\\?", "https://api.example.com/x\ny",
	"https://api.example.com/..", "https://api.example.com/../x", "https://api.example.com/x/../y", "https://api.example.com/./x", "https://api.example.com//x", "https://api.example.com/x//",
	"https://user@api.example.com", "https://user:password@api.example.com", "https://api.example.com@other.example.com", "https://api.example.com\\@other.example.com",
	"https://api.example.com:0", "https://api.example.com:99999", "https://api.example.com:x", "https://-x.example.com", "https://１２７.0.0.1", "https://api.example.com/ä",
	"https://[fe80::1%25eth0]/x", "https://api.example.com/" + strings.Repeat("x", maxURLLength), "https://api .example.com", "https://api.example.com/x y",
}

func TestAddressOfAnAPIIsAServerAndTheBeginningOfAPath(t *testing.T) {
	for raw, want := range map[string]string{
		"https://api.github.com":                        "https://api.github.com/app/installations/456/access_tokens",
		"https://api.github.com/":                       "https://api.github.com/app/installations/456/access_tokens",
		"HTTPS://GitHub.example.com/api/v3":             "https://github.example.com/api/v3/app/installations/456/access_tokens",
		"http://github.example.com:8080/a.b/~c_d-e/F0/": "http://github.example.com:8080/a.b/~c_d-e/F0/app/installations/456/access_tokens",
		"https://[2001:db8::1]:8443/api/v3":             "https://[2001:db8::1]:8443/api/v3/app/installations/456/access_tokens",
		"https://github.svc.cluster.local./...":         "https://github.svc.cluster.local./.../app/installations/456/access_tokens",
	} {
		g := NewWithT(t)
		base, err := parseBase(raw)
		g.Expect(err).NotTo(HaveOccurred(), raw)
		address, err := base.appendPath("app", "installations", "456", "access_tokens")
		g.Expect(err).NotTo(HaveOccurred(), raw)
		g.Expect(address.String()).To(Equal(want))
	}
	for _, raw := range badBases {
		_, err := parseBase(raw)
		NewWithT(t).Expect(err).To(HaveOccurred(), raw)
	}
	base, err := parseBase("https://api.github.com")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, element := range []string{"", ".", "..", "...", "a/b", "a?b", "a#b", "a%2fb", "a;b", `a\b`, "ä", "a b", "a\n", strings.Repeat("x", 101)} {
		_, err := base.appendPath("orgs", element, "installation")
		NewWithT(t).Expect(err).To(HaveOccurred(), "%q", element)
	}
}

// FuzzBase checks that a request goes to the server that was written, and that its path ends with what was appended.
func FuzzBase(f *testing.F) {
	for _, raw := range badBases {
		f.Add(raw, "owner")
	}
	f.Add("https://github.example.com/api/v3/", "..")
	f.Add("http://i:", "owner")
	f.Fuzz(func(t *testing.T, raw, owner string) {
		base, err := parseBase(raw)
		if typed := (*Error)(nil); err != nil {
			if !errors.As(err, &typed) || strings.Contains(err.Error(), "\n") {
				t.Fatal(err)
			}
			return
		}
		address, err := base.appendPath("orgs", owner, "installation")
		if err != nil {
			return
		}
		// What the server gets is parsed again.
		sent, err := url.ParseRequestURI(address.String())
		if err != nil {
			t.Fatalf("%q, %q: %v", raw, owner, err)
		}
		written, err := url.Parse(raw)
		if err != nil || !strings.EqualFold(sent.Host, strings.TrimSuffix(written.Host, ":")) || sent.User != nil || sent.RawQuery != "" || sent.Fragment != "" || sent.ForceQuery {
			t.Fatalf("%q, %q: %s", raw, owner, sent)
		}
		want := strings.TrimSuffix(written.Path, "/") + "/orgs/" + owner + "/installation"
		if sent.Path != want || sent.EscapedPath() != want || path.Clean(want) != want {
			t.Fatalf("%q, %q: %s", raw, owner, sent)
		}
	})
}
