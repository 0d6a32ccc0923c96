package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

var watched = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}

// prompt is how soon something happens that a watch tells of; nothing that is polled is told as soon on average.
const prompt = 10 * time.Second

func (p *play) credentials(value string, labels map[string]string) *corev1.Secret {
	secret := p.Secret("credentials", map[string]string{"password": secretCanary + value})
	secret.Labels = labels
	return secret
}

func (p *play) settings(value string, labels map[string]string) *corev1.ConfigMap {
	settings := &corev1.ConfigMap{ObjectMeta: p.Meta("settings"), Data: map[string]string{"region": value}}
	settings.Labels = labels
	return settings
}

// update writes the object.
func (p *play) update(object client.Object) {
	p.Helper()
	p.Expect(system.Client.Update(p.Context(), object)).To(Succeed())
}

// configured is a Stack whose program returns a value of a Secret and one of a ConfigMap, both with the labels. It is Ready.
func (p *play) configured(labels map[string]string) *pulumiv1.Stack {
	p.Helper()
	artifact := p.put(p.yaml("config:", "  password: {type: string, secret: true}", "  region: {type: string}",
		"outputs:", "  password: ${password}", "  region: ${region}"))
	p.start(artifact, func(s *pulumiv1.Stack) {
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"region": {Name: "settings", Key: "region"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": stage.SecretRef("credentials", "password")}
	})
	p.Create(p.credentials("1", labels), p.settings("eu", labels))
	stack := p.Await(ready(artifact.Digest))
	// With what appeared while it waited it is up to date.
	p.Expect(p.Updates()).To(HaveLen(1))
	return stack
}

// awaitPassword waits for the success of an update after the one that the Stack recorded, with this value of the Secret.
func (p *play) awaitPassword(stack *pulumiv1.Stack, value string) *pulumiv1.Stack {
	p.Helper()
	stack = p.awaitNext(stack)
	p.Expect(string(p.outputs(stack).Data["password"])).To(Equal(`"` + secretCanary + value + `"`))
	return stack
}

// expectMessage expects that the Update of the name says why it runs.
func (p *play) expectMessage(name, message string) *autov1alpha1.Update {
	p.Helper()
	update := &autov1alpha1.Update{}
	p.Get(name, update)
	p.Expect(update.Spec.Message).To(HaveValue(Equal(message)))
	return update
}

// The two tests that follow run alone, before the parallel ones: they end the controller.

func TestRestartRunsNoUpdateForSecretsThatDidNotChange(t *testing.T) {
	suite.Long(t, "further changes of references")
	p := alone(t, "restarted-references")
	stack := p.configured(watched)
	p.restartController()
	p.beside(p.Name + "-later").configured(watched)
	p.Expect(p.Updates()).To(HaveLen(1))

	// What changes while there is no controller is seen by the next one.
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

	// With the default again, what is not labelled is not watched.
	all.restartController()
	all.beside("selected-later").configured(nil)
	all.Expect(all.Updates()).To(HaveLen(2))
	none.Expect(none.Updates()).To(HaveLen(1))
}

func TestChangeOfALabelledSecretOrConfigMapIsDeployed(t *testing.T) {
	p := begin(t, "references")
	stack := p.configured(watched)
	digest := stack.Status.LastUpdate.ReferencesDigest

	// Neither a Secret without the label nor a write that changes nothing causes an update; both come before one that does.
	plain := secret()
	plain["new"] = "key"
	p.update(p.Secret(stage.PassphraseSecret, plain))
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
	p.Expect(scene.Output(stack, "region")).To(Equal(`"us"`))
	p.Expect(p.Updates()).To(HaveLen(3))
}

func TestSecretThatIsGoneMattersToTheNextUpdate(t *testing.T) {
	suite.Long(t, "further changes of references")
	p := begin(t, "reference-gone")
	stack := p.configured(watched)
	p.Expect(system.Client.Delete(p.Context(), p.credentials("1", nil))).To(Succeed())
	// Its deletion is no reason for an update, so the next one is for the ConfigMap.
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
		s.Spec.EnvRefs["SOME"] = stage.SecretRef("env-ref", "key")
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"a": {Name: "config-map", Key: "key"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"b": stage.SecretRef("config-secret", "key")}
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
