package references

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const namespace = "team"

func secret(name string) Key    { return Key{Kind: Secret, Namespace: namespace, Name: name} }
func configMap(name string) Key { return Key{Kind: ConfigMap, Namespace: namespace, Name: name} }

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func secretRef(name, in string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: name, Key: "k", Namespace: in}}
}

func templateOf(spec autov1alpha1.WorkspaceSpec) *pulumiv1.WorkspaceTemplate {
	return &pulumiv1.WorkspaceTemplate{Spec: &spec}
}

func configOf(stack string, from autov1alpha1.ConfigValueFrom) autov1alpha1.WorkspaceSpec {
	return autov1alpha1.WorkspaceSpec{Stacks: []autov1alpha1.WorkspaceStack{{
		Name: stack, Config: []autov1alpha1.ConfigItem{{Key: "a"}, {Key: "b", ValueFrom: &from}},
	}}}
}

func TestEveryFieldThatTakesAValueFromAnObjectIsAReference(t *testing.T) {
	for _, test := range []struct {
		name string
		spec pulumiv1.StackSpec
		want []Key
	}{
		{name: "nothing"},
		{name: "accessTokenSecret", spec: pulumiv1.StackSpec{AccessTokenSecret: "a"}, want: []Key{secret("a")}},
		{name: "envs and envSecrets", spec: pulumiv1.StackSpec{Envs: []string{"a"}, SecretEnvs: []string{"a", "b"}},
			want: []Key{configMap("a"), secret("a"), secret("b")}},
		{name: "envRefs", spec: pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{
			"A": secretRef("a", ""), "B": secretRef("b", namespace), "C": {Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: "c"}},
		}}, want: []Key{secret("a"), secret("b")}},
		{name: "secretsRef", spec: pulumiv1.StackSpec{SecretRefs: map[string]pulumiv1.ResourceRef{"a": secretRef("a", ""), "b": secretRef("a", "")}},
			want: []Key{secret("a")}},
		{name: "what cannot be used", spec: pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{
			"A": {Type: pulumiv1.ResourceRefSecret}, "B": secretRef("b", "other"), "C": {Type: pulumiv1.ResourceRefEnv}, "D": {},
		}}},
		{name: "configRef", spec: pulumiv1.StackSpec{ConfigRef: map[string]pulumiv1.ConfigMapRef{"a": {Name: "a", Key: "k"}}}, want: []Key{configMap("a")}},
		{name: "env of the template", spec: pulumiv1.StackSpec{WorkspaceTemplate: templateOf(autov1alpha1.WorkspaceSpec{Env: []corev1.EnvVar{
			{Name: "A", Value: "a"},
			{Name: "B", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: named("b")}}},
			{Name: "C", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: named("c")}}},
			{Name: "D", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}}},
		}})}, want: []Key{configMap("c"), secret("b")}},
		{name: "envFrom of the template", spec: pulumiv1.StackSpec{WorkspaceTemplate: templateOf(autov1alpha1.WorkspaceSpec{EnvFrom: []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: named("a")}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named("b")}},
		}})}, want: []Key{configMap("b"), secret("a")}},
		{name: "configuration of the template, from a Secret",
			spec: pulumiv1.StackSpec{WorkspaceTemplate: templateOf(configOf("dev", autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "a"}}))},
			want: []Key{secret("a")}},
		{name: "configuration of the template, from a ConfigMap",
			spec: pulumiv1.StackSpec{WorkspaceTemplate: templateOf(configOf("dev", autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: "a"}}))},
			want: []Key{configMap("a")}},
		{name: "volumes, which the kubelet refreshes, and image pull secrets are none", spec: pulumiv1.StackSpec{WorkspaceTemplate: templateOf(autov1alpha1.WorkspaceSpec{
			PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: &autov1alpha1.EmbeddedPodSpec{
				Volumes:          []corev1.Volume{{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}},
				ImagePullSecrets: []corev1.LocalObjectReference{named("b")}}},
		})}},
		{name: "credentials of git are none", spec: pulumiv1.StackSpec{GitSource: pulumiv1.GitSource{GitAuthSecret: "a",
			GitAuth: &pulumiv1.GitAuthConfig{SSHAuth: &pulumiv1.SSHAuth{SSHPrivateKey: secretRef("b", "")}}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			stack := &pulumiv1.Stack{Namespace: namespace, Name: "app", Spec: test.spec}
			g.Expect(OfStack(stack)).To(Equal(test.want))
		})
	}
}

func TestOnlyTheStackOfTheOperationHasConfiguration(t *testing.T) {
	g := NewWithT(t)
	workspace := &autov1alpha1.Workspace{
		Namespace: namespace,
		Spec:      configOf("dev", autov1alpha1.ConfigValueFrom{SecretKeyRef: &autov1alpha1.KeyReference{Name: "a"}}),
	}
	g.Expect(OfWorkspace(workspace, "dev")).To(Equal([]Key{secret("a")}))
	g.Expect(OfWorkspace(workspace, "prod")).To(BeEmpty())
}

func version(name, resourceVersion string) Version {
	return VersionOf(Secret, &metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1", ResourceVersion: resourceVersion})
}

func TestVersionDiffersWithEverythingThatMakesAnObjectAnother(t *testing.T) {
	g := NewWithT(t)
	base := metav1.ObjectMeta{Namespace: namespace, Name: "a", UID: "1", ResourceVersion: "10", Labels: map[string]string{"a": "b"}}
	seen := map[string]bool{VersionOf(Secret, &base).ID: true}
	for _, change := range []func(*metav1.ObjectMeta){
		func(o *metav1.ObjectMeta) { o.Name = "b" },
		func(o *metav1.ObjectMeta) { o.Namespace = "other" },
		func(o *metav1.ObjectMeta) { o.UID = "2" },
		func(o *metav1.ObjectMeta) { o.ResourceVersion = "11" },
		func(o *metav1.ObjectMeta) { o.UID, o.ResourceVersion = "11", "0" },
	} {
		other := base
		change(&other)
		seen[VersionOf(Secret, &other).ID] = true
	}
	seen[VersionOf(ConfigMap, &base).ID] = true
	g.Expect(seen).To(HaveLen(7))
	// The Watcher keeps no labels; the object that an Update reads has them.
	unlabelled := base
	unlabelled.Labels = nil
	g.Expect(VersionOf(Secret, &unlabelled)).To(Equal(VersionOf(Secret, &base)))
}

func TestNewVersionDiffersFromOneThatIsGone(t *testing.T) {
	g := NewWithT(t)
	a, b, newB := version("a", "10"), version("b", "11"), version("b", "12")
	digest := Digest([]Version{b, a})
	g.Expect(digest).To(Equal(Digest([]Version{a, b})), "the order is no difference")
	g.Expect(NotIn([]Version{a, b}, digest)).To(BeEmpty())
	g.Expect(NotIn([]Version{a}, digest)).To(BeEmpty(), "b is gone")
	g.Expect(NotIn(nil, digest)).To(BeEmpty(), "everything is gone")
	g.Expect(NotIn([]Version{a, newB}, digest)).To(Equal([]Version{newB}))
	g.Expect(NotIn([]Version{a, b}, "")).To(HaveLen(2))

	g.Expect(Union(digest, Digest([]Version{newB}))).To(Equal(Digest([]Version{a, b, newB})))
	g.Expect(Union("", "")).To(BeEmpty())
	g.Expect(Covers(digest, Digest([]Version{a}))).To(BeTrue())
	g.Expect(Covers(digest, Digest([]Version{newB}))).To(BeFalse())
	g.Expect(Covers("", "")).To(BeTrue())
}
