package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// value is a value in a Stack's configuration.
func value(text string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(text)} }

func TestConfigurationOfEveryKindReachesTheProgram(t *testing.T) {
	p := begin(t, "configured")
	program := p.yaml("config:",
		"  text: {type: string}", "  flag: {type: boolean}", "  count: {type: integer}", "  tree: {type: object}", "  list: {type: array, items: {type: integer}}",
		"  fromMap: {type: string}", "  parsed: {type: object}", "  old: {type: string, secret: true}", "  ref: {type: string, secret: true}",
		"  literal: {type: string, secret: true}", "  kept: {type: string}", "  replaced: {type: string}",
		"outputs:", "  text: ${text}", "  flag: ${flag}", "  count: ${count}", "  tree: ${tree}", "  list: ${list}", "  fromMap: ${fromMap}", "  parsed: ${parsed}",
		"  old: ${old}", "  ref: ${ref}", "  literal: ${literal}", "  kept: ${kept}", "  replaced: ${replaced}")
	program["Pulumi.dev.yaml"] = "config:\n  kept: from the source\n  " + p.Name + ":replaced: from the source\n"
	artifact := p.put(program)
	p.start(nil, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{
			"text": value(`"00123"`), "flag": value(`true`), "count": value(`9007199254740991`), "tree": value(`{"a": {"b": [1, "x", false]}}`),
			p.Name + ":list": value(`[1, 2]`), "replaced": value(`"from the Stack"`),
		}
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{
			"fromMap": {Name: "settings", Key: "plain"}, "parsed": {Name: "settings", Key: "json", JSON: true},
		}
		s.Spec.Secrets = map[string]string{"old": "was in the spec"}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{
			"ref": secretRef(), "literal": {Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "written down"}},
		}
	})
	p.Create(&corev1.ConfigMap{
		ObjectMeta: p.Meta("settings"), Data: map[string]string{"plain": "some text", "json": `{"exact": 9007199254740991, "list": [null, 1.5]}`},
	})
	p.Offer(artifact)
	stack := p.Await(ready(artifact.Digest))
	shown := map[string]string{}
	for output, value := range stack.Status.Outputs {
		shown[output] = string(value.Raw)
	}
	p.Expect(shown["tree"]).To(MatchJSON(`{"a": {"b": [1, "x", false]}}`))
	p.Expect(shown["parsed"]).To(MatchJSON(`{"exact": 9007199254740991, "list": [null, 1.5]}`))
	delete(shown, "tree")
	delete(shown, "parsed")
	p.Expect(shown).To(Equal(map[string]string{
		"fromMap": `"some text"`, "text": `"00123"`, "flag": `true`, "count": `9007199254740991`, "list": `[1,2]`, "kept": `"from the source"`, "replaced": `"from the Stack"`,
		"old": `"[secret]"`, "ref": `"[secret]"`, "literal": `"[secret]"`,
	}))
}

func TestLargeStackIsDeployedAndFollowsItsSource(t *testing.T) {
	p := begin(t, "large")
	// More than the controller keeps of a Stack in its cache.
	text := strings.Repeat("x", 100_000)
	program := func(output string) *meta.Artifact {
		return p.put(p.yaml("config:", "  policy: {type: string}", "outputs:", "  policy: ${policy}", "  version: "+output))
	}
	first := program("1")
	p.start(first, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{"policy": value(`"` + text + `"`)}
	})
	p.Await(ready(first.Digest))
	second := program("2")
	p.Offer(second)
	stack := p.Await(ready(second.Digest))
	p.Expect(string(stack.Status.Outputs["version"].Raw)).To(Equal("2"))
	p.Expect(stack.Status.Outputs).To(HaveKey("policy"))
}

func TestKeyThatIsSetTwiceIsRefusedWithBothPlaces(t *testing.T) {
	suite.Long(t, "further mistakes in a configuration")
	p := begin(t, "twice")
	artifact := p.put(p.returning(1))
	p.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec.Config = map[string]apiextensionsv1.JSON{"region": value(`"eu"`)}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"region": secretRef()}
	})
	stack := p.Await(notReady(pulumiv1.SpecInvalidReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring(`configuration key "region" is set in spec.config and in spec.secretsRef`))

	// Only the program says what the project is called.
	p.Change(func(s *pulumiv1.Stack) {
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{p.Name + ":region": secretRef()}
	})
	stack = p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Expect(statuscheck.Message(stack)).To(And(ContainSubstring("config region and config "+p.Name+":region are the same key"), Not(ContainSubstring(secretCanary))))

	p.Change(func(s *pulumiv1.Stack) { s.Spec.Config = nil })
	p.Await(ready(artifact.Digest))
}

func TestStackWithAPulumiThatIsTooOldIsStalledUntilItIsNot(t *testing.T) {
	suite.Long(t, "further mistakes in a configuration")
	p := begin(t, "antique")
	p.deployed()
	mark := filepath.Join(filepath.Dir(p.PulumiHome(p.Name)), "old-pulumi")
	configure := func(tree string) {
		p.Change(func(s *pulumiv1.Stack) { s.Spec.Config = map[string]apiextensionsv1.JSON{"tree": value(tree)} })
	}
	p.Expect(os.WriteFile(mark, nil, 0o600)).To(Succeed())
	p.KillAgent()
	configure(`{"a": 1}`)
	stack := p.Await(notReady(pulumiv1.PulumiVersionTooLowReason))
	p.Expect(conditions.GetReason(stack, meta.StalledCondition)).To(Equal(pulumiv1.PulumiVersionTooLowReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("structured configuration is not supported by pulumi CLI v3.100.0: at least v3.202.0"))
	p.Expect(conditions.GetReason(p.Workspace(), autov1alpha1.WorkspaceStalled)).To(Equal(autov1alpha1.IncompatibleConfigurationReason))
	p.Eventually(func() (waiting []string) {
		for _, update := range p.Updates() {
			if !update.IsComplete() {
				waiting = append(waiting, conditions.GetReason(&update, autov1alpha1.UpdateProgressing))
			}
		}
		return waiting
	}).Should(ConsistOf(autov1alpha1.IncompatibleConfigurationReason))

	// For everything else it is new enough.
	configure(`"text"`)
	stack = p.Await(ready(""))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	p.Expect(p.Workspace().Status.PulumiVersion).To(Equal("v3.100.0"))

	configure(`{"a": 2}`)
	p.Await(notReady(pulumiv1.PulumiVersionTooLowReason))
	p.Expect(os.Remove(mark)).To(Succeed())
	p.KillAgent()
	stack = p.Await(ready(""))
	p.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
}
