package languages_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// The Stack is created from a commit in git, and follows a GitRepository from the next one on.
func TestNginxInGo(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const name = "nginx-go"
	// The mirror has the modules that are in the module cache of this machine.
	download := exec.CommandContext(ctx, "go", "mod", "download")
	download.Dir = filepath.Join("testdata", name)
	output_, err := download.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output_))

	app, stack := provide(t, name, project(t, name))
	withImage(stack)
	stack.Spec.DestroyOnFinalize = true
	followed := stack.Spec.FluxSource
	sha := pinInGit(t, app, stack)
	g.Expect(system.Client.Create(ctx, stack)).To(Succeed())
	ready := waitReady(t, app)
	g.Expect(ready.Status.LastUpdate.LastSuccessfulCommit).To(Equal(sha))
	deployment := &appsv1.Deployment{}
	g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: output(g, ready, "name")}, deployment)).To(Succeed())
	g.Expect(deployment.Status.ReadyReplicas).To(BeEquivalentTo(1))

	// What is wrong with a commit is said as the compiler says it.
	sha = push(t, app, gitserver.Files{"more.go": "package main\n\nvar port int = \"eighty\"\n"})
	change(t, app.Key(), func(stack *pulumiv1.Stack) {
		stack.Spec.GitSource, stack.Spec.FluxSource = pulumiv1.GitSource{}, followed
	})
	stack = awaitUpdate(t, app, sha)
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateFailed))
	t.Log(stack.Status.LastUpdate.Message)
	g.Expect(stack.Status.LastUpdate.Message).To(MatchRegexp(`more\.go:3:16: cannot use "eighty" .* as int value`))

	stack = commit(t, app, gitserver.Files{"more.go": "package main\n"})
	g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), stack.Status.LastUpdate.Message)
	g.Expect(system.Client.Delete(ctx, stack)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(ctx, app.Key(), &pulumiv1.Stack{})).NotTo(Succeed())
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	left := &appsv1.Deployment{}
	g.Expect(client.IgnoreNotFound(system.Client.Get(ctx, client.ObjectKeyFromObject(deployment), left))).To(Succeed())
	g.Expect(left.UID == "" || left.DeletionTimestamp != nil).To(BeTrue(), "the Deployment is deleted")
}
