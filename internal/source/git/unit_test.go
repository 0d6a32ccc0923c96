package git

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"

	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

func TestTokenOfAnAppIsKeptForItsOtherRepositories(t *testing.T) {
	g, issued := NewWithT(t), time.Now()
	for _, test := range []struct {
		status int
		age    time.Duration
		kept   bool
	}{
		{http.StatusForbidden, 2 * time.Minute, true}, {http.StatusNotFound, 2 * time.Minute, true}, {http.StatusUnauthorized, 2 * time.Minute, false},
		{http.StatusForbidden, 5 * time.Minute, false}, {http.StatusNotFound, 5 * time.Minute, false},
	} {
		r, err := NewClient(Options{}).open(Remote{URL: "https://github.com/org/app", Auth: Auth{GitHubApp: &GitHubApp{AppID: "1"}}})
		g.Expect(err).NotTo(HaveOccurred())
		r.tokenIssued = issued
		r.client.apps.kept.Add(r.appKey(), appToken{Value: "token", ExpiresAt: issued.Add(time.Hour), issued: issued})
		refusal := &http.Response{StatusCode: test.status, Request: &http.Request{Header: http.Header{"Authorization": {"Basic"}}}}
		g.Expect(r.statusError(refusal, issued.Add(test.age))).NotTo(MatchError(ErrNewToken))
		g.Expect(r.client.apps.valid(r.appKey()).Value != "").To(Equal(test.kept), "%d after %s", test.status, test.age)
	}
}

func TestURLIsOneOfARemoteRepository(t *testing.T) {
	for raw, want := range map[string]string{
		"https://github.com/org/repo":              "github.com/org/repo",
		"https://github.com/org/repo.git/":         "github.com/org/repo.git",
		"HTTPS://GitHub.com:8443/org/repo":         "github.com:8443/org/repo",
		"http://user:pass@host/repo":               "host/repo",
		"ssh://git@host:2222/org/repo":             "host:2222/org/repo",
		"ssh://host/~user/repo":                    "host/~user/repo",
		"git@github.com:org/repo.git":              "github.com/org/repo.git",
		"host.example.com:org/repo":                "host.example.com/org/repo",
		"git@[::1]:repo":                           "[::1]/repo",
		"https://[2001:db8::1]:8443/org/repo":      "[2001:db8::1]:8443/org/repo",
		"git@ssh.dev.azure.com:v3/org/project/one": "ssh.dev.azure.com/v3/org/project/one",
	} {
		g := NewWithT(t)
		e, err := parseEndpoint(raw)
		g.Expect(err).NotTo(HaveOccurred(), raw)
		g.Expect(e.display()).To(Equal(want))
	}
	for _, raw := range []string{
		"", "file:///etc", "FILE:///etc", "/srv/repo", "./repo", "../repo", "repo", "C:\\repo", "c:/repo", "c:repo", "git://host/repo",
		"ext::sh -c id", "ext::id", "https://", "https:///path", "https://host", "https://host/", "https://ho st/x", "https://host/x\ny",
		"ssh://-oProxyCommand=id/x", "git@-oProxyCommand=id:x", "https://host:0/x", "https://host:99999/x", "https://host:http/x",
		"https://host/x?ref=y", "https://host/x#y", "https://user:secret@ho%zz/x", "ftp://host/x", "host:", "host:/", "git@host:-x",
		"https://host/" + strings.Repeat("x", 5000), "https://host/x\xff", "dir/host:x", "fd::17/foo",
	} {
		g := NewWithT(t)
		_, err := parseEndpoint(raw)
		g.Expect(err).To(HaveOccurred(), raw)
		var typed *Error
		g.Expect(errors.As(err, &typed)).To(BeTrue())
		g.Expect(typed.Kind).To(Equal(InvalidURL))
		g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
	}
}

func TestKeyDistinguishesEverySetting(t *testing.T) {
	g := NewWithT(t)
	app := &GitHubApp{AppID: "1", InstallationID: "2", PrivateKey: []byte("canary-key")}
	remotes := []Remote{
		{}, {URL: "a"}, {URL: "ab"},
		{Auth: Auth{PrivateKey: []byte("canary")}}, {Auth: Auth{Passphrase: []byte("canary")}}, {Auth: Auth{Token: "canary"}},
		{Auth: Auth{Username: "canary"}}, {Auth: Auth{Password: "canary"}}, {Auth: Auth{Username: "can", Password: "ary"}},
		{Auth: Auth{BearerToken: "canary"}}, {Auth: Auth{GitHubApp: &GitHubApp{InstallationOwner: "12"}}}, {Auth: Auth{GitHubApp: &GitHubApp{BaseURL: "12"}}},
		{Auth: Auth{GitHubApp: app}}, {Auth: Auth{GitHubApp: &GitHubApp{}}}, {Auth: Auth{GitHubApp: &GitHubApp{AppID: "12"}}},
		{KnownHosts: []byte("canary")}, {CA: []byte("canary")}, {ClientCert: []byte("canary")}, {ClientKey: []byte("canary")},
		{Proxy: Proxy{Address: "canary"}}, {Proxy: Proxy{Username: "canary"}}, {Proxy: Proxy{Password: "canary"}}, {RecurseSubmodules: true},
	}
	seen := map[string]int{}
	for n, remote := range remotes {
		key := remote.Key()
		g.Expect(key).To(MatchRegexp("^[0-9a-f]{64}$"))
		g.Expect(seen).NotTo(HaveKey(key), "%d", n)
		seen[key] = n
		g.Expect(remote.Key()).To(Equal(key))
	}
	copied := Remote{Auth: Auth{GitHubApp: &GitHubApp{AppID: "1", InstallationID: "2", PrivateKey: []byte("canary-key")}}}
	g.Expect(copied.Key()).To(Equal(Remote{Auth: Auth{GitHubApp: app}}.Key()), "values count, not pointers")
}

func TestRemoteIsPrintedWithoutCredentials(t *testing.T) {
	g := NewWithT(t)
	remote := Remote{URL: "https://canary@host/repo", Auth: Auth{Token: "canary", PrivateKey: []byte("canary")}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		g.Expect(fmt.Sprintf(verb, remote)).NotTo(ContainSubstring("canary"))
		g.Expect(fmt.Sprintf(verb, remote.Auth)).NotTo(ContainSubstring("canary"))
	}
}

func TestSecretsAreNotInMessages(t *testing.T) {
	g := NewWithT(t)
	const canary = "c4n/ary+t0ken="
	s := secretsOf(Remote{Auth: Auth{Token: canary, Password: "pass word"}}, endpoint{scheme: schemeHTTPS, user: "in-the-url"})
	s.add(canary, base64.StdEncoding.EncodeToString([]byte("git:"+canary)))
	text := "bad " + canary + " and " + base64.StdEncoding.EncodeToString([]byte("git:"+canary)) + " c4n%2Fary%2Bt0ken%3D pass+word in-the-url\x1b[31m\n"
	shown := s.foreign(text)
	g.Expect(shown).To(Equal("bad *** and *** *** *** ***[31m"))
	g.Expect(secretsOf(Remote{Auth: Auth{Password: "x"}}, endpoint{}).foreign("anything")).To(BeEmpty())
	g.Expect(len(s.foreign(strings.Repeat("é", 1000)))).To(BeNumerically("<=", maxForeign))
}

func TestFewSecretsAreLookedForInTheTextOfAServer(t *testing.T) {
	junk := bytes.Repeat([]byte("a line of what is no key\n"), 1<<20/25)
	for name, auth := range map[string]Auth{
		"a token":    {Token: string(junk)},
		"a key":      {PrivateKey: junk, Password: "pass word"},
		"an app key": {GitHubApp: &GitHubApp{PrivateKey: junk}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := secretsOf(Remote{Auth: auth}, endpoint{})
			size := 0
			for _, value := range s.values {
				size += len(value)
			}
			g.Expect(size).To(BeNumerically("<=", 2*maxRedactable))
			g.Expect(s.foreign("what is no key")).To(BeEmpty(), "nobody knows what is in there")
			if auth.Password != "" {
				g.Expect(s.redact("the pass word")).To(Equal("the ***"))
			}
		})
	}
	key := bytes.Repeat([]byte("a line of the largest key\n"), 16<<10/26)
	NewWithT(t).Expect(secretsOf(Remote{Auth: Auth{PrivateKey: key}}, endpoint{}).foreign("<a line of the largest key>")).To(Equal("<***>"))

	s := secretsOf(Remote{Auth: Auth{Token: "a token of a server"}}, endpoint{})
	NewWithT(t).Expect(s.foreign(strings.Repeat("x", maxRedacted))).To(HaveLen(maxForeign))
	NewWithT(t).Expect(s.foreign(strings.Repeat("x", maxRedacted+1))).To(BeEmpty())
}

func TestSubmoduleURLsAreResolvedAsGitDoes(t *testing.T) {
	for _, tt := range []struct{ parent, relative, want string }{
		{"https://host/org/repo.git", "../other.git", "https://host/org/other.git"},
		{"https://user:canary@host:8443/org/repo", "../../two/other", "https://host:8443/two/other"},
		{"https://host/org/repo", "./sub", "https://host/org/repo/sub"},
		{"git@host:org/repo.git", "../other.git", "git@host:org/other.git"},
		{"ssh://git@host:22/org/repo.git", "../other.git", "ssh://git@host:22/org/other.git"},
		{"https://host/org/repo", "../../../other", ""},
		{"git@host:repo", "../../../etc", ""},
	} {
		g := NewWithT(t)
		e, err := parseEndpoint(tt.parent)
		g.Expect(err).NotTo(HaveOccurred())
		joined, err := e.join(tt.relative)
		g.Expect(joined).To(Equal(tt.want))
		g.Expect(err != nil).To(Equal(tt.want == ""))
	}
}

func TestLastOfSubmodulesWithOnePathCounts(t *testing.T) {
	g := NewWithT(t)
	file := "[submodule \"a\"]\n\tpath = lib\n\turl = https://a.invalid/first\n" +
		"[submodule \"b\"]\n\tpath = lib\n\turl = https://b.invalid/second\n" +
		"[submodule \"c\"]\n\tpath = lib2\n\turl = https://c.invalid/one\n\turl = https://c.invalid/two\n"
	for range 50 { // the result must not depend on chance
		urls, err := parseModules([]byte(file))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(urls).To(Equal(map[string]string{"lib": "https://b.invalid/second", "lib2": "https://c.invalid/two"}), "as git submodule init has it")
	}
}

// The decoder took 8 s for the file with the most sections.
func TestModulesOfVeryManySectionsAreRefused(t *testing.T) {
	g := NewWithT(t)
	sections := func(count int) []byte {
		var file strings.Builder
		for n := range count {
			fmt.Fprintf(&file, "[a%x]\nb\n", n)
		}
		return []byte(file.String())
	}
	_, err := parseModules(sections(maxModulesSections))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = parseModules(sections(maxModulesSections + 1))
	g.Expect(err).To(MatchError(ContainSubstring("more than 1000 sections")))
}

// To decrypt a key takes up to a second, which nothing interrupts. A namespace with many such keys must not take all processors.
func TestOnePrivateKeyIsDecryptedAtATime(t *testing.T) {
	g := NewWithT(t)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), "", []byte("passphrase"))
	g.Expect(err).NotTo(HaveOccurred())
	client := NewClient(Options{})
	r, err := client.open(Remote{URL: "ssh://git@git.invalid/repo", Auth: Auth{PrivateKey: pem.EncodeToMemory(block), Passphrase: []byte("passphrase")}})
	g.Expect(err).NotTo(HaveOccurred())
	release, err := client.decryptions.Acquire(t.Context(), "other")
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = r.signer(ctx)
	g.Expect(err).To(MatchError(ContainSubstring("decrypt the private key: the controller was busy")))
	release()
	for range 2 {
		_, err = r.signer(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
	}
}

func TestAPIOfGitHubIsWhereItDocumentsIt(t *testing.T) {
	for url, want := range map[string]string{
		"https://github.com/org/repo":        "https://api.github.com",
		"https://www.github.com/org/repo":    "https://api.github.com",
		"https://octo.ghe.com/org/repo":      "https://api.octo.ghe.com",
		"https://git.example.com/org/repo":   "https://git.example.com/api/v3",
		"https://ghe.com.evil.com/org/repo":  "https://ghe.com.evil.com/api/v3",
		"https://git.example.com:8443/a/b/c": "https://git.example.com/api/v3",
	} {
		g := NewWithT(t)
		r, err := NewClient(Options{}).open(Remote{URL: url, Auth: Auth{GitHubApp: &GitHubApp{}}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.gitHubAPI()).To(Equal(want))
		r.remote.Auth.GitHubApp.BaseURL = " https://api.example.com/ "
		g.Expect(r.gitHubAPI()).To(Equal("https://api.example.com"))
	}
}

func TestCredentialsBelongToAHost(t *testing.T) {
	for _, tt := range []struct {
		from, to            string
		redirect, submodule bool
	}{
		{"https://host/a", "https://host/b", true, true},
		{"https://host/a", "https://host:443/b", true, true},
		{"https://host/a", "https://HOST/b", true, true},
		{"https://host/a", "https://host:8443/b", false, false},
		{"https://host/a", "http://host/b", false, false},
		{"http://host/a", "https://host/b", true, true},
		{"http://host:8080/a", "https://host/b", false, false},
		{"https://host/a", "https://evil.host/b", false, false},
		{"https://host/a", "https://host.evil/b", false, false},
		{"https://host/a", "git@host:b", false, true},
		{"git@host:a", "https://host/b", false, true},
		{"https://host:8443/a", "git@host:b", false, false},
		{"git@host:a", "http://host/b", false, false},
	} {
		g := NewWithT(t)
		from, err := parseEndpoint(tt.from)
		g.Expect(err).NotTo(HaveOccurred())
		to, err := parseEndpoint(tt.to)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(from.sameHost(to)).To(Equal(tt.redirect), "%s → %s", tt.from, tt.to)
		g.Expect(from.sharesCredentials(to)).To(Equal(tt.submodule), "%s → %s", tt.from, tt.to)
	}
}

func TestRateLimitsOfServers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		name    string
		status  int
		header  map[string]string
		wait    time.Duration
		limited bool
	}{
		{"429", 429, nil, 0, true},
		{"429 with seconds", 429, map[string]string{"Retry-After": "90"}, 90 * time.Second, true},
		{"429 with a date", 429, map[string]string{"Retry-After": now.Add(time.Minute).UTC().Format(http.TimeFormat)}, time.Minute, true},
		{"secondary limit", 403, map[string]string{"Retry-After": "60"}, time.Minute, true},
		{"primary limit", 403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1700000120"}, 2 * time.Minute, true},
		{"for ever", 429, map[string]string{"Retry-After": "99999999999"}, maxRetryAfter, true},
		{"reset for ever", 403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "9223372036854775807"}, maxRetryAfter, true},
		{"in the past", 403, map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1"}, 0, true},
		{"negative", 429, map[string]string{"Retry-After": "-5"}, 0, true},
		{"forbidden", 403, map[string]string{"X-Ratelimit-Remaining": "100"}, 0, false},
		{"unauthorized", 401, map[string]string{"Retry-After": "5"}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			response := &http.Response{StatusCode: tt.status, Header: http.Header{}}
			for name, value := range tt.header {
				response.Header.Set(name, value)
			}
			wait, limited := rateLimit(response, now)
			g.Expect(limited).To(Equal(tt.limited))
			g.Expect(wait).To(Equal(tt.wait))
		})
	}
}

func TestNamesThatStandForGitsDirectoryAreRefused(t *testing.T) {
	for _, name := range []string{".git", ".GIT", ".Git", ".git.", ".git ", ".git. .", "git~1", "GIT~1", ".g\u200cit", ".git::$INDEX_ALLOCATION", "..", ".",
		"", "a/b", `..\b`, `a\..\b`, `a\..`, `.git\config`, `a\.GIT`, `a\git~1\b`, "a\x00b", strings.Repeat("x", 256)} {
		NewWithT(t).Expect(checkName(name)).NotTo(Succeed(), "%q", name)
	}
	for _, name := range []string{`a\b`, `mnt-\x2dmail.mount`, `\`, `a\...`, ".gitignore", ".gitmodules", ".github", "git", "...", "a b", "git~2",
		"Icon\r", "\xe9t\xe9", strings.Repeat("x", 255)} {
		NewWithT(t).Expect(checkName(name)).To(Succeed(), "%q", name)
	}
}

func FuzzURL(f *testing.F) {
	for _, seed := range []string{"https://user:canarycanary@host/x", "git@host:x", "ssh://a:b@[::1]:22/x", "file:///x", "ext::x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		e, err := parseEndpoint(raw)
		if err != nil {
			if len(err.Error()) > maxMessage {
				t.Fatal(err)
			}
			return
		}
		if e.scheme != schemeHTTP && e.scheme != schemeHTTPS && e.scheme != schemeSSH || e.host == "" || strings.HasPrefix(e.host, "-") {
			t.Fatalf("%q: %+v", raw, e)
		}
		r := &repository{endpoint: e, secrets: secretsOf(Remote{URL: raw}, e)}
		message := r.fail(Other, "said %s", r.secrets.foreign(raw)).Message
		if len(message) > maxMessage || !utf8.ValidString(message) || strings.ContainsAny(message, "\n\x00\x1b") {
			t.Fatalf("%q", message)
		}
		// A password of less than eight bytes may also be a part of the message around it.
		if len(e.password) >= 8 && !strings.ContainsAny(e.password, " *…") && strings.Contains(message, e.password) {
			t.Fatalf("%q shows the password of %q", message, raw)
		}
	})
}

func FuzzMatchRef(f *testing.F) {
	sha := strings.Repeat("a1", 20)
	f.Add("003e"+sha+" refs/heads/main\n0000", "main")
	f.Add(packets("version 2", "ls-refs")+"0000"+packets(sha+" HEAD symref-target:refs/heads/main", sha+" refs/tags/v1 peeled:"+sha)+"0000", "v1")
	f.Add(packets(sha+" HEAD\x00symref=HEAD:refs/heads/main", sha+" refs/tags/v1", strings.Repeat("b2", 20)+" refs/tags/v1^{}")+"0000", "v1")
	f.Fuzz(func(t *testing.T, advertised, ref string) {
		query := refQuery{names: candidates(ref), digits: "a", sha: sha, tips: true}
		packets := &packetReader{source: strings.NewReader(advertised)}
		c, err := readCapabilities(packets)
		if err != nil {
			return
		}
		list, err := readRefs(packets, c, query)
		if err != nil {
			return
		}
		if len(list.named) > len(query.names) || len(list.commits) > 2 || len(list.tips) > maxTips {
			t.Fatalf("%d names, %d commits, %d tips are kept", len(list.named), len(list.commits), len(list.tips))
		}
		revision, found := list.match()
		if !found {
			return
		}
		if !isObjectName(revision.SHA) || revision.Ref != headRef && !validRefName(revision.Ref) || strings.ContainsAny(revision.String(), "\n\x00 ") {
			t.Fatalf("%+v", revision)
		}
	})
}

func FuzzPointer(f *testing.F) {
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if isPointer(content) && (len(content) >= maxPointer || !bytes.HasPrefix(content, []byte("version http"))) {
			t.Fatalf("%q", content)
		}
		usesLFS(content)
	})
}

func FuzzFirstLine(f *testing.F) {
	f.Add("\n\n subject\nbody")
	f.Add("\xff\x1b[31m\u202e")
	f.Fuzz(func(t *testing.T, message string) {
		line := firstLine(message)
		if len(line) > maxSubject || !utf8.ValidString(line) || strings.ContainsAny(line, "\r\n\x00\x1b") {
			t.Fatalf("%q", line)
		}
	})
}

func FuzzTree(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("x", 20) + "40000 b\x00" + strings.Repeat("y", 20)))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parseTree(content, 1000)
		for _, entry := range entries {
			if err == nil && (strings.ContainsAny(entry.Name, "/\x00") || strings.EqualFold(entry.Name, ".git") ||
				slices.Contains(strings.Split(entry.Name, `\`), "..")) {
				t.Fatalf("%q", entry.Name)
			}
		}
	})
}

func TestAmbiguousAbbreviationIsRefused(t *testing.T) {
	g := NewWithT(t)
	client := NewClient(Options{})
	r, err := client.open(Remote{URL: "https://host/repo"})
	g.Expect(err).NotTo(HaveOccurred())
	list := &refs{query: refQuery{digits: "1234567"}}
	for _, last := range []string{"a", "a", "b", "c"} {
		list.add(ref{name: "refs/heads/" + last, object: "1234567" + strings.Repeat(last, 33)})
	}
	_, err = client.expand(t.Context(), r, list)
	var typed *Error
	g.Expect(errors.As(err, &typed)).To(BeTrue())
	g.Expect(typed.Kind).To(Equal(RevisionNotFound))
	g.Expect(typed.Message).To(ContainSubstring("more than one commit"))
}

// The exchange runs in its own goroutine, where a panic would end the process for all tenants.
func TestPanicOfAnExchangeForATokenIsAnErrorLikeAnother(t *testing.T) {
	g := NewWithT(t)
	endpoint, err := parseEndpoint("https://git.invalid/repo")
	g.Expect(err).NotTo(HaveOccurred())
	// The exchange panics without an App. That stands for any panic that an unusual key may cause.
	r := &repository{client: NewClient(Options{}), endpoint: endpoint, secrets: &secrets{}}
	token, err := r.client.apps.token(t.Context(), r, nil)
	var failed *Error
	g.Expect(errors.As(err, &failed)).To(BeTrue(), "%v", err)
	g.Expect(failed.Message).To(ContainSubstring("an internal error"))
	g.Expect(token).To(BeZero())
}

func TestPackIsNotReadAgainWithoutEnd(t *testing.T) {
	g := NewWithT(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "pack"))
	g.Expect(err).NotTo(HaveOccurred())
	defer file.Close()
	content := strings.Repeat("x", 200)
	_, err = file.Write(packScript(append([]byte{byte(plumbing.BlobObject), 0, 0, byte(len(content))}, content...)))
	g.Expect(err).NotTo(HaveOccurred())
	limits := packLimits{objects: 1, objectSize: 200, totalSize: 200}
	p, err := openPack(t.Context(), file, limits, newMemory(archive.Limits{}.WithDefaults()))
	g.Expect(err).NotTo(HaveOccurred())
	for range maxMadeFactor {
		g.Expect(p.read(t.Context(), 0)).To(HaveLen(200))
	}
	_, err = p.read(t.Context(), 0)
	g.Expect(err).To(MatchError(errPackTooLarge))
}
