package cli_test

import (
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// onBranch makes the source of the Stack follow the branch.
func (p *fixture) onBranch(name string) {
	p.Helper()
	repository := &sourcev1.GitRepository{}
	p.Get(p.Name, repository)
	before := repository.DeepCopy()
	repository.Spec.Reference = &sourcev1.GitRepositoryRef{Branch: name}
	p.Succeed(system.Client.Patch(p.Context(), repository, client.MergeFrom(before)))
}

func TestWhyASourceIsNotReadyIsSaidAtOnce(t *testing.T) {
	p := begin(t, "no-branch")
	p.onBranch("missing")
	const cause = "couldn't find remote ref"
	p.says(3, "reconcile stack no-branch --with-source --timeout 60s", `✗ GitRepository "no-branch" is not ready: `, cause)
	explained := strings.Join(strings.Fields(ask(p.Fixture, "explain", "stack", p.Name).out), " ")
	p.Expect(explained).To(MatchRegexp(`GitRepository no-branch/no-branch: (not ready|failed): [^:]*: [^:]*`))
	p.Expect(explained).To(ContainSubstring(cause))
	p.Expect(ask(p.Fixture, "tree", "stack", p.Name).out).To(ContainSubstring("couldn't find"))
}

func TestVersionOfASourceInAStackDoesNotMatter(t *testing.T) {
	suite.Long(t, "further states of a source; see TestWhyASourceIsNotReadyIsSaidAtOnce")
	p := begin(t, "old-version")
	p.Change(func(stack *pulumiv1.Stack) {
		stack.Spec.FluxSource.SourceRef.APIVersion = "source.toolkit.fluxcd.io/v1beta2"
	})
	p.says(0, "reconcile stack old-version --with-source", "✔ fetched revision", "✔ Stack old-version is ready")
	for _, command := range []string{"explain", "tree"} {
		answer := ask(p.Fixture, command, "stack", p.Name)
		p.Expect(answer.out).To(MatchRegexp(`GitRepository old-version/old-version:? +Ready main@sha1:`))
	}
	p.says(0, "diff stack old-version", "✔ nothing would change")

	p.Change(func(stack *pulumiv1.Stack) {
		stack.Spec.FluxSource.SourceRef.APIVersion, stack.Spec.FluxSource.SourceRef.Kind = "example.com/v1", "Shop"
	})
	p.says(1, "reconcile stack old-version --with-source", "the cluster does not serve this kind; is what provides it installed there?")
}

func TestStackThatWaitsOrIsSuspendedIsNotCalledOutdated(t *testing.T) {
	suite.Long(t, "further states of a Stack; see TestWhyASourceIsNotReadyIsSaidAtOnce")
	p := begin(t, "waits")
	p.Change(func(stack *pulumiv1.Stack) {
		stack.Spec.EnvRefs["OTHER"] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "missing", Key: "a"}}
	})
	p.Eventually(func() string { return ask(p.Fixture, "explain", "stack", p.Name).out }).Should(ContainSubstring("SecretNotFound"))
	p.Expect(ask(p.Fixture, "explain", "stack", p.Name).out).NotTo(ContainSubstring("Outdated"))
	p.says(4, "reconcile stack waits --timeout 3s", "is not ready after 3s: ", "missing")
	p.says(0, "suspend stack waits")
	p.Change(func(stack *pulumiv1.Stack) { stack.Spec.Stack = "other" })
	p.Expect(ask(p.Fixture, "explain", "stack", p.Name).out).To(And(ContainSubstring("Suspended"), Not(ContainSubstring("Outdated"))))
}

func TestCheckFindsAControllerOutsideOfTheCluster(t *testing.T) {
	s := systemtest.New(t, system, "outside", systemtest.Patience)
	deployment := &appsv1.Deployment{}
	s.Succeed(system.Client.Get(s.Context(), client.ObjectKey{Namespace: recorded, Name: "stack-controller"}, deployment))
	label := func(value string) {
		before := deployment.DeepCopy()
		deployment.Labels["app.kubernetes.io/name"] = value
		s.Succeed(system.Client.Patch(s.Context(), deployment, client.MergeFrom(before)))
	}
	label("other")
	defer label("stack-controller")
	answer := cli(s.Context(), today, "check", "-n", recorded)
	s.Expect(answer.err).To(MatchRegexp(`✔ no Deployment, but a controller has reconciled all Stacks \(\d+\): it runs outside of the cluster`))
	s.Expect(answer.code).To(Equal(0))

	stack := &pulumiv1.Stack{ObjectMeta: s.Meta("new"), Spec: pulumiv1.StackSpec{Stack: "dev"}}
	stack.Labels = map[string]string{"recorded": "true"} // which the controller does not watch
	s.Enter(nil, stack)
	answer = cli(s.Context(), today, "check", "-n", recorded)
	s.Expect(answer.code).To(Equal(3))
	s.Expect(answer.err).To(HaveSuffix("✗ the installation is not whole: no controller has reconciled Stack outside/new\n"))
	s.Succeed(system.Client.Delete(s.Context(), stack))
}
