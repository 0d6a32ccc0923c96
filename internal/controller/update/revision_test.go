package update

import (
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestRevisionShowsTheCommit(t *testing.T) {
	for revision, want := range map[string]map[string]string{
		"":                                nil,
		"main@sha1:5a1f":                  {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/heads/main"},
		"feature/a@b@sha1:5a1f":           {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/heads/feature/a@b"},
		"refs/pull/7/head@sha1:5a1f":      {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/pull/7/head"},
		"sha1:5a1f":                       {"PULUMI_GIT_HEAD": "5a1f"},
		"latest@sha256:9f86d081884c7d659": nil, // an OCI artifact
		"sha256:9f86d081884c7d659":        nil, // a Bucket
		"main@sha1:":                      nil,
		"1.2.3":                           nil,
	} {
		t.Run(revision, func(t *testing.T) {
			NewWithT(t).Expect(commitMetadata(&autov1alpha1.UpdateSource{Revision: revision})).To(Equal(want))
		})
	}
}

func TestSourceShowsTheCommitInDetail(t *testing.T) {
	g := NewWithT(t)
	source := &autov1alpha1.UpdateSource{Revision: "main@sha1:5a1f", Dir: "infra/network", Commit: &autov1alpha1.CommitInfo{
		SHA: "5a1f", Ref: "refs/heads/main", Author: "Ada", AuthorEmail: "ada@example.com", Message: "Widen the zone",
		Repository: "https://git.example.com/team/infrastructure.git",
	}}
	want := map[string]string{
		"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/heads/main", "PULUMI_GIT_AUTHOR": "Ada", "PULUMI_GIT_AUTHOR_EMAIL": "ada@example.com",
		"PULUMI_GIT_COMMIT_MESSAGE": "Widen the zone", "PULUMI_VCS_REPO_KIND": "git.example.com", "PULUMI_VCS_REPO_OWNER": "team",
		"PULUMI_VCS_REPO_NAME": "infrastructure", "PULUMI_VCS_REPO_ROOT": "infra/network",
	}
	g.Expect(commitMetadata(source)).To(Equal(want))

	source.Commit.Author = "Ada\nLovelace"
	delete(want, "PULUMI_GIT_AUTHOR")
	g.Expect(commitMetadata(source)).To(Equal(want), "what a variable cannot hold is left out")

	g.Expect(commitMetadata(nil)).To(BeNil())
	g.Expect(commitMetadata(&autov1alpha1.UpdateSource{Commit: &autov1alpha1.CommitInfo{SHA: "5a1f"}})).To(Equal(map[string]string{"PULUMI_GIT_HEAD": "5a1f"}))
}

func TestRepositoryIsTakenApart(t *testing.T) {
	for url, want := range map[string][3]string{
		"https://github.com/owner/name":              {"github.com", "owner", "name"},
		"https://git.example.com:8443/a/b/name.git/": {"git.example.com", "a/b", "name"},
		"ssh://git@github.com/owner/name.git":        {"github.com", "owner", "name"},
		"git@github.com:owner/name.git":              {"github.com", "owner", "name"},
		"http://127.0.0.1/name":                      {"127.0.0.1", "", "name"},
		"":                                           {},
		"https://%":                                  {},
	} {
		host, owner, name := repositoryParts(url)
		NewWithT(t).Expect([3]string{host, owner, name}).To(Equal(want), url)
	}
}
