package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

func TestStackShowsTheFailureOfItsWorkspaceAndRecoversWithIt(t *testing.T) {
	suite.Long(t, "further states of a Workspace")
	p := begin(t, "failing")
	// With a file in place of the workspace's directory, no agent can start.
	p.Expect(os.MkdirAll(filepath.Dir(p.Directory(p.Name)), 0o700)).To(Succeed())
	p.Expect(os.WriteFile(p.Directory(p.Name), nil, 0o600)).To(Succeed())
	artifact := p.put(p.returning(1))
	p.start(artifact)
	stack := p.Await(notReady(pulumiv1.WorkspaceNotReadyReason))
	p.Expect(statuscheck.Message(stack)).To(HavePrefix(`workspace "failing" is not ready (`))
	p.Eventually(p.events).WithArguments(pulumiv1.WorkspaceNotReadyReason).Should(HaveLen(1))

	p.Expect(os.Remove(p.Directory(p.Name))).To(Succeed())
	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	p.Expect(p.Updates()).To(HaveLen(1))
	p.Eventually(p.events).WithArguments(pulumiv1.WorkspaceNotReadyReason).Should(HaveLen(1))
}

func TestReclaimedWorkspaceIsMadeAgainWhenItIsNeeded(t *testing.T) {
	suite.Long(t, "further states of a Workspace")
	p := begin(t, "reclaimed")
	p.deployed(destroyed, func(s *pulumiv1.Stack) { s.Spec.WorkspaceReclaimPolicy = pulumiv1.WorkspaceReclaimDelete })
	p.awaitNoWorkspace()
	next := p.publish(p.returning(2))
	p.Await(ready(next.Digest))
	p.awaitNoWorkspace()
	p.Await(ready(next.Digest))
	p.Eventually(p.events).WithArguments("WorkspaceDeleted").Should(HaveLen(2))

	// A failure keeps the Workspace, because the next attempt is due soon.
	p.publish(p.returning("${none}"))
	p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Workspace()
	p.Offer(next)
	p.Await(ready(next.Digest))
	p.awaitNoWorkspace()

	p.Delete()
	p.awaitDestroyed()
	p.awaitNoWorkspace()
	p.awaitUpdates(0)
}

// bringProgram writes the program into the directory of the workspace, as an image or an init container would do.
func (p *fixture) bringProgram(value int) {
	p.Helper()
	path := filepath.Join(p.Directory(p.Name), "workspace", "Pulumi.yaml")
	p.Expect(os.WriteFile(path, []byte(p.returning(value)["Pulumi.yaml"]), 0o600)).To(Succeed())
}

func TestStackWithoutSourceRunsTheProgramOfItsWorkspace(t *testing.T) {
	suite.Long(t, "further states of a Workspace")
	p := begin(t, "without-source")
	stack := p.newStack()
	stack.Spec.FluxSource = nil
	stack.Spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{Local: &autov1alpha1.LocalSource{}}}
	p.Create(&corev1.Namespace{Name: p.Name}, stack)
	// While the Stack waits for its Secret, the test can write the program.
	p.Await(notReady(pulumiv1.SecretNotFoundReason))
	p.bringProgram(1)
	p.Create(p.Secret(localsystem.PassphraseSecret, secret()))
	stack = p.Await(ready(""))
	p.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(BeEmpty())

	p.bringProgram(2)
	p.Change(systemtest.Annotate(pulumiv1.ReconcileRequestAnnotation, "again"))
	stack = p.awaitNext(stack)
	p.Expect(systemtest.Output(stack, "x")).To(Equal("2"))
}

func TestWorkspaceAndUpdatesWorkWithoutAStack(t *testing.T) {
	p := begin(t, "direct")
	artifact := p.put(p.returning(1))
	workspace := p.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Flux = &autov1alpha1.FluxSource{URL: artifact.URL, Digest: artifact.Digest}
	})
	p.Create(&corev1.Namespace{Name: p.Name}, workspace)
	for _, kind := range []autov1alpha1.UpdateType{
		autov1alpha1.UpdateTypePreview, autov1alpha1.UpdateTypeUp, autov1alpha1.UpdateTypeRefresh, autov1alpha1.UpdateTypeDestroy,
	} {
		p.awaitSuccess(p.handmade(kind))
	}
	p.Expect(p.resources()).To(BeZero())

	// An Update may belong to its Workspace, and is then deleted with it. An Update that does not stays as history.
	owned := p.handmade(autov1alpha1.UpdateTypePreview, func(update *autov1alpha1.Update) {
		update.Name = "owned"
		update.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(workspace, autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind)),
		}
	})
	p.awaitUpdate(owned, (*autov1alpha1.Update).IsComplete)
	p.Expect(system.Client.Delete(p.Context(), workspace)).To(Succeed())
	p.AwaitAbsent(owned.Name, owned)
	p.Expect(p.Updates()).To(HaveLen(4))
}

func TestUpdateMadeByHandRunsWhatItsStackRanLast(t *testing.T) {
	suite.Long(t, "further states of a Workspace")
	p := begin(t, "by-hand")
	_, first := p.deployed()
	next := p.publish(p.returning("second"))
	p.Await(ready(next.Digest))
	p.Expect(next.Digest).NotTo(Equal(first.Digest))

	p.Expect(p.Workspace().Generation).To(Equal(int64(1)), "a commit does not change the Workspace")
	update := p.handmade(autov1alpha1.UpdateTypeUp)
	p.awaitSuccess(update)
	p.Expect(update.Spec.Source).To(BeNil())
	outputs := &corev1.Secret{}
	p.Get(update.Status.Outputs, outputs)
	p.Expect(string(outputs.Data["x"])).To(Equal(`"second"`))
}

// newWorkspace returns a Workspace without a Stack.
func (p *fixture) newWorkspace(change func(*autov1alpha1.WorkspaceSpec)) *autov1alpha1.Workspace {
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

// inGit gives the Workspace a program in a directory of a branch.
func inGit(url, ref string) func(*autov1alpha1.WorkspaceSpec) {
	return func(spec *autov1alpha1.WorkspaceSpec) {
		spec.Git = &autov1alpha1.GitSource{URL: url, Ref: ref, Dir: "app"}
	}
}

// inApp returns files with a program in that directory.
func (p *fixture) inApp(value int) gitserver.Files {
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

	// Each Update asks again which commit the branch has.
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
