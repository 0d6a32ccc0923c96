package git_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

func TestResolveFindsTheCommitThatARefNames(t *testing.T) {
	o, url := repository(t)
	first := o.git("rev-parse", "HEAD")
	o.git("tag", "light")
	o.git("tag", "--annotate", "--message", "annotated", "v1")
	o.git("tag", "--annotate", "--message", "a tag of a tag", "nested", "v1")
	o.git("tag", "both")
	o.write("Pulumi.yaml", "name: two\n")
	second := o.commit("second")
	o.git("branch", "both")
	o.git("branch", "feature/x")
	o.git("branch", first[:8])
	o.git("push", "--quiet", "origin", "HEAD:refs/pull/7/head", "--tags")
	o.git("push", "--quiet", "origin", "refs/heads/both", "feature/x", "refs/heads/"+first[:8])
	tagObject := o.git("rev-parse", "v1")
	NewWithT(t).Expect(tagObject).NotTo(Equal(first))
	client := newClient(t, git.Options{})

	for _, tt := range []struct{ ref, sha, full, revision string }{
		{"", second, "refs/heads/main", "main@sha1:"},
		{"HEAD", second, "refs/heads/main", "main@sha1:"},
		{"main", second, "refs/heads/main", "main@sha1:"},
		{"heads/main", second, "refs/heads/main", "main@sha1:"},
		{"refs/heads/main", second, "refs/heads/main", "main@sha1:"},
		{"refs/remotes/origin/main", second, "refs/heads/main", "main@sha1:"},
		{"feature/x", second, "refs/heads/feature/x", "feature/x@sha1:"},
		{"light", first, "refs/tags/light", "light@sha1:"},
		{"v1", first, "refs/tags/v1", "v1@sha1:"},
		{"tags/v1", first, "refs/tags/v1", "v1@sha1:"},
		{"refs/tags/v1", first, "refs/tags/v1", "v1@sha1:"},
		{"nested", first, "refs/tags/nested", "nested@sha1:"},
		{"both", second, "refs/heads/both", "both@sha1:"},
		{"refs/tags/both", first, "refs/tags/both", "both@sha1:"},
		{"refs/pull/7/head", second, "refs/pull/7/head", "refs/pull/7/head@sha1:"},
		{"pull/7/head", second, "refs/pull/7/head", "refs/pull/7/head@sha1:"},
		{first, first, "", "sha1:"},
		{strings.ToUpper(first), first, "", "sha1:"},
		{first[:8], second, "refs/heads/" + first[:8], first[:8] + "@sha1:"},
		{second[:7], second, "", "sha1:"},
		{first[:12], first, "", "sha1:"},
	} {
		t.Run("ref "+tt.ref, func(t *testing.T) {
			g := NewWithT(t)
			revision, err := client.Resolve(t.Context(), git.Remote{URL: url}, tt.ref)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(revision).To(Equal(git.Revision{SHA: tt.sha, Ref: tt.full}))
			g.Expect(revision.String()).To(Equal(tt.revision + tt.sha))
		})
	}
	for _, ref := range []string{"missing", "refs/heads/v1", "a b", "new\nline", "ctrl\x01", "../x", "-", "@{1}", "1234567", strings.Repeat("x", 2000)} {
		t.Run("no ref "+shortName(ref), func(t *testing.T) {
			resolveFails(t, client, git.Remote{URL: url}, ref, git.RevisionNotFound)
		})
	}
}

func shortName(name string) string { return name[:min(len(name), 20)] }

func TestFullSHAIsNotAskedFor(t *testing.T) {
	g := NewWithT(t)
	client := newClient(t, git.Options{})
	sha := strings.Repeat("0123456789", 4)
	g.Expect(client.Resolve(t.Context(), git.Remote{URL: "https://does-not-exist.invalid/org/repo"}, sha)).To(Equal(git.Revision{SHA: sha}))
}

func TestAbbreviatedSHAIsFoundInTheHistory(t *testing.T) {
	g := NewWithT(t)
	o, url := repository(t)
	first := o.git("rev-parse", "HEAD")
	o.commit("second")
	o.commit("third")
	client := newClient(t, git.Options{})
	for _, filter := range []string{"true", "false"} {
		o.config("uploadpack.allowFilter", filter)
		g.Expect(client.Resolve(t.Context(), git.Remote{URL: url}, first[:7])).To(Equal(git.Revision{SHA: first}))
	}
}

func TestEmptyRepositoryHasNoRevision(t *testing.T) {
	root := t.TempDir()
	newOrigin(t, root, "empty.git")
	url := serve(t, backend(t, root)).URL + "/empty.git"
	client := newClient(t, git.Options{})
	for _, ref := range []string{"", "main", "1234567"} {
		resolveFails(t, client, git.Remote{URL: url}, ref, git.RevisionNotFound)
	}
	checkoutFails(t, client, git.Remote{URL: url}, strings.Repeat("0", 40), git.RevisionNotFound)
}

func TestSHA256RepositoryIsReportedAsNotSupported(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	o := newOrigin(t, root, "new.git", "--object-format=sha256")
	sha := o.commit("first")
	g.Expect(sha).To(HaveLen(64))
	url := serve(t, backend(t, root)).URL + "/new.git"
	client := newClient(t, git.Options{})
	g.Expect(resolveFails(t, client, git.Remote{URL: url}, "main", git.Other).Message).To(ContainSubstring("sha256"))
	g.Expect(checkoutFails(t, client, git.Remote{URL: url}, sha, git.Other).Message).To(ContainSubstring("SHA-256"))
}
