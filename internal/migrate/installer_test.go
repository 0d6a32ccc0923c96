package migrate

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// installedBy returns the labels and annotations of a Deployment that the kind has installed.
func installedBy(kind string) (labels, annotations map[string]string) {
	switch kind {
	case "Kustomization":
		return map[string]string{"kustomize.toolkit.fluxcd.io/name": "controllers", "kustomize.toolkit.fluxcd.io/namespace": "gitops"}, nil
	case "HelmRelease":
		return map[string]string{"helm.toolkit.fluxcd.io/name": "pulumi", "helm.toolkit.fluxcd.io/namespace": "gitops"},
			map[string]string{"meta.helm.sh/release-name": "gitops-pulumi", "meta.helm.sh/release-namespace": controllerNamespace}
	case "Application":
		return nil, map[string]string{"argocd.argoproj.io/tracking-id": "pulumi:apps/Deployment:flux-system/stack-controller"}
	}
	return nil, nil
}

func TestWhatIsSaidToRemoveFitsWhatInstalledTheController(t *testing.T) {
	for kind, want := range map[string][]string{
		"Kustomization": {"# What stays of the installation. Kustomization gitops/controllers installed it. Flux removes nothing else when",
			"\nkubectl delete kustomizations.kustomize.toolkit.fluxcd.io --namespace gitops controllers\n# Then remove what is left:\n"},
		"HelmRelease": {"HelmRelease gitops/pulumi installed it. Flux removes nothing else when", "Do not resume it",
			"\nkubectl delete helmreleases.helm.toolkit.fluxcd.io --namespace gitops pulumi\nhelm uninstall gitops-pulumi --namespace flux-system\n"},
		"Application": {"Application pulumi installed it.", "\nargocd app delete pulumi --cascade=false\n"},
		"nothing":     {"# What stays of the installation. If Helm or Pulumi installed it, remove it there, but not the CRDs. Otherwise:\n"},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			labels, annotations := installedBy(kind)
			app := map[string]string{"app": "stack-controller"}
			deployment := &appsv1.Deployment{Namespace: controllerNamespace, Name: "stack-controller", Annotations: annotations,
				Labels: map[string]string{"app.kubernetes.io/component": "stack-controller"},
				Spec: appsv1.DeploymentSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: corev1.PodTemplateSpec{
					Labels: app, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "example.com/controller"}}},
				}}}
			for key, value := range labels {
				deployment.Labels[key] = value
			}
			g.Expect(admin.Create(t.Context(), deployment)).To(Succeed())
			var out strings.Builder
			err := (&handBack{Client: admin, Out: &out}).sayLeftovers(t.Context()) // wherever it is installed
			g.Expect(admin.Delete(t.Context(), deployment)).To(Succeed())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out.String()).To(And(ContainSubstring("kubectl delete deployments,services --namespace flux-system "), Not(ContainSubstring("--namespace  "))))
			for _, text := range want {
				g.Expect(out.String()).To(ContainSubstring(text))
			}
			g.Expect(out.String()).To(ContainSubstring("kubectl delete customresourcedefinitions --ignore-not-found approvals.auto.pulumi.com"))
		})
	}
}
