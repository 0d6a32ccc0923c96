package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// gitWorkspace is a Workspace without a Stack that names a directory in a branch.
func gitWorkspace(name, url, ref string) *autov1alpha1.Workspace {
	return &autov1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: autov1alpha1.WorkspaceSpec{
			Git: &autov1alpha1.GitSource{URL: url, Ref: ref, Dir: "app"},
			Env: []corev1.EnvVar{
				{Name: "PULUMI_BACKEND_URL", Value: system.BackendURL},
				{Name: "PULUMI_CONFIG_PASSPHRASE", Value: "correct horse battery staple"},
			},
		},
	}
}

func TestUpdateRunsTheCommitThatTheRepositoryOfItsWorkspaceHas(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-workspace"
	app := func(value string) gitserver.Files {
		return gitserver.Files{"app/Pulumi.yaml": yamlProgram(name, "outputs:", "  x: "+value)["Pulumi.yaml"]}
	}
	repository, first, err := system.Git.Create(name, app("1"))
	g.Expect(err).NotTo(HaveOccurred())
	startInNamespace(t, g, name, gitWorkspace(name, repository.URL, gitserver.Branch))
	up := handmade(name, autov1alpha1.UpdateTypeUp)
	g.Expect(system.Client.Create(t.Context(), up)).To(Succeed())
	g.Expect(awaitEnd(t.Context(), g, up).HasFailed()).To(BeFalse(), up.Status.Message)
	g.Expect(up.Status.Revision).To(Equal("main@sha1:" + first))
	g.Expect(up.Spec.Source).To(BeNil(), "nobody writes into somebody else's Update")
	entries := history(g, name, "dev")
	g.Expect(entries).To(HaveLen(1))
	g.Expect(entries[0].Message).To(Equal("change"), "an Update without a message has that of the commit")
	g.Expect(entries[0].Environment).To(HaveKeyWithValue("git.head", first))

	// Each Update asks anew what the branch has.
	second, err := repository.Commit(app("2"))
	g.Expect(err).NotTo(HaveOccurred())
	preview := handmade(name, autov1alpha1.UpdateTypePreview)
	g.Expect(system.Client.Create(t.Context(), preview)).To(Succeed())
	g.Expect(awaitEnd(t.Context(), g, preview).HasFailed()).To(BeFalse(), preview.Status.Message)
	g.Expect(preview.Status.Revision).To(Equal("main@sha1:" + second))
}

func TestUpdateWaitsForARepositoryThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "git-workspace-later"
	repository, _, err := system.Git.Create(name, gitserver.Files{"app/Pulumi.yaml": yamlProgram(name, "outputs:", "  x: 1")["Pulumi.yaml"]})
	g.Expect(err).NotTo(HaveOccurred())
	startInNamespace(t, g, name, gitWorkspace(name, repository.URL, "later"))
	up := handmade(name, autov1alpha1.UpdateTypeUp)
	g.Expect(system.Client.Create(t.Context(), up)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), client.ObjectKeyFromObject(up), up)).To(Succeed())
		progressing := apimeta.FindStatusCondition(up.Status.Conditions, autov1alpha1.UpdateProgressing)
		g.Expect(progressing).NotTo(BeNil())
		g.Expect(progressing.Reason).To(Equal(pulumiv1.RevisionNotFoundReason))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	g.Expect(repository.NewBranch("later")).To(Succeed())
	g.Expect(awaitEnd(t.Context(), g, up).HasFailed()).To(BeFalse(), up.Status.Message)
}
