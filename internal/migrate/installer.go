package migrate

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Installer is the object that installed a Deployment of a controller, and that would restore the Deployment.
type Installer struct {
	// Kind is Kustomization, HelmRelease or Application.
	Kind string
	// Namespace is empty for an Application.
	Namespace, Name string
	// release is the release of Helm as "NAME --namespace NAMESPACE", of a HelmRelease.
	release string
}

// InstallerOf returns what installed the Deployment, as its labels and annotations say; nil if they name none.
func InstallerOf(deployment metav1.Object) *Installer {
	labels, annotations := deployment.GetLabels(), deployment.GetAnnotations()
	if name := labels["kustomize.toolkit.fluxcd.io/name"]; name != "" {
		return &Installer{Kind: "Kustomization", Namespace: labels["kustomize.toolkit.fluxcd.io/namespace"], Name: name}
	}
	if name := labels["helm.toolkit.fluxcd.io/name"]; name != "" {
		release := cmp.Or(annotations["meta.helm.sh/release-name"], name) + " --namespace " +
			cmp.Or(annotations["meta.helm.sh/release-namespace"], deployment.GetNamespace())
		return &Installer{Kind: "HelmRelease", Namespace: labels["helm.toolkit.fluxcd.io/namespace"], Name: name, release: release}
	}
	// An Application in another namespace than Argo CD's has NAMESPACE_NAME there, and NAMESPACE/NAME on the command line.
	if tracked := annotations["argocd.argoproj.io/tracking-id"]; tracked != "" {
		application, _, _ := strings.Cut(tracked, ":")
		return &Installer{Kind: "Application", Name: strings.Replace(application, "_", "/", 1)}
	}
	// Argo CD can track by one of these labels. Others set the first one, too.
	name := labels["argocd.argoproj.io/instance"]
	if slices.ContainsFunc(deployment.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return strings.HasPrefix(entry.Manager, "argocd") }) {
		name = cmp.Or(name, labels["app.kubernetes.io/instance"])
	}
	if name != "" {
		return &Installer{Kind: "Application", Name: name}
	}
	return nil
}

// Group returns the API group of the kind, if it has a field spec.suspend; otherwise it is empty.
func (i *Installer) Group() string {
	return map[string]string{"Kustomization": "kustomize.toolkit.fluxcd.io", "HelmRelease": "helm.toolkit.fluxcd.io"}[i.Kind]
}

// String returns the kind with the namespace and the name.
func (i *Installer) String() string {
	if i.Namespace == "" {
		return i.Kind + " " + i.Name
	}
	return i.Kind + " " + i.Namespace + "/" + i.Name
}

// Removal returns why the installer is deleted while it is suspended, and the commands that delete it, and what it would have deleted. To
// resume it would start the controller again, and would restore its definitions. What Flux removes when a suspended object is deleted is
// nothing (finalizerShouldDeleteResources of kustomize-controller, reconcileDelete of helm-controller).
func (i *Installer) Removal() (why string, commands []string) {
	switch i.Kind {
	case "Kustomization":
		return "Flux removes nothing else when it is deleted while it is suspended. Do not resume it: that starts the controller again, and replaces the CRDs. " +
				"If it installs other things too, do not delete it: remove the controller from its source, and resume it then. " +
				"Flux removes each of its CRDs too, and all objects, unless the CRD has the annotation kustomize.toolkit.fluxcd.io/prune: disabled.",
			[]string{"kubectl delete kustomizations.kustomize.toolkit.fluxcd.io --namespace " + i.Namespace + " " + i.Name}
	case "HelmRelease":
		return "Flux removes nothing else when it is deleted while it is suspended; Helm removes the rest. Do not resume it: that starts the controller again.",
			[]string{
				"kubectl delete helmreleases.helm.toolkit.fluxcd.io --namespace " + i.Namespace + " " + i.Name,
				"helm uninstall " + i.release,
			}
	default:
		return "It is deleted without its objects, because the CRDs may be among them.", []string{"argocd app delete " + i.Name + " --cascade=false"}
	}
}
