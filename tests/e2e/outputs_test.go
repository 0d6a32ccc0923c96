package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestOutputsKeepTheirNamesAndGoWhenTheProgramDropsThem(t *testing.T) {
	suite.Long(t, "further kinds of outputs")
	p := begin(t, "output-names")
	artifact := p.put(p.yaml("config:", "  token: {type: string, secret: true}",
		"outputs:", "  a b: 1", "  a/b: two", "  a_b: [3]", "  the token: {nested: ['${token}']}", "  dropped: true"))
	p.start(artifact, func(s *pulumiv1.Stack) { s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"token": secretRef()} })
	stack := p.Await(ready(artifact.Digest))
	shown := map[string]string{}
	for output, value := range stack.Status.Outputs {
		shown[output] = string(value.Raw)
	}
	p.Expect(shown).To(Equal(map[string]string{"a b": `1`, "a/b": `"two"`, "a_b": `[3]`, "the token": `"[secret]"`, "dropped": `true`}))
	secret := p.outputs(stack)
	p.Expect(secret.Data).To(HaveLen(5))
	p.Expect(secret.Data).To(HaveKeyWithValue("a_b", []byte(`[3]`)))
	p.Expect(secret.Data).To(HaveKeyWithValue("the_token", []byte(`{"nested":["`+secretCanary+`"]}`)))
	p.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["the_token"]`))

	next := p.publish(p.yaml("config:", "  token: {type: string, secret: true}", "outputs:", "  a_b: [4]"))
	stack = p.Await(ready(next.Digest))
	p.Expect(stack.Status.Outputs).To(HaveLen(1))
	p.Expect(scene.Output(stack, "a_b")).To(Equal(`[4]`))
}

func TestOutputsThatAreTooLargeDoNotFailTheUpdate(t *testing.T) {
	suite.Long(t, "further kinds of outputs")
	p := begin(t, "output-sizes")
	lines := []string{"outputs:", "  huge: {fn::readFile: ./huge.txt}", "  large: {fn::readFile: ./large.txt}"}
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("  output%d: %d", i, i))
	}
	program := p.yaml(lines...)
	program["huge.txt"] = strings.Repeat("x", 1<<20+1)
	program["large.txt"] = strings.Repeat("x", 300<<10)
	artifact := p.put(program)
	p.start(artifact)
	stack := p.Await(ready(artifact.Digest))
	secret := p.outputs(stack)
	p.Expect(secret.Data).To(HaveLen(1001))
	p.Expect(len(secret.Data["large"])).To(Equal(300<<10 + 2))
	p.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/omitted-outputs", `["huge"]`))
	p.Expect(stack.Status.Outputs).To(HaveLen(1001))
	p.Expect(scene.Output(stack, "output999")).To(Equal("999"))
	p.Expect(scene.Output(stack, "large")).To(Equal(fmt.Sprintf(`"[%d bytes, see key large of secret %s]"`, 300<<10+2, secret.Name)))
	p.Eventually(p.events).WithArguments("OutputsNotStored").Should(
		ContainElement(ContainSubstring(`1 of 1002 outputs are not stored`)))
}
