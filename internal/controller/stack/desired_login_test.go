package stack

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// loggingIn is a Stack that logs in to Pulumi Cloud by OIDC.
func loggingIn(change func(*pulumiv1.StackSpec)) *pulumiv1.Stack {
	spec := pulumiv1.StackSpec{PulumiCloud: &autov1alpha1.PulumiCloud{OIDC: autov1alpha1.PulumiCloudOIDC{Organization: "acme", Team: "network"}}}
	change(&spec)
	return stackOf(spec)
}

func TestWorkspaceLogsInAsItsStackSaysAndNotAsATemplateSays(t *testing.T) {
	g := NewWithT(t)
	stack := loggingIn(func(spec *pulumiv1.StackSpec) {
		spec.Backend = "https://cloud.example.com"
		spec.WorkspaceTemplate = &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
			PulumiCloud: &autov1alpha1.PulumiCloud{OIDC: autov1alpha1.PulumiCloudOIDC{Organization: "other", User: "alice"}},
		}}
	})
	d, err := (&Reconciler{Pods: true}).desire(stack)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.workspace.Spec.PulumiCloud).To(Equal(stack.Spec.PulumiCloud))

	stack.Spec.PulumiCloud = nil
	d, err = (&Reconciler{Pods: true}).desire(stack)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.workspace.Spec.PulumiCloud).To(BeNil())
}

func TestLoginThatCannotWorkIsRefusedWithItsPlace(t *testing.T) {
	container := func(variable corev1.EnvVar) *pulumiv1.WorkspaceTemplate {
		pod := &autov1alpha1.EmbeddedPodSpec{Containers: []corev1.Container{{Name: autov1alpha1.PulumiContainerName, Env: []corev1.EnvVar{variable}}}}
		return &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{Spec: pod}}}
	}
	const (
		token   = "spec.pulumiCloud.oidc and the variable PULUMI_ACCESS_TOKEN exclude each other"
		backend = "spec.pulumiCloud.oidc is a login to Pulumi Cloud, and the backend is another one"
	)
	for name, tt := range map[string]struct {
		change func(*pulumiv1.StackSpec)
		says   string
	}{
		"a Secret with an access token": {func(spec *pulumiv1.StackSpec) { spec.AccessTokenSecret = "token" }, token},
		"an access token in a variable": {func(spec *pulumiv1.StackSpec) {
			spec.EnvRefs = map[string]pulumiv1.ResourceRef{accessTokenVariable: secretRef("s", "k", "")}
		}, token},
		"an access token in a file": {func(spec *pulumiv1.StackSpec) {
			spec.EnvRefs = map[string]pulumiv1.ResourceRef{accessTokenVariable: {Type: pulumiv1.ResourceRefFile, File: &pulumiv1.FileSelector{Path: "/var/run/secrets/a"}}}
		}, token},
		"an access token of the pod": {func(spec *pulumiv1.StackSpec) {
			spec.WorkspaceTemplate = container(corev1.EnvVar{Name: accessTokenVariable, Value: "pul-canary"})
		}, token},
		"a bucket": {func(spec *pulumiv1.StackSpec) { spec.Backend = "s3://state" }, backend},
		"a directory of the pod": {func(spec *pulumiv1.StackSpec) {
			spec.WorkspaceTemplate = container(corev1.EnvVar{Name: backendVariable, Value: "file:///state"})
		}, backend},
		"a team and a user": {func(spec *pulumiv1.StackSpec) { spec.PulumiCloud.OIDC.User = "alice" },
			"spec.pulumiCloud.oidc: set either team or user, not both"},
		"a flag for an organization": {func(spec *pulumiv1.StackSpec) { spec.PulumiCloud.OIDC.Organization = "--local" },
			"spec.pulumiCloud.oidc: organization must have"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := (&Reconciler{Pods: true}).desire(loggingIn(tt.change))
			g.Expect(err).To(MatchError(ContainSubstring(tt.says)))
			g.Expect(err.Error()).NotTo(ContainSubstring("canary"))
		})
	}
	t.Run("no pod", func(t *testing.T) {
		_, err := (&Reconciler{}).desire(loggingIn(func(*pulumiv1.StackSpec) {}))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("spec.pulumiCloud.oidc needs the token of a ServiceAccount, which only a pod has")))
	})
	t.Run("an empty variable, and another backend that has variables in it", func(t *testing.T) {
		_, err := (&Reconciler{Pods: true}).desire(loggingIn(func(spec *pulumiv1.StackSpec) {
			spec.EnvRefs = map[string]pulumiv1.ResourceRef{accessTokenVariable: literal(""), backendVariable: literal("$(CLOUD)")}
		}))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	})
}
