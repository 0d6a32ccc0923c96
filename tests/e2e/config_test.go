package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
)

// value is a value in a Stack's configuration.
func value(text string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(text)} }

// secretRef refers to the secret that every namespace here has.
func secretRef() pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: stage.PassphraseSecret, Key: "canary"}}
}

func TestConfigurationOfEveryKindReachesTheProgram(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "configured"
	program := yamlProgram(name, "config:",
		"  text: {type: string}", "  flag: {type: boolean}", "  count: {type: integer}", "  tree: {type: object}", "  list: {type: array, items: {type: integer}}",
		"  fromMap: {type: string}", "  parsed: {type: object}", "  old: {type: string, secret: true}", "  ref: {type: string, secret: true}",
		"  literal: {type: string, secret: true}", "  kept: {type: string}", "  replaced: {type: string}",
		"outputs:", "  text: ${text}", "  flag: ${flag}", "  count: ${count}", "  tree: ${tree}", "  list: ${list}", "  fromMap: ${fromMap}", "  parsed: ${parsed}",
		"  old: ${old}", "  ref: ${ref}", "  literal: ${literal}", "  kept: ${kept}", "  replaced: ${replaced}")
	program["Pulumi.dev.yaml"] = "config:\n  kept: from the source\n  " + name + ":replaced: from the source\n"
	artifact := artifacts.put("v1", packed(program))
	g.Expect(start(t.Context(), name, nil, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{
			"text": value(`"00123"`), "flag": value(`true`), "count": value(`9007199254740991`), "tree": value(`{"a": {"b": [1, "x", false]}}`),
			name + ":list": value(`[1, 2]`), "replaced": value(`"from the Stack"`),
		}
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{
			"fromMap": {Name: "settings", Key: "plain"}, "parsed": {Name: "settings", Key: "json", JSON: true},
		}
		s.Spec.Secrets = map[string]string{"old": "was in the spec"}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{
			"ref": secretRef(), "literal": {Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "written down"}},
		}
	})).To(Succeed())
	g.Expect(system.Client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "settings"},
		Data:       map[string]string{"plain": "some text", "json": `{"exact": 9007199254740991, "list": [null, 1.5]}`},
	})).To(Succeed())
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	stack := await(t.Context(), g, name, ready(artifact.Digest))
	shown := map[string]string{}
	for output, value := range stack.Status.Outputs {
		shown[output] = string(value.Raw)
	}
	g.Expect(shown["tree"]).To(MatchJSON(`{"a": {"b": [1, "x", false]}}`))
	g.Expect(shown["parsed"]).To(MatchJSON(`{"exact": 9007199254740991, "list": [null, 1.5]}`))
	delete(shown, "tree")
	delete(shown, "parsed")
	g.Expect(shown).To(Equal(map[string]string{
		"fromMap": `"some text"`, "text": `"00123"`, "flag": `true`, "count": `9007199254740991`, "list": `[1,2]`, "kept": `"from the source"`, "replaced": `"from the Stack"`,
		"old": `"[secret]"`, "ref": `"[secret]"`, "literal": `"[secret]"`,
	}))
}

func TestKeyThatIsSetTwiceIsRefusedWithBothPlaces(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "twice"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "outputs:", "  x: 1")))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{"region": value(`"eu"`)}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"region": secretRef()}
	})).To(Succeed())
	stack := await(t.Context(), g, name, notReady(pulumiv1.SpecInvalidReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring(`configuration key "region" is set in spec.config and in spec.secretsRef`))

	// Only the program says what the project is called.
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{name + ":region": secretRef()}
	})
	stack = await(t.Context(), g, name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(stack)).To(And(ContainSubstring("config region and config "+name+":region are the same key"), Not(ContainSubstring(secretCanary))))

	change(t.Context(), g, name, func(s *pulumiv1.Stack) { s.Spec.Config = nil })
	await(t.Context(), g, name, ready(artifact.Digest))
}

func TestStackWithAPulumiThatIsTooOldIsStalledUntilItIsNot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "antique"
	deployed(t, g, name)
	workspace := &autov1alpha1.Workspace{}
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	mark := filepath.Join(filepath.Dir(strings.TrimPrefix(workspace.Status.Address, "unix:")), "state", "home", "old-pulumi")
	g.Expect(os.WriteFile(mark, nil, 0o600)).To(Succeed())
	killAgent(g, name)
	change(t.Context(), g, name, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{"tree": value(`{"a": 1}`)}
	})
	stack := await(t.Context(), g, name, notReady(pulumiv1.PulumiVersionTooLowReason))
	g.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.PulumiVersionTooLowReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("pulumi CLI v3.190.0 is not supported: at least v3.206.0"))
	g.Expect(system.Client.Get(t.Context(), keyOf(name), workspace)).To(Succeed())
	g.Expect(conditions.GetReason(workspace, autov1alpha1.WorkspaceStalled)).To(Equal(autov1alpha1.IncompatibleConfigurationReason))
	g.Eventually(func(g Gomega) {
		for _, update := range updates(t.Context(), g.(*WithT), name) {
			if !update.IsComplete() {
				g.Expect(conditions.GetReason(&update, autov1alpha1.UpdateProgressing)).To(Equal(autov1alpha1.IncompatibleConfigurationReason))
				return
			}
		}
		g.Expect("no update").To(Equal("an update that waits"))
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())

	g.Expect(os.Remove(mark)).To(Succeed())
	killAgent(g, name)
	stack = await(t.Context(), g, name, ready(""))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}
