package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/framework/vault"
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
	suite.Long(t, "a large object; the tests of internal/informercache prove how it is read")
	p := begin(t, "large")
	// This is more than the controller keeps of a Stack in its cache.
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

	// The controller does not know that both are the same key, because only the program has the name of the project.
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

	// For a configuration that is not structured, the version is new enough.
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
	p.Expect(systemtest.Output(stack, "a_b")).To(Equal(`[4]`))
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
	p.Expect(systemtest.Output(stack, "output999")).To(Equal("999"))
	p.Expect(systemtest.Output(stack, "large")).To(Equal(fmt.Sprintf(`"[%d bytes, see key large of secret %s]"`, 300<<10+2, secret.Name)))
	p.Eventually(p.events).WithArguments("OutputsNotStored").Should(
		ContainElement(ContainSubstring(`1 of 1002 outputs are not stored`)))
}

var watched = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}

// prompt is how soon something happens after an event of a watch. With polling, it would take longer on average.
const prompt = 10 * time.Second

func (p *fixture) credentials(value string, labels map[string]string) *corev1.Secret {
	secret := p.Secret("credentials", map[string]string{"password": secretCanary + value})
	secret.Labels = labels
	return secret
}

func (p *fixture) settings(value string, labels map[string]string) *corev1.ConfigMap {
	settings := &corev1.ConfigMap{ObjectMeta: p.Meta("settings"), Data: map[string]string{"region": value}}
	settings.Labels = labels
	return settings
}

// update updates the object on the API server.
func (p *fixture) update(object client.Object) {
	p.Helper()
	p.Expect(system.Client.Update(p.Context(), object)).To(Succeed())
}

// configured starts a Stack whose program returns a value from a Secret and one from a ConfigMap, both with the labels, and waits until it
// is Ready.
func (p *fixture) configured(labels map[string]string) *pulumiv1.Stack {
	p.Helper()
	artifact := p.put(p.yaml("config:", "  password: {type: string, secret: true}", "  region: {type: string}",
		"outputs:", "  password: ${password}", "  region: ${region}"))
	p.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"region": {Name: "settings", Key: "region"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": localsystem.SecretRef("credentials", "password")}
	})
	p.Create(p.credentials("1", labels), p.settings("eu", labels))
	stack := p.Await(ready(artifact.Digest))
	// The Stack has already used the objects that appeared while it waited, so they cause no further update.
	p.Expect(p.Updates()).To(HaveLen(1))
	return stack
}

// awaitPassword waits until an update after the one that the Stack recorded has succeeded, and expects that it used this value of the
// Secret.
func (p *fixture) awaitPassword(stack *pulumiv1.Stack, value string) *pulumiv1.Stack {
	p.Helper()
	stack = p.awaitNext(stack)
	p.Expect(string(p.outputs(stack).Data["password"])).To(Equal(`"` + secretCanary + value + `"`))
	return stack
}

// expectMessage returns the Update of the name, and expects that it has the message, which says why it runs.
func (p *fixture) expectMessage(name, message string) *autov1alpha1.Update {
	p.Helper()
	update := &autov1alpha1.Update{}
	p.Get(name, update)
	p.Expect(update.Spec.Message).To(HaveValue(Equal(message)))
	return update
}

// The next two tests run alone, before the parallel ones, because they stop the controller.

func TestRestartRunsNoUpdateForSecretsThatDidNotChange(t *testing.T) {
	suite.Long(t, "further changes of references")
	p := alone(t, "restarted-references")
	stack := p.configured(watched)
	p.restartController()
	p.beside(p.Name + "-later").configured(watched)
	p.Expect(p.Updates()).To(HaveLen(1))

	// The next controller notices a change that was made while no controller was running.
	p.Expect(system.KillController()).To(Succeed())
	p.update(p.credentials("2", watched))
	p.startController()
	p.awaitPassword(stack, "2")
	p.Expect(p.Updates()).To(HaveLen(2))
}

func TestSelectorChoosesWhichSecretsAreWatched(t *testing.T) {
	suite.Long(t, "further changes of references")
	all, helm, none := alone(t, "selected"), alone(t, "selected-helm"), alone(t, "selected-none")
	ofHelm := map[string]string{"owner": "helm"}
	all.restartController("--watch-configs-label-selector=owner!=helm")
	stack := all.configured(nil)
	helm.configured(ofHelm)
	helm.update(helm.credentials("2", ofHelm))
	all.update(all.credentials("2", nil))
	all.awaitPassword(stack, "2")
	helm.Expect(helm.Updates()).To(HaveLen(1))

	all.restartController("--watch-configs-label-selector=none")
	all.update(all.credentials("3", nil))
	none.configured(watched)
	all.Expect(all.Updates()).To(HaveLen(2))

	// With the default selector, objects without the label are not watched.
	all.restartController()
	all.beside("selected-later").configured(nil)
	all.Expect(all.Updates()).To(HaveLen(2))
	none.Expect(none.Updates()).To(HaveLen(1))
}

func TestChangeOfALabelledSecretOrConfigMapIsDeployed(t *testing.T) {
	suite.Long(t, "tests in internal/references and internal/controller/stack prove each step of it")
	p := begin(t, "references")
	stack := p.configured(watched)
	digest := stack.Status.LastUpdate.ReferencesDigest

	// A Secret without the label causes no update, and neither does a write that changes nothing. Both are written before the change that
	// causes one.
	plain := secret()
	plain["new"] = "key"
	p.update(p.Secret(localsystem.PassphraseSecret, plain))
	p.update(p.credentials("1", watched))
	changed := time.Now()
	p.update(p.credentials("2", watched))
	stack = p.awaitPassword(stack, "2")
	p.Expect(p.Updates()).To(HaveLen(2))
	p.Expect(stack.Status.LastUpdate.ReferencesDigest).NotTo(Or(BeEmpty(), Equal(digest)))
	update := p.expectMessage(stack.Status.LastUpdate.Name, `Referenced Secret or ConfigMap changed: Secret "credentials"`)
	p.Expect(update.CreationTimestamp.Time).To(BeTemporally("<", changed.Add(prompt)))

	p.update(p.settings("us", watched))
	stack = p.awaitNext(stack)
	p.Expect(systemtest.Output(stack, "region")).To(Equal(`"us"`))
	p.Expect(p.Updates()).To(HaveLen(3))
}

func TestSecretThatIsGoneMattersToTheNextUpdate(t *testing.T) {
	suite.Long(t, "further changes of references")
	p := begin(t, "reference-gone")
	stack := p.configured(watched)
	p.Expect(system.Client.Delete(p.Context(), p.credentials("1", nil))).To(Succeed())
	// The deletion of the Secret causes no update, so the next update is caused by the ConfigMap.
	p.update(p.settings("us", watched))
	waiting := p.Await(notReady(pulumiv1.SecretNotFoundReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring(`secret "credentials", which configuration key "password" needs: it does not exist`))
	p.Expect(p.Updates()).To(HaveLen(2))
	p.expectMessage(waiting.Status.CurrentUpdate.Name, `Referenced Secret or ConfigMap changed: ConfigMap "settings"`)
	p.Create(p.credentials("2", watched))
	p.awaitPassword(stack, "2")
	p.Expect(p.Updates()).To(HaveLen(2))
}

func TestEveryMissingReferenceIsNamedAndWaitedFor(t *testing.T) {
	suite.Long(t, "further changes of references")
	p := begin(t, "references-missing")
	artifact := p.put(p.yaml("config:", "  a: {type: string}", "  b: {type: string}", "outputs:", "  x: 1"))
	p.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec.AccessTokenSecret = "token"
		s.Spec.Envs, s.Spec.SecretEnvs = []string{"env-map"}, []string{"env-secret"}
		s.Spec.EnvRefs["SOME"] = localsystem.SecretRef("env-ref", "key")
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"a": {Name: "config-map", Key: "key"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"b": localsystem.SecretRef("config-secret", "key")}
	})
	secret := func(name string) client.Object {
		return p.Secret(name, map[string]string{"key": secretCanary, "accessToken": secretCanary})
	}
	configMap := func(name string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: p.Meta(name), Data: map[string]string{"key": "value"}}
	}
	for _, missing := range []struct {
		object  client.Object
		message string
	}{
		{configMap("env-map"), `configmap "env-map", which envFrom of the workspace needs`},
		{secret("env-secret"), `secret "env-secret", which envFrom of the workspace needs`},
		{secret("token"), `secret "token", which environment variable "PULUMI_ACCESS_TOKEN" needs`},
		{secret("env-ref"), `secret "env-ref", which environment variable "SOME" needs`},
		{configMap("config-map"), `configmap "config-map", which configuration key "a" needs`},
		{secret("config-secret"), `secret "config-secret", which configuration key "b" needs`},
	} {
		stack := p.Await(func(s *pulumiv1.Stack) bool {
			return notReady(pulumiv1.SecretNotFoundReason)(s) && statuscheck.Message(s) == "waiting for "+missing.message+": it does not exist"
		})
		p.Expect(stack.Status.LastUpdate).To(BeNil())
		missing.object.SetLabels(watched)
		p.Create(missing.object)
	}
	created := time.Now()
	p.Await(ready(artifact.Digest))
	found := p.Updates()
	p.Expect(found).To(HaveLen(1))
	p.Expect(found[0].Status.StartTime.Time).To(BeTemporally("<", created.Add(prompt)))
}

func TestSecretsProviderOfAStackFollowsItsSpec(t *testing.T) {
	suite.Long(t, "each change of a secrets provider")
	p := begin(t, "reencrypted")
	server, err := vault.Start(p.Context(), system.ControlPlane)
	p.Succeed(err)
	defer func() { p.Succeed(server.Stop()) }()
	token, err := server.CreateKey(p.Context(), "stack")
	p.Succeed(err)
	program := p.yaml("config:", "  password: {type: string, secret: true}", "outputs:", "  hidden: ${password}")
	artifact := p.put(program)
	p.start(artifact, func(s *pulumiv1.Stack) {
		usesPassword(s)
		for variable, value := range map[string]string{"VAULT_ADDR": server.Address, "VAULT_TOKEN": token} {
			s.Spec.EnvRefs[variable] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
		}
	})
	stack := p.Await(ready(artifact.Digest))
	p.Expect(p.State(p.Name, "dev")).To(ContainSubstring(`"secrets_providers":{"type":"passphrase"`))
	for _, step := range []struct{ provider, state string }{
		{"hashivault://stack", `"secrets_providers":{"type":"cloud","state":{"url":"hashivault://stack"`},
		{"passphrase", `"secrets_providers":{"type":"passphrase"`},
	} {
		p.Change(func(s *pulumiv1.Stack) { s.Spec.SecretsProvider = step.provider })
		stack = p.awaitNext(stack)
		p.Expect(p.State(p.Name, "dev")).To(ContainSubstring(step.state))
		p.Expect(string(p.outputs(stack).Data["hidden"])).To(Equal(`"` + secretCanary + `"`))
	}
	changes := slices.DeleteFunc(p.calls(p.Name), func(call string) bool { return !strings.Contains(call, "change-secrets-provider") })
	p.Expect(changes).To(HaveLen(2))
}

func TestChangedPassphraseIsReportedAndRecoversWhenItIsRestored(t *testing.T) {
	suite.Long(t, "each change of a secrets provider")
	p := begin(t, "repassphrased")
	_, artifact := p.deployed(usesPassword, func(s *pulumiv1.Stack) { s.Spec.RetryMaxBackoffDurationSeconds = 1 })
	set := func(passphrase string) {
		changed := secret()
		changed[localsystem.PassphraseKey] = passphrase
		p.update(p.Secret(localsystem.PassphraseSecret, changed))
	}
	set("another")
	p.Change(func(s *pulumiv1.Stack) { s.Spec.Refresh = true })
	stack := p.Await(notReady(pulumiv1.RetryingAfterFailureReason))
	p.Expect(statuscheck.Message(stack)).To(ContainSubstring("incorrect passphrase"))
	set(passphraseCanary)
	p.Await(ready(artifact.Digest))
}
