package e2e_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// network is the name of the Program and the Stack that give outputs.
const network = "network"

// networkProgram is a Program with outputs, one of them secret, one with a secret part.
func networkProgram(vpc, other string) string {
	return fmt.Sprintf(`
configuration: {password: {type: string, secret: true}}
outputs:
  vpcId: %s
  other: %s
  cluster: {endpoint: "https://c", nodes: [{ip: 10.0.0.1}]}
  token: ${password}
  account: {user: admin, password: "${password}"}`, vpc, other)
}

// give starts the Stack that gives outputs, in the namespace.
func (p *fixture) give(changes ...func(*pulumiv1.Stack)) {
	p.Helper()
	stack := p.programStack(append(changes, usesPassword)...)
	stack.Name, stack.Spec.Stack, stack.Spec.ProgramRef.Name = network, network, network
	p.Create(stack)
	p.giveOther("vpc-1", "1")
}

// giveOther changes the Program of the Stack that gives outputs.
func (p *fixture) giveOther(vpc, other string) {
	p.Helper()
	applied := client.ApplyConfigurationFromUnstructured(p.program(network, networkProgram(vpc, other)))
	p.Succeed(system.Client.Apply(p.Context(), applied, client.FieldOwner("test"), client.ForceOwnership))
}

// from is an input with an output of the Stack that gives outputs.
func from(key, output, path string) autov1alpha1.Input {
	return autov1alpha1.Input{Key: key, Stack: &autov1alpha1.StackOutput{Name: network, Output: output, Path: path}}
}

func takes(list ...autov1alpha1.Input) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Spec.Inputs = list }
}

func TestInputsFollowTheOutputsOfAnotherStack(t *testing.T) {
	p := begin(t, "inputs")
	artifact := p.put(p.yaml("config:", "  vpc: {type: string}", "  ip: {type: string}", "  settings: {type: object}", "  token: {type: string}",
		"outputs:", "  vpc: ${vpc}", "  ip: ${ip}", "  settings: ${settings}", "  token: ${token}"))
	path := from("settings.cloud.password", "account", "password")
	path.Path = true
	p.start(artifact, takes(from("vpc", "vpcId", ""), from("ip", "cluster", "nodes[0].ip"), from("token", "token", ""), path), func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{"settings": {Raw: []byte(`{"cloud": {"region": "eu"}}`)}}
	})
	p.Await(notReady(pulumiv1.DependencyNotReadyReason))
	p.give()
	stack := p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "vpc")).To(Equal(`"vpc-1"`))
	p.Expect(systemtest.Output(stack, "ip")).To(Equal(`"10.0.0.1"`))
	p.Expect(systemtest.Output(stack, "token")).To(Equal(`"[secret]"`), "what is secret stays secret")
	values := p.outputs(stack).Data
	p.Expect(string(values["token"])).To(Equal(`"` + secretCanary + `"`))
	p.Expect(string(values["settings"])).To(And(ContainSubstring(secretCanary), ContainSubstring(`"region":"eu"`)))
	shown, err := yaml.Marshal([]any{stack, p.Workspace(), p.LastUpdate(stack)})
	p.Succeed(err)
	p.Expect(string(shown)).NotTo(ContainSubstring(secretCanary))
	first := stack.Status.LastUpdate.Name

	p.giveOther("vpc-1", "2")
	p.AwaitStack(network, func(s *pulumiv1.Stack) bool { return systemtest.Output(s, "other") == `2` && ready("")(s) })
	p.Await(func(s *pulumiv1.Stack) bool {
		return s.Status.LastUpdate.InputVersionsDigest != stack.Status.LastUpdate.InputVersionsDigest && ready("")(s) && s.Status.LastUpdate.Name == first
	})

	p.giveOther("vpc-2", "2")
	stack = p.Await(func(s *pulumiv1.Stack) bool { return systemtest.Output(s, "vpc") == `"vpc-2"` && ready("")(s) })
	p.Expect(*p.LastUpdate(stack).Spec.Message).To(Equal("Input vpc changed"))
}

func TestInputThatIsMissingWaits(t *testing.T) {
	suite.Long(t, "each way in which an input is missing; the tests of internal/controller/stack prove them")
	p := begin(t, "inputs-missing")
	artifact := p.put(p.yaml("config: {vpc: {type: string}}", "outputs: {vpc: \"${vpc}\"}"))
	p.start(artifact, takes(from("vpc", "vpcID", "")))
	p.give()
	stack := p.Await(notReady(pulumiv1.InputNotFoundReason))
	p.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(
		ContainSubstring(`waiting for output "vpcID" in stack "network", which input "vpc" needs: the stack has no output "vpcID"`))
	p.Expect(conditions.IsStalled(stack)).To(BeFalse())
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Inputs[0].Default = &apiextensionsv1.JSON{Raw: []byte(`"none"`)} })
	stack = p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "vpc")).To(Equal(`"none"`))
	p.Change(func(s *pulumiv1.Stack) {
		s.Spec.Inputs[0] = autov1alpha1.Input{Key: "vpc", Secret: &autov1alpha1.KeyReference{Name: "later", Key: "vpc"}}
	})
	p.Await(notReady(pulumiv1.InputNotFoundReason))
	p.Create(p.Secret("later", map[string]string{"vpc": secretCanary}))
	stack = p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "vpc")).To(Equal(`"[secret]"`))

	// A destroy works from the state, and needs no inputs.
	p.Change(destroyed, func(s *pulumiv1.Stack) { s.Spec.Inputs[0].Secret.Name = "never" })
	p.Await(notReady(pulumiv1.InputNotFoundReason))
	p.Delete()
	p.awaitDestroyed()
}

func TestOutputsOfAnotherNamespaceAreSharedByConsent(t *testing.T) {
	suite.Long(t, "restarts the controller; the tests of internal/controller/stack prove who may have which outputs")
	p := alone(t, "inputs-user")
	p.restartController("--no-cross-namespace-refs=false")
	p.Cleanup(func() {
		p.Succeed(system.StopController())
		p.Succeed(system.StartController(context.Background()))
	})
	giver := p.beside("inputs-giver")
	giver.enter()
	share := func(secrets bool, outputs ...string) func(*pulumiv1.Stack) {
		return func(s *pulumiv1.Stack) {
			s.Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"other", "inputs-u*"}, Outputs: outputs, Secrets: secrets}}
		}
	}
	giver.give(share(false, "vpcId", "token"))
	foreign := func(output string) func(*pulumiv1.Stack) {
		input := from("vpc", output, "")
		input.Stack.Namespace = giver.Name
		return takes(input)
	}
	artifact := p.put(p.yaml("config: {vpc: {type: string}}", "outputs: {vpc: \"${vpc}\"}"))
	p.start(artifact, foreign("vpcId"))
	stack := p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "vpc")).To(Equal(`"vpc-1"`))

	p.Change(foreign("other"))
	stack = p.Await(notReady(pulumiv1.AccessDeniedReason))
	p.Expect(conditions.IsStalled(stack)).To(BeTrue())
	p.Change(foreign("token"))
	stack = p.Await(func(s *pulumiv1.Stack) bool {
		return notReady(pulumiv1.AccessDeniedReason)(s) && !conditions.IsStalled(s)
	})
	p.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(ContainSubstring("which is secret or has a secret part"))
	giver.ChangeStack(network, share(true, "vpcId", "token"))
	stack = p.Await(ready(artifact.Digest))
	p.Expect(systemtest.Output(stack, "vpc")).To(Equal(`"[secret]"`))

	// A consent that is withdrawn stops the next operation. What was deployed stays, and the Stack stays ready.
	giver.ChangeStack(network, share(true, "vpcId"))
	p.Consistently(func() bool { return ready("")(p.Await(func(*pulumiv1.Stack) bool { return true })) }, "1s").Should(BeTrue())
	p.Request()
	stack = p.Await(notReady(pulumiv1.AccessDeniedReason))
	before := stack.Status.LastUpdate.Name
	giver.ChangeStack(network, share(true, "vpcId", "other"))
	p.Consistently(func() bool {
		return notReady(pulumiv1.AccessDeniedReason)(p.Await(func(*pulumiv1.Stack) bool { return true }))
	}, "1s").Should(BeTrue())
	giver.ChangeStack(network, share(true, "vpcId", "token"))
	stack = p.Await(ready(artifact.Digest))
	p.Expect(stack.Status.LastUpdate.Name).NotTo(Equal(before), "what was requested comes when it may")
}

func TestCommitRollsThroughAChainOfInputs(t *testing.T) {
	suite.Long(t, "restarts the controller; the tests of internal/controller/stack prove when a value is another one")
	p := alone(t, "inputs-chain")
	// commit publishes three programs, each with its own directory, and returns what the last Stack of the chain then shows.
	commit := func(size int, comment string, extra ...string) (deployed func(*pulumiv1.Stack) bool) {
		files := gitserver.Files{}
		for name, lines := range map[string][]string{
			"a": {"outputs:", fmt.Sprintf("  x: %d", size)},
			"b": {"config: {x: {type: integer}}", "outputs: {x: \"b${x}\"}"},
			"c": {"config: {x: {type: string}}", "outputs: {x: \"c${x}\"}"},
		} {
			files[name+"/Pulumi.yaml"] = systemtest.Program(name, append(lines, "# "+comment)...)["Pulumi.yaml"]
		}
		for _, name := range extra {
			files[name] = comment
		}
		artifact := p.publish(files)
		return func(s *pulumiv1.Stack) bool {
			return ready(artifact.Digest)(s) && systemtest.Output(s, "x") == fmt.Sprintf(`"cb%d"`, size)
		}
	}
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})
	deployed := commit(1, "")
	for name, before := range map[string]string{"a": "", "b": "a", "c": "b"} {
		p.layer(name, func(s *pulumiv1.Stack) {
			s.Spec.FluxSource.Dir, s.Spec.SourcePaths = name, []string{name}
			if before != "" {
				s.Spec.Inputs = []autov1alpha1.Input{{Key: "x", Stack: &autov1alpha1.StackOutput{Name: before, Output: "x"}}}
			}
		})
	}
	p.AwaitStack("c", deployed)
	p.Expect(p.Updates()).To(HaveLen(3))

	p.AwaitStack("c", commit(2, ""))
	p.Expect(p.Updates()).To(HaveLen(6), "the commit changes one program, and the inputs of the other Stacks")
	p.AwaitStack("c", commit(3, "changed"))
	p.Expect(p.Updates()).To(HaveLen(9), "the commit changes all programs, and each Stack is updated once, in their order")

	// The values are compared with a key that outlives the process.
	p.restartController()
	p.AwaitStack("c", commit(3, "changed", "README"))
	p.Expect(p.Updates()).To(HaveLen(9))
}
