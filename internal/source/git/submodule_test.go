package git_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// withSubmodule commits a submodule at the path with the URL.
func (o *origin) withSubmodule(path, url, sha string) string {
	o.t.Helper()
	o.write(".gitmodules", fmt.Sprintf("[submodule \"sub\"]\n\tpath = %s\n\turl = %s\n", path, url))
	o.git("add", "--all")
	o.git("update-index", "--add", "--cacheinfo", "160000,"+sha+","+path)
	o.git("commit", "--quiet", "--message", "submodule")
	o.git("push", "--quiet", "--force", "origin", "HEAD:main")
	return o.git("rev-parse", "HEAD")
}

func TestSubmodules(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	inner, middle, outer := newOrigin(t, root, "org/inner"), newOrigin(t, root, "org/middle"), newOrigin(t, root, "org/outer")
	inner.write("deep.txt", "deep")
	innerSHA := inner.commit("inner")
	middle.write("middle.txt", "middle")
	middleSHA := middle.withSubmodule("lib/inner", "../inner", innerSHA)
	outer.write("outer.txt", "outer")
	outer.write("vendor/keep", "")
	sha := outer.withSubmodule("vendor/middle", "../middle", middleSHA)

	log := &recorder{next: protected("git", canary, backend(t, root))}
	server := serve(t, log)
	client := newClient(t, git.Options{})
	remote := git.Remote{URL: server.URL + "/org/outer", Auth: git.Auth{Token: canary}}
	g.Expect(unpacked(t, checkedOut(t, client, remote, sha))).To(And(HaveKeyWithValue("vendor/middle", "<dir>"),
		Not(HaveKey("vendor/middle/middle.txt"))), "only when asked for")
	remote.RecurseSubmodules = true
	g.Expect(unpacked(t, checkedOut(t, client, remote, sha))).To(And(HaveKeyWithValue("outer.txt", "outer"),
		HaveKeyWithValue("vendor/middle/middle.txt", "middle"), HaveKeyWithValue("vendor/middle/lib/inner/deep.txt", "deep")))
	remote.URL = strings.Replace(server.URL, "http://", "http://git:"+canary+"@", 1) + "/org/outer"
	remote.Auth = git.Auth{}
	checkedOut(t, client, remote, sha)

	other := &recorder{next: backend(t, root)}
	elsewhere := serve(t, other)
	for _, tt := range []struct {
		name, url, sha string
		kind           git.Kind
	}{
		{"elsewhere", elsewhere.URL + "/org/inner", innerSHA, ""},
		{"file", "file://" + inner.bare, innerSHA, git.Submodule},
		{"path", inner.bare, innerSHA, git.Submodule},
		{"command", "ext::sh -c id", innerSHA, git.Submodule},
		{"leaves the server", "../../../../etc", innerSHA, git.Submodule},
		{"no such commit", "../inner", strings.Repeat("12", 20), git.Submodule},
		{"no such repository", "../none", innerSHA, git.Submodule},
		{"nobody there", "http://127.0.0.1:1/x", innerSHA, git.Unreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			sha := outer.withSubmodule("vendor/sub", tt.url, tt.sha)
			remote := git.Remote{URL: server.URL + "/org/outer", Auth: git.Auth{Token: canary}, RecurseSubmodules: true}
			if tt.kind == "" {
				checkedOut(t, client, remote, sha)
				return
			}
			g.Expect(checkoutFails(t, client, remote, sha, tt.kind).Message).To(And(ContainSubstring(`submodule "vendor/sub"`), Not(ContainSubstring(canary))))
		})
	}
	g.Expect(other.seen()).To(And(HaveLen(2), HaveEach("")), "another host gets no credentials")

	t.Run("no URL", func(t *testing.T) {
		outer.withSubmodule("vendor/sub", "../inner", innerSHA)
		outer.git("rm", "--quiet", "--cached", ".gitmodules")
		outer.git("commit", "--quiet", "--amend", "--no-edit")
		outer.git("push", "--quiet", "--force", "origin", "HEAD:main")
		sha := outer.git("rev-parse", "HEAD")
		checkoutFails(t, client, git.Remote{URL: server.URL + "/org/outer", Auth: git.Auth{Token: canary}, RecurseSubmodules: true}, sha, git.Submodule)
	})
}

func TestSubmoduleThatContainsItselfEnds(t *testing.T) {
	root, o, sha := firstCommit(t)
	for range 8 {
		sha = o.withSubmodule("again", "./../repo", sha)
	}
	requests := 0
	next := backend(t, root)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { requests++; next.ServeHTTP(w, r) }))
	o.config("uploadpack.allowReachableSHA1InWant", "true")
	_, err := newClient(t, git.Options{}).Archive(t.Context(), git.Remote{URL: server.URL + "/repo", RecurseSubmodules: true}, sha, io.Discard)
	expectKind(t, err, git.Submodule)
	NewWithT(t).Expect(requests).To(BeNumerically("<", 20))
}
