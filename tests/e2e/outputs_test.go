package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// outputsSecret reads the Secret with the outputs of the Stack's last Update.
func outputsSecret(t *testing.T, g *WithT, stack *pulumiv1.Stack) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: stack.Namespace, Name: stack.Status.LastUpdate.Name + autov1alpha1.OutputsSecretSuffix}
	g.Expect(system.Client.Get(t.Context(), key, secret)).To(Succeed())
	return secret
}

func TestOutputsKeepTheirNamesAndGoWhenTheProgramDropsThem(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "output-names"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "config:", "  token: {type: string, secret: true}",
		"outputs:", "  a b: 1", "  a/b: two", "  a_b: [3]", "  the token: {nested: ['${token}']}", "  dropped: true")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"token": secretRef()}
	})).To(Succeed())
	stack := await(t.Context(), g, name, ready(artifact.Digest))
	shown := map[string]string{}
	for output, value := range stack.Status.Outputs {
		shown[output] = string(value.Raw)
	}
	g.Expect(shown).To(Equal(map[string]string{"a b": `1`, "a/b": `"two"`, "a_b": `[3]`, "the token": `"[secret]"`, "dropped": `true`}))
	secret := outputsSecret(t, g, stack)
	g.Expect(secret.Data).To(HaveLen(5))
	g.Expect(secret.Data).To(HaveKeyWithValue("a_b", []byte(`[3]`)))
	g.Expect(secret.Data).To(HaveKeyWithValue("the_token", []byte(`{"nested":["`+secretCanary+`"]}`)))
	g.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/secrets", `["the_token"]`))

	next := artifacts.put("v2", packed(yamlProgram(name, "config:", "  token: {type: string, secret: true}", "outputs:", "  a_b: [4]")))
	g.Expect(publish(t.Context(), name, next)).To(Succeed())
	stack = await(t.Context(), g, name, ready(next.Digest))
	g.Expect(stack.Status.Outputs).To(HaveLen(1))
	g.Expect(string(stack.Status.Outputs["a_b"].Raw)).To(Equal(`[4]`))
}

func TestOutputsThatAreTooLargeDoNotFailTheUpdate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "output-sizes"
	lines := []string{"outputs:", "  huge: {fn::readFile: ./huge.txt}", "  large: {fn::readFile: ./large.txt}"}
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("  output%d: %d", i, i))
	}
	program := yamlProgram(name, lines...)
	program["huge.txt"] = strings.Repeat("x", 1<<20+1)
	program["large.txt"] = strings.Repeat("x", 300<<10)
	artifact := artifacts.put("v1", packed(program))
	g.Expect(start(t.Context(), name, artifact)).To(Succeed())
	stack := await(t.Context(), g, name, ready(artifact.Digest))
	secret := outputsSecret(t, g, stack)
	g.Expect(secret.Data).To(HaveLen(1001))
	g.Expect(len(secret.Data["large"])).To(Equal(300<<10 + 2))
	g.Expect(secret.Annotations).To(HaveKeyWithValue("pulumi.com/omitted-outputs", `["huge"]`))
	g.Expect(stack.Status.Outputs).To(HaveLen(1001))
	g.Expect(string(stack.Status.Outputs["output999"].Raw)).To(Equal("999"))
	g.Expect(string(stack.Status.Outputs["large"].Raw)).To(Equal(fmt.Sprintf(`"[%d bytes, see key large of secret %s]"`, 300<<10+2, secret.Name)))
	g.Eventually(eventsOf).WithArguments(t.Context(), g, name, "OutputsNotStored").WithTimeout(patience).Should(
		ContainElement(ContainSubstring(`1 of 1002 outputs are not stored`)))
}
