package stack

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func stackOf(spec pulumiv1.StackSpec) *pulumiv1.Stack {
	if spec.Stack == "" {
		spec.Stack = "dev"
	}
	return &pulumiv1.Stack{Name: "app", Namespace: "team", Labels: map[string]string{"shard": "1"}, Spec: spec}
}

func secretRef(name, key, namespace string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Name: name, Key: key, Namespace: namespace}}
}

func literal(value string) pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: value}}
}

func TestWorkspaceNamesTheDefaultServiceAccountUnlessItsStackNamesOne(t *testing.T) {
	g := NewWithT(t)
	inTemplate := &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{ServiceAccountName: "template"}}
	for want, spec := range map[string]pulumiv1.StackSpec{
		"runner": {}, "own": {ServiceAccountName: "own"}, "default": {ServiceAccountName: "default"}, "template": {WorkspaceTemplate: inTemplate},
	} {
		d, err := (&Reconciler{DefaultServiceAccount: "runner"}).desire(stackOf(spec))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.workspace.Spec.ServiceAccountName).To(Equal(want))
	}
	d, err := (&Reconciler{}).desire(stackOf(pulumiv1.StackSpec{}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.workspace.Spec.ServiceAccountName).To(BeEmpty())
}

func TestSpecBecomesAWorkspace(t *testing.T) {
	g := NewWithT(t)
	d, err := desire(stackOf(pulumiv1.StackSpec{
		Backend:           "file:///state",
		AccessTokenSecret: "token",
		UseLocalStackOnly: true,
		SecretsProvider:   "passphrase",
		EnvRefs:           map[string]pulumiv1.ResourceRef{"B": literal("2"), "A": secretRef("s", "k", "team"), "PULUMI_BACKEND_URL": literal("s3://other")},
		Envs:              []string{"map"},
		SecretEnvs:        []string{"secret"},
		Config:            map[string]apiextensionsv1.JSON{"n": {Raw: []byte("12345678901234567890")}},
		ConfigRef:         map[string]pulumiv1.ConfigMapRef{"m": {Name: "map", Key: "key", JSON: true}},
		SecretRefs:        map[string]pulumiv1.ResourceRef{"p": secretRef("s", "k", "")},
		WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PulumiLogLevel: 3}},
	}))
	g.Expect(err).NotTo(HaveOccurred())
	spec := d.workspace.Spec
	names := []string{}
	for _, variable := range spec.Env {
		names = append(names, variable.Name)
	}
	g.Expect(names).To(Equal([]string{"PULUMI_ACCESS_TOKEN", "A", "B", "PULUMI_BACKEND_URL"}))
	g.Expect(spec.Env[3].Value).To(Equal("s3://other"), "what envRefs says wins over backend")
	g.Expect(spec.EnvFrom).To(HaveLen(2))
	g.Expect(spec.PulumiLogLevel).To(BeEquivalentTo(3))
	g.Expect(d.workspace.Labels).To(HaveKeyWithValue("shard", "1"))
	g.Expect(spec.Stacks).To(HaveLen(1))
	g.Expect(spec.Stacks[0].Create).To(HaveValue(BeFalse()))
	g.Expect(spec.Stacks[0].SecretsProvider).To(HaveValue(Equal("passphrase")))
	g.Expect(spec.Stacks[0].Config).To(HaveLen(3))
	g.Expect(string(spec.Stacks[0].Config[0].Value.Raw)).To(Equal("12345678901234567890"))
	g.Expect(spec.Stacks[0].Config[2].Secret).To(HaveValue(BeTrue()))
}

func TestUnusableSpecIsRefusedWithItsPlace(t *testing.T) {
	for _, test := range []struct {
		name string
		spec pulumiv1.StackSpec
		says string
	}{
		{"environment of the controller", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": {Type: pulumiv1.ResourceRefEnv, Env: &pulumiv1.EnvSelector{Name: "HOME"}}}}, "spec.envRefs[X]: type Env is no longer supported"},
		{"file without a path", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": {Type: pulumiv1.ResourceRefFile}}}, "spec.envRefs[X]: type File needs the field file"},
		{"file elsewhere in the pod", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": {Type: pulumiv1.ResourceRefFile, File: &pulumiv1.FileSelector{Path: "/etc/passwd"}}}},
			"spec.envRefs[X]: the path of a file must begin with /var/run/secrets/"},
		{"file as configuration", pulumiv1.StackSpec{SecretRefs: map[string]pulumiv1.ResourceRef{"x": {Type: pulumiv1.ResourceRefFile, File: &pulumiv1.FileSelector{Path: "/var/run/secrets/a"}}}},
			"spec.secretsRef[x]: type File is for environment variables"},
		{"file of the controller", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": {Type: pulumiv1.ResourceRefFS, FileSystem: &pulumiv1.FSSelector{Path: "/etc/passwd"}}}}, "spec.envRefs[X]: type FS is no longer supported"},
		{"another namespace", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": secretRef("s", "k", "other")}}, "another namespace"},
		{"nothing named", pulumiv1.StackSpec{EnvRefs: map[string]pulumiv1.ResourceRef{"X": {Type: pulumiv1.ResourceRefSecret}}}, "needs the field secret"},
		{"unknown type", pulumiv1.StackSpec{SecretRefs: map[string]pulumiv1.ResourceRef{"x": {Type: "Vault"}}}, `spec.secretsRef[x]: unknown type "Vault"`},
		{"a key twice", pulumiv1.StackSpec{Config: map[string]apiextensionsv1.JSON{"a": {Raw: []byte("1")}}, Secrets: map[string]string{"a": "2"}}, `"a" is set in spec.config and in spec.secrets`},
		{"an operation that is not the template's to choose", pulumiv1.StackSpec{UpdateTemplate: &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Type: autov1alpha1.UpdateTypeDestroy}}},
			"spec.updateTemplate.spec.type: "},
		{"a window in an unknown time zone", pulumiv1.StackSpec{Windows: []autov1alpha1.Window{
			{Policy: autov1alpha1.WindowAllow, Cron: "0 8 * * *", Window: &metav1.Duration{Duration: time.Hour}},
			{Policy: autov1alpha1.WindowDeny, Cron: "0 8 * * *", Window: &metav1.Duration{Duration: time.Hour}, TimeZone: "Europe/Nowhere"},
		}}, `spec.windows: window 2: timeZone "Europe/Nowhere" is not known`},
		{"a window that is not one", pulumiv1.StackSpec{Windows: []autov1alpha1.Window{{Policy: autov1alpha1.WindowAllow, Cron: "at noon", Window: &metav1.Duration{Duration: time.Hour}}}},
			`spec.windows: window 1: cron "at noon": `},
		{"a path that leaves the source", pulumiv1.StackSpec{SourcePaths: []string{"ok", "../x"}}, `spec.sourcePaths: "../x" has ".." in it`},
		{"a path that leaves the source, of a Program", pulumiv1.StackSpec{ProgramRef: &pulumiv1.ProgramReference{Name: "x"}, SourcePaths: []string{"/x"}}, "is absolute"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := desire(stackOf(test.spec))
			g.Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestWorkspaceIsAppliedOnlyWhenItDiffers(t *testing.T) {
	g := NewWithT(t)
	workspace := func(image, hash string, env ...string) *autov1alpha1.Workspace {
		w := &autov1alpha1.Workspace{Annotations: map[string]string{appliedHashAnnotation: hash}, Spec: autov1alpha1.WorkspaceSpec{Image: image}}
		for _, name := range env {
			w.Spec.Env = append(w.Spec.Env, corev1.EnvVar{Name: name})
		}
		return w
	}
	wanted := workspace("a", "1", "X")
	g.Expect(isApplied(nil, wanted)).To(BeFalse())
	g.Expect(isApplied(workspace("a", "1", "X"), wanted)).To(BeTrue())
	g.Expect(isApplied(workspace("a", "2", "X"), wanted)).To(BeFalse(), "something was taken away since")
	g.Expect(isApplied(workspace("b", "1", "X"), wanted)).To(BeFalse(), "somebody edited it")
	defaulted := workspace("a", "1", "X")
	defaulted.Spec.ServiceAccountName = "default"
	g.Expect(isApplied(defaulted, wanted)).To(BeTrue(), "the API server's defaults are no difference")
	owned := workspace("a", "1", "X")
	owned.OwnerReferences = []metav1.OwnerReference{{UID: "stack", Controller: new(true)}}
	g.Expect(isApplied(workspace("a", "1", "X"), owned)).To(BeFalse(), "its owner was removed")
}
