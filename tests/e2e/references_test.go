package e2e_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

var watched = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}

// prompt is how soon something happens that a watch tells of; nothing that is polled is told as soon on average.
const prompt = 10 * time.Second

func credentials(namespace, value string, labels map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "credentials", Labels: labels},
		StringData: map[string]string{"password": secretCanary + value},
	}
}

func settings(namespace, value string, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings", Labels: labels}, Data: map[string]string{"region": value},
	}
}

// configured is a Stack whose program returns a value of a Secret and one of a ConfigMap, both with the labels. It is Ready.
func configured(t *testing.T, g *WithT, name string, labels map[string]string) *pulumiv1.Stack {
	program := yamlProgram(name, "config:", "  password: {type: string, secret: true}", "  region: {type: string}",
		"outputs:", "  password: ${password}", "  region: ${region}")
	artifact := artifacts.put("v1", packed(program))
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"region": {Name: "settings", Key: "region"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"password": {
			Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: "credentials", Key: "password"},
		}}
	})).To(Succeed())
	g.Expect(system.Client.Create(t.Context(), credentials(name, "1", labels))).To(Succeed())
	g.Expect(system.Client.Create(t.Context(), settings(name, "eu", labels))).To(Succeed())
	stack := await(t.Context(), g, name, ready(artifact.Digest))
	// With what appeared while it waited it is up to date.
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))
	return stack
}

// awaitNext waits for the success of an update after the one that the Stack recorded.
func awaitNext(t *testing.T, g *WithT, stack *pulumiv1.Stack) *pulumiv1.Stack {
	previous := stack.Status.LastUpdate.Name
	return await(t.Context(), g, stack.Name, func(s *pulumiv1.Stack) bool { return ready("")(s) && s.Status.LastUpdate.Name != previous })
}

// hiddenPassword is what the last update of the Stack returned as the secret output.
func hiddenPassword(t *testing.T, g *WithT, stack *pulumiv1.Stack) string {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: stack.Namespace, Name: stack.Status.LastUpdate.Name + "-stack-outputs"}
	g.Expect(system.Client.Get(t.Context(), key, secret)).To(Succeed())
	return string(secret.Data["password"])
}

// The two tests that follow run alone, before the parallel ones: they end the controller.

func TestRestartRunsNoUpdateForSecretsThatDidNotChange(t *testing.T) {
	g := NewWithT(t)
	const name = "restarted-references"
	stack := configured(t, g, name, watched)
	stopController(t, g)
	g.Expect(system.StartController(t.Context())).To(Succeed())
	configured(t, g, name+"-later", watched)
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(1))

	// What changes while there is no controller is seen by the next one.
	g.Expect(system.KillController()).To(Succeed())
	g.Expect(system.Client.Update(t.Context(), credentials(name, "2", watched))).To(Succeed())
	g.Expect(system.StartController(t.Context())).To(Succeed())
	stack = awaitNext(t, g, stack)
	g.Expect(hiddenPassword(t, g, stack)).To(Equal(`"` + secretCanary + `2"`))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2))
}

func TestSelectorChoosesWhichSecretsAreWatched(t *testing.T) {
	g := NewWithT(t)
	restart := func(flags ...string) {
		stopController(t, g)
		g.Expect(system.StartController(t.Context(), flags...)).To(Succeed())
	}
	const all, helm, none = "selected", "selected-helm", "selected-none"
	restart("--watch-configs-label-selector=owner!=helm")
	stack := configured(t, g, all, nil)
	configured(t, g, helm, map[string]string{"owner": "helm"})
	g.Expect(system.Client.Update(t.Context(), credentials(helm, "2", map[string]string{"owner": "helm"}))).To(Succeed())
	g.Expect(system.Client.Update(t.Context(), credentials(all, "2", nil))).To(Succeed())
	stack = awaitNext(t, g, stack)
	g.Expect(hiddenPassword(t, g, stack)).To(Equal(`"` + secretCanary + `2"`))
	g.Expect(updates(t.Context(), g, helm)).To(HaveLen(1))

	restart("--watch-configs-label-selector=none")
	g.Expect(system.Client.Update(t.Context(), credentials(all, "3", nil))).To(Succeed())
	configured(t, g, none, watched)
	g.Expect(updates(t.Context(), g, all)).To(HaveLen(2))

	// With the default again, what is not labelled is not watched.
	restart()
	configured(t, g, none+"-later", nil)
	g.Expect(updates(t.Context(), g, all)).To(HaveLen(2))
	g.Expect(updates(t.Context(), g, none)).To(HaveLen(1))
}

func TestChangeOfALabelledSecretOrConfigMapIsDeployed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "references"
	stack := configured(t, g, name, watched)
	digest := stack.Status.LastUpdate.ReferencesDigest

	// Neither a Secret without the label nor a write that changes nothing causes an update; both come before one that does.
	plain := passphrase(name)
	plain.StringData["new"] = "key"
	g.Expect(system.Client.Update(t.Context(), plain)).To(Succeed())
	g.Expect(system.Client.Update(t.Context(), credentials(name, "1", watched))).To(Succeed())
	changed := time.Now()
	g.Expect(system.Client.Update(t.Context(), credentials(name, "2", watched))).To(Succeed())
	stack = awaitNext(t, g, stack)
	found := updates(t.Context(), g, name)
	g.Expect(found).To(HaveLen(2))
	g.Expect(hiddenPassword(t, g, stack)).To(Equal(`"` + secretCanary + `2"`))
	g.Expect(stack.Status.LastUpdate.ReferencesDigest).NotTo(Or(BeEmpty(), Equal(digest)))
	for i := range found {
		if found[i].Name == stack.Status.LastUpdate.Name {
			g.Expect(found[i].Spec.Message).To(HaveValue(Equal(`Referenced Secret or ConfigMap changed: Secret "credentials"`)))
			g.Expect(found[i].CreationTimestamp.Time).To(BeTemporally("<", changed.Add(prompt)))
		}
	}

	g.Expect(system.Client.Update(t.Context(), settings(name, "us", watched))).To(Succeed())
	stack = awaitNext(t, g, stack)
	g.Expect(string(stack.Status.Outputs["region"].Raw)).To(Equal(`"us"`))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(3))
}

func TestSecretThatIsGoneMattersToTheNextUpdate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "reference-gone"
	stack := configured(t, g, name, watched)
	g.Expect(system.Client.Delete(t.Context(), credentials(name, "1", nil))).To(Succeed())
	// Its deletion is no reason for an update, so the next one is for the ConfigMap.
	g.Expect(system.Client.Update(t.Context(), settings(name, "us", watched))).To(Succeed())
	waiting := await(t.Context(), g, name, notReady(pulumiv1.SecretNotFoundReason))
	g.Expect(readyMessage(waiting)).To(ContainSubstring(`secret "credentials", which configuration key "password" needs: it does not exist`))
	found := updates(t.Context(), g, name)
	g.Expect(found).To(HaveLen(2))
	for i := range found {
		if found[i].Name == waiting.Status.CurrentUpdate.Name {
			g.Expect(found[i].Spec.Message).To(HaveValue(Equal(`Referenced Secret or ConfigMap changed: ConfigMap "settings"`)))
		}
	}

	back := credentials(name, "2", watched)
	g.Expect(system.Client.Create(t.Context(), back)).To(Succeed())
	stack = awaitNext(t, g, stack)
	g.Expect(hiddenPassword(t, g, stack)).To(Equal(`"` + secretCanary + `2"`))
	g.Expect(updates(t.Context(), g, name)).To(HaveLen(2))
}

func TestEveryMissingReferenceIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const name = "references-missing"
	artifact := artifacts.put("v1", packed(yamlProgram(name, "config:", "  a: {type: string}", "  b: {type: string}", "outputs:", "  x: 1")))
	from := func(secret string) pulumiv1.ResourceRef {
		return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: secret, Key: "key"}}
	}
	g.Expect(start(t.Context(), name, artifact, func(s *pulumiv1.Stack) {
		s.Spec.AccessTokenSecret = "token"
		s.Spec.Envs, s.Spec.SecretEnvs = []string{"env-map"}, []string{"env-secret"}
		s.Spec.EnvRefs["SOME"] = from("env-ref")
		s.Spec.ConfigRef = map[string]pulumiv1.ConfigMapRef{"a": {Name: "config-map", Key: "key"}}
		s.Spec.SecretRefs = map[string]pulumiv1.ResourceRef{"b": from("config-secret")}
	})).To(Succeed())
	secret := func(name string) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": secretCanary, "accessToken": secretCanary}}
	}
	configMap := func(name string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": "value"}}
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
		stack := await(t.Context(), g, name, func(s *pulumiv1.Stack) bool {
			return notReady(pulumiv1.SecretNotFoundReason)(s) && readyMessage(s) == "waiting for "+missing.message+": it does not exist"
		})
		g.Expect(stack.Status.LastUpdate).To(BeNil())
		missing.object.SetNamespace(name)
		missing.object.SetLabels(watched)
		g.Expect(system.Client.Create(t.Context(), missing.object)).To(Succeed())
	}
	created := time.Now()
	await(t.Context(), g, name, ready(artifact.Digest))
	found := updates(t.Context(), g, name)
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].Status.StartTime.Time).To(BeTemporally("<", created.Add(prompt)))
}
