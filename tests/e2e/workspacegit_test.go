package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// newWorkspace is a Workspace without a Stack.
func (p *play) newWorkspace(change func(*autov1alpha1.WorkspaceSpec)) *autov1alpha1.Workspace {
	workspace := &autov1alpha1.Workspace{
		ObjectMeta: p.Meta(p.Name),
		Spec: autov1alpha1.WorkspaceSpec{Env: []corev1.EnvVar{
			{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
			{Name: "PULUMI_CONFIG_PASSPHRASE", Value: "correct horse battery staple"},
		}},
	}
	change(&workspace.Spec)
	return workspace
}

// inGit is a program in a directory of a branch.
func inGit(url, ref string) func(*autov1alpha1.WorkspaceSpec) {
	return func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Git = &autov1alpha1.GitSource{URL: url, Ref: ref, Dir: "app"}
	}
}

// inApp is the program in that directory.
func (p *play) inApp(value int) gitserver.Files {
	return gitserver.Files{"app/Pulumi.yaml": p.returning(value)["Pulumi.yaml"]}
}

func TestUpdateRunsTheCommitThatTheRepositoryOfItsWorkspaceHas(t *testing.T) {
	suite.Long(t, "a Workspace with a repository")
	p := begin(t, "git-workspace")
	repository, first := p.repository(p.inApp(1))
	p.enter(p.newWorkspace(inGit(repository.URL, gitserver.Branch)))
	up := p.handmade(autov1alpha1.UpdateTypeUp)
	p.awaitSuccess(up)
	p.Expect(up.Status.Revision).To(Equal("main@sha1:" + first))
	p.Expect(up.Spec.Source).To(BeNil(), "nobody writes into somebody else's Update")
	entries := p.history()
	p.Expect(entries).To(HaveLen(1))
	p.Expect(entries[0].Message).To(Equal("change"), "an Update without a message has that of the commit")
	p.Expect(entries[0].Environment).To(HaveKeyWithValue("git.head", first))

	// Each Update asks anew what the branch has.
	second := p.commit(repository, p.inApp(2))
	preview := p.handmade(autov1alpha1.UpdateTypePreview)
	p.awaitSuccess(preview)
	p.Expect(preview.Status.Revision).To(Equal("main@sha1:" + second))
}

func TestUpdateWaitsForARepositoryThatCannotBeUsed(t *testing.T) {
	suite.Long(t, "a Workspace with a repository")
	p := begin(t, "git-workspace-later")
	repository, _ := p.repository(p.inApp(1))
	p.enter(p.newWorkspace(inGit(repository.URL, "later")))
	up := p.handmade(autov1alpha1.UpdateTypeUp)
	p.awaitUpdate(up, func(u *autov1alpha1.Update) bool {
		return conditions.GetReason(u, autov1alpha1.UpdateProgressing) == pulumiv1.RevisionNotFoundReason
	})
	p.Expect(repository.NewBranch("later")).To(Succeed())
	p.awaitSuccess(up)
}
