package source

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestCommitOfAFluxSourceIsDescribed(t *testing.T) {
	const shown = "https://git.example/demo"
	gitRepository := func(ref map[string]any) *unstructured.Unstructured {
		spec := map[string]any{"url": "https://user:" + canary + "@git.example/demo?token=" + canary}
		if ref != nil {
			spec["ref"] = ref
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "spec": spec}}
	}
	oci := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "OCIRepository"}}
	for _, test := range []struct {
		name     string
		object   *unstructured.Unstructured
		revision string
		metadata map[string]string
		want     *autov1alpha1.CommitInfo
	}{
		{"branch", gitRepository(map[string]any{"branch": "main"}), "main@sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/heads/main", Repository: shown}},
		{"default branch", gitRepository(nil), "master@sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/heads/master", Repository: shown}},
		{"tag", gitRepository(map[string]any{"tag": "v1", "branch": "main"}), "v1@sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/tags/v1", Repository: shown}},
		{"semver", gitRepository(map[string]any{"semver": ">=1"}), "v1.2@sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/tags/v1.2", Repository: shown}},
		{"name", gitRepository(map[string]any{"name": "refs/pull/1/head"}), "refs/pull/1/head@sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/pull/1/head", Repository: shown}},
		{"commit", gitRepository(map[string]any{"commit": firstSHA}), "sha1:" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Repository: shown}},
		{"as old Flux wrote it", gitRepository(map[string]any{"branch": "main"}), "main/" + firstSHA, nil,
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/heads/main", Repository: shown}},
		{"not a revision of git", gitRepository(nil), "latest", nil, nil},
		{"image", oci, "latest@sha256:" + firstSHA + firstSHA[:24], nil, nil},
		{"image with an origin", oci, "latest@sha256:x", map[string]string{
			originRevisionAnnotation: "main@sha1:" + firstSHA, originSourceAnnotation: "ssh://git@git.example/demo"},
			&autov1alpha1.CommitInfo{SHA: firstSHA, Repository: "ssh://git@git.example/demo"}},
		{"image with an origin that is a full ref", oci, "latest@sha256:x", map[string]string{
			originRevisionAnnotation: "refs/tags/v1@sha1:" + firstSHA, originSourceAnnotation: canary},
			&autov1alpha1.CommitInfo{SHA: firstSHA, Ref: "refs/tags/v1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			NewWithT(t).Expect(fluxCommitInfo(test.object, test.revision, test.metadata)).To(Equal(test.want))
		})
	}
}

func TestCredentialsInAURLAreNotShown(t *testing.T) {
	for raw, want := range map[string]string{
		"https://" + canary + "@git.example/a.git":                   "https://git.example/a.git",
		"https://user:" + canary + "@git.example:8443/a?x=" + canary: "https://git.example:8443/a",
		"ssh://git:" + canary + "@git.example/a":                     "ssh://git@git.example/a",
		"git@git.example:team/a.git":                                 "ssh://git@git.example/team/a.git",
		"http://[" + canary:                                          "the git repository",
		canary:                                                       "the git repository",
	} {
		NewWithT(t).Expect(gitRepository{url: raw}.shown()).To(Equal(want))
	}
	g := NewWithT(t)
	g.Expect(gitRepository{url: "https://u:p@GIT.Example/a"}.host()).To(Equal("git.example"))
}
