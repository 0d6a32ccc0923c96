package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/shard"
)

// stackAnnotations are the annotations of Stacks that have no meaning for the operator.
var stackAnnotations = []string{
	pulumiv1.CancelUpdateAnnotation, pulumiv1.CreateMissingStackAnnotation, pulumiv1.DeployedStackAnnotation, pulumiv1.DriftCheckAnnotation,
	pulumiv1.OrphanAnnotation, pulumiv1.ReleaseRevisionAnnotation,
}

// installation has the commands that remove what config/ installs, except the CRDs that the operator has, too. %s is the namespace of the
// controller.
var installation = []string{
	"kubectl delete deployments,services --namespace %s --selector app.kubernetes.io/component=stack-controller",
	"kubectl delete networkpolicies --namespace %s --ignore-not-found stack-controller stack-controller-egress",
	"kubectl delete roles,rolebindings --namespace %s --ignore-not-found stack-controller-leader-election stack-controller-token-request",
	"kubectl delete serviceaccounts --namespace %s --ignore-not-found stack-controller",
	"kubectl delete clusterroles,clusterrolebindings --ignore-not-found" +
		" stack-controller stack-controller-approver stack-controller-edit stack-controller-view",
	"kubectl delete validatingadmissionpolicies,validatingadmissionpolicybindings --ignore-not-found" +
		" stack-controller-approval-by stack-controller-stack-approval stack-controller-stack-rollout stack-controller-update-owner",
	"kubectl delete customresourcedefinitions --ignore-not-found approvals.auto.pulumi.com stackrollouts.auto.pulumi.com",
}

// sayLeftovers prints what stays although the operator has no use for it, with the commands that remove it. The controller may not delete
// these objects.
func (h *handBack) sayLeftovers(ctx context.Context) error {
	if err := h.sayAnnotations(ctx); err != nil {
		return err
	}
	if err := h.saySecrets(ctx); err != nil {
		return err
	}
	if h.Namespace != "" {
		return nil // the installation still serves the other namespaces
	}
	deployments, err := h.deployments(ctx, h.ControllerNamespace)
	if err != nil {
		return err
	}
	h.sayInstallers(deployments)
	leases := &coordinationv1.LeaseList{}
	if err := h.Client.List(ctx, leases, client.InNamespace(h.ControllerNamespace)); err != nil {
		return fmt.Errorf("list the leases of the controllers: %w", err)
	}
	leases.Items = slices.DeleteFunc(leases.Items, func(lease coordinationv1.Lease) bool { return !shard.IsLease(lease.Name) })
	namespaces := []string{h.ControllerNamespace}
	if h.ControllerNamespace == "" {
		namespaces = namespacesOf(deployments, leases.Items)
	}
	for _, command := range installation {
		if !strings.Contains(command, "%s") {
			fmt.Fprintln(h.Out, command)
			continue
		}
		for _, namespace := range namespaces {
			fmt.Fprintf(h.Out, command+"\n", namespace)
		}
	}
	for i := range leases.Items {
		fmt.Fprintf(h.Out, "kubectl delete leases --namespace %s --ignore-not-found %s\n", leases.Items[i].Namespace, leases.Items[i].Name)
	}
	return nil
}

// namespacesOf returns the namespaces in which controllers run or ran. If nothing says which, it returns a placeholder for the user to replace.
func namespacesOf(deployments []appsv1.Deployment, leases []coordinationv1.Lease) (namespaces []string) {
	for i := range deployments {
		namespaces = append(namespaces, deployments[i].Namespace)
	}
	for i := range leases {
		namespaces = append(namespaces, leases[i].Namespace)
	}
	if len(namespaces) == 0 {
		return []string{"NAMESPACE"}
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// sayInstallers prints how to remove what installed the controller, or that nobody knows.
func (h *handBack) sayInstallers(deployments []appsv1.Deployment) {
	said := map[Installer]bool{}
	for i := range deployments {
		installer := InstallerOf(&deployments[i])
		if installer == nil || said[*installer] {
			continue
		}
		said[*installer] = true
		why, commands := installer.Removal()
		fmt.Fprintf(h.Out, "# What stays of the installation. %s installed it. %s\n", installer, why)
		for _, command := range commands {
			fmt.Fprintln(h.Out, command)
		}
	}
	if len(said) > 0 {
		fmt.Fprintln(h.Out, "# Then remove what is left:")
		return
	}
	fmt.Fprintln(h.Out, "# What stays of the installation. If Helm or Pulumi installed it, remove it there, but not the CRDs. Otherwise:")
}

func (h *handBack) sayAnnotations(ctx context.Context) error {
	found := map[string]bool{}
	err := h.each(ctx, &pulumiv1.StackList{}, func(_ context.Context, object client.Object) error {
		for _, name := range stackAnnotations {
			if _, isSet := object.GetAnnotations()[name]; isSet {
				found[name+"-"] = true
			}
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		return err
	}
	fmt.Fprintln(h.Out, "# What stays on Stacks: annotations. When the operator runs, remove them with")
	fmt.Fprintf(h.Out, "kubectl annotate stacks.pulumi.com --all %s %s\n", h.where(), strings.Join(slices.Sorted(maps.Keys(found)), " "))
	return nil
}

// saySecrets is about the Secrets of Workspaces that stay, and of Stacks. The operator has no Secrets with their label.
func (h *handBack) saySecrets(ctx context.Context) error {
	leaving := map[types.UID]bool{} // in a dry run: otherwise they are gone
	err := h.each(ctx, &autov1alpha1.WorkspaceList{}, func(_ context.Context, object client.Object) error {
		leaving[object.GetUID()] = isOfStack(object)
		return nil
	})
	if err != nil {
		return err
	}
	const label = autov1alpha1.ComponentLabel + "=" + autov1alpha1.ComponentWorkspace
	found := false
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	err = h.each(ctx, secrets, func(_ context.Context, object client.Object) error {
		if owner := metav1.GetControllerOf(object); owner != nil && leaving[owner.UID] {
			return nil
		}
		if !found {
			found = true
			fmt.Fprintln(h.Out, "# What stays of Workspaces and plans: Secrets. When the operator has replaced the pods, remove them with the command below.")
		}
		fmt.Fprintf(h.Out, "# Secret %s/%s\n", object.GetNamespace(), object.GetName())
		return nil
	}, client.MatchingLabels{autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace})
	if err == nil && found {
		fmt.Fprintf(h.Out, "kubectl delete secrets %s --selector %s\n", h.where(), label)
	}
	return err
}

// where returns the flag of kubectl for the namespaces that are handed back.
func (h *handBack) where() string {
	if h.Namespace != "" {
		return "--namespace " + h.Namespace
	}
	return "--all-namespaces"
}
