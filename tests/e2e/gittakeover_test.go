package e2e_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The tests of this file run alone, before the parallel ones: they end the controller.

func TestGitStackOfTheFormerControllerIsTakenOver(t *testing.T) {
	g := NewWithT(t)
	const name = "former-git"
	repository, sha := deployedFromGit(t, g, name, yamlProgram(name, "outputs:", "  x: 1"), func(s *pulumiv1.Stack) {
		s.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "long ago"}
	})
	stopController(t, g)
	recorded := leftByTheFormerController(t, g, name, sha)
	g.Expect(system.StartController(t.Context())).To(Succeed())
	stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool { return ready(sha)(s) && len(s.Status.History) == 1 && s.Status.Deployed })
	g.Expect(stack.Status.LastUpdate.Name).To(Equal(recorded.Name))
	g.Expect(stack.Status.LastUpdate.Revision).To(Equal("main@sha1:" + sha))
	// What comes later is deployed later.
	deployed(t, g, name+"-later")
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2), "nothing runs because the controller changed")

	next, err := repository.Commit(yamlProgram(name, "outputs:", "  x: 2"))
	g.Expect(err).NotTo(HaveOccurred())
	request(t, g, name)
	await(t.Context(), g, name, ready(next))
}

func TestRestartOfTheControllerLeavesGitStacksAsTheyAre(t *testing.T) {
	g := NewWithT(t)
	const name = "git-restarted"
	repository, sha := deployedFromGit(t, g, name, yamlProgram(name, "outputs:", "  x: 1"))
	before := await(t.Context(), g, name, ready(sha))
	stopController(t, g)
	g.Expect(system.StartController(t.Context())).To(Succeed())
	// A Stack of the same branch is deployed when the answer of the git server has come.
	later := gitStack(name, repository)
	later.ObjectMeta = metav1.ObjectMeta{Namespace: name, Name: "later"}
	later.Spec.Stack = "later"
	g.Expect(system.Client.Create(t.Context(), later)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(t.Context(), keyIn(name, "later"), later)).To(Succeed())
		g.Expect(ready(sha)(later)).To(BeTrue())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	g.Expect(await(t.Context(), g, name, ready(sha)).ResourceVersion).To(Equal(before.ResourceVersion), "nothing was written")

	// The next one follows all the same.
	next, err := repository.Commit(yamlProgram(name, "outputs:", "  x: 2"))
	g.Expect(err).NotTo(HaveOccurred())
	requestOf(t, g, keyIn(name, "later"))
	await(t.Context(), g, name, ready(next))
}
