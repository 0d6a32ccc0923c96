package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/config"
	"github.com/stack-controller/stack-controller/internal/shard"
)

// controllerLabel and componentLabel are labels of the Deployment of stack-controller, see isOurs.
const (
	controllerLabel = "app.kubernetes.io/name"
	componentLabel  = "app.kubernetes.io/component"
)

// right is a permission that a user needs, and the commands that need it.
type right struct {
	verb, group, resource, subresource string
	needs                              string
}

// rights returns all permissions that the commands use.
func rights() []right {
	stacks, auto := pulumiv1.GroupVersion.Group, autov1alpha1.GroupVersion.Group
	const source = "source.toolkit.fluxcd.io"
	return []right{
		{verb: "list", group: stacks, resource: "stacks", needs: "get, tree and completion"},
		{verb: "get", group: stacks, resource: "stacks", needs: "all other commands"},
		{verb: "watch", group: stacks, resource: "stacks", needs: "get --watch"},
		{verb: "patch", group: stacks, resource: "stacks", needs: "reconcile, suspend, resume and cancel"},
		{verb: "list", group: stacks, resource: "programs", needs: "get"},
		{verb: "list", group: auto, resource: "workspaces", needs: "get"},
		{verb: "get", group: auto, resource: "workspaces", needs: "tree, explain, diff, logs, unlock and state"},
		{verb: "list", group: auto, resource: "updates", needs: "get, tree, unlock and state import"},
		{verb: "get", group: auto, resource: "updates", needs: "progress, explain and logs"},
		{verb: "create", group: auto, resource: "updates", needs: "diff"},
		{verb: "delete", group: auto, resource: "updates", needs: "diff"},
		{verb: "create", group: auto, resource: "approvals", needs: "plan approve, plan reject, rollout promote, rollout reject and rollout approve"},
		{verb: "get", group: auto, resource: "approvals", needs: "the same"},
		{verb: "list", group: auto, resource: "stackrollouts", needs: "get"},
		{verb: "get", group: auto, resource: "stackrollouts", needs: "rollout and explain"},
		{verb: "patch", group: auto, resource: "stackrollouts", needs: "rollout suspend and rollout resume"},
		{verb: "get", resource: "secrets", needs: "plan show --diff"},
		{verb: "get", group: source, resource: "gitrepositories", needs: "reconcile --with-source, tree and explain"},
		{verb: "patch", group: source, resource: "gitrepositories", needs: "reconcile --with-source"},
		{verb: "list", resource: "events", needs: "events"},
		{verb: "get", resource: "pods", subresource: "log", needs: "logs and diff"},
		{verb: "get", resource: "pods", subresource: "exec", needs: "unlock and state"},
		{verb: "create", resource: "pods", subresource: "exec", needs: "unlock and state"},
	}
}

func (r right) String() string {
	resource := r.resource
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	return r.verb + " " + schema.GroupResource{Group: r.group, Resource: resource}.String()
}

func (s *session) check() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check the installation, and what you are allowed to do",
		Long: "Check whether the installation is whole, and which of the rights that the commands use you do not have in the\n" +
			"namespace. A right that is missing is no failure.",
		Args: arguments(cobra.NoArgs),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
			s.log.Step("checking the installation")
			missing, err := s.checkInstallation(ctx, c)
			if err != nil {
				return err
			}
			s.log.Step("checking what you may do in namespace %s", c.namespace)
			if err := s.checkRights(ctx, c); err != nil {
				return err
			}
			if len(missing) > 0 {
				return failed(exitNotReady, "the installation is not whole: %s", strings.Join(missing, "; "))
			}
			return nil
		}),
	}
}

// checkInstallation returns what the cluster does not have of what Stacks need.
func (s *session) checkInstallation(ctx context.Context, c *cluster) (missing []string, err error) {
	server, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("prepare calls of the API server: %w", err)
	}
	version, err := server.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its version: %w", err)
	}
	s.log.Success("Kubernetes %s", version.GitVersion)
	for _, kind := range []schema.GroupVersionKind{
		pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind), pulumiv1.GroupVersion.WithKind("Program"),
		autov1alpha1.GroupVersion.WithKind(autov1alpha1.WorkspaceKind), autov1alpha1.GroupVersion.WithKind(autov1alpha1.UpdateKind),
		autov1alpha1.GroupVersion.WithKind(autov1alpha1.ApprovalKind), autov1alpha1.GroupVersion.WithKind(autov1alpha1.StackRolloutKind),
	} {
		if !s.checkKind(c, kind, true) {
			missing = append(missing, "the API server does not serve "+kind.Kind)
		}
	}
	missing = append(missing, s.checkDefinitions(ctx, c)...)
	s.checkSources(c)
	return append(missing, s.checkController(ctx, c)...), nil
}

// checkDefinitions returns which custom resource definitions are those of an earlier version, or of the operator. Without their fields the API
// server drops what users and the controller write into them. If the controller is of another version than this program, that may be right.
func (s *session) checkDefinitions(ctx context.Context, c *cluster) (missing []string) {
	wanted, err := config.Objects("", "")
	if err != nil {
		s.log.Warning("the definitions cannot be checked: %s", err)
		return nil
	}
	for _, definition := range wanted {
		if definition.GetKind() != "CustomResourceDefinition" {
			continue
		}
		found := &unstructured.Unstructured{}
		found.SetGroupVersionKind(definition.GroupVersionKind())
		switch err := c.read(ctx, client.ObjectKeyFromObject(definition), found); {
		case apierrors.IsNotFound(err):
			continue // its kind is not served
		case err != nil:
			s.log.Warning("the definitions cannot be compared with those of this version: %s", err)
			return missing
		}
		if isBeingDeleted(found) {
			s.log.Failure("%s is being deleted, with all objects of its kind", definition.GetName())
			missing = append(missing, definition.GetName()+" is being deleted")
			continue
		}
		lacks := missingFields(schemas(found), schemas(definition), "")
		switch {
		case len(lacks) == 0:
		case !s.runsThisVersion(ctx, c):
			s.log.Warning("%s lacks %s, which version %s of the controller has", definition.GetName(), shorten(lacks), s.Version)
		default:
			s.log.Failure("%s is older than the controller, or the operator's: it lacks %s. Apply crds.yaml of the release", definition.GetName(), shorten(lacks))
			missing = append(missing, definition.GetName()+" lacks fields")
		}
	}
	return missing
}

// runsThisVersion reports whether a controller is known to have the version of this program, by the tag of its image. One that is named by its digest
// alone, or that the user may not see, may have another one.
func (s *session) runsThisVersion(ctx context.Context, c *cluster) bool {
	found := &appsv1.DeploymentList{}
	if err := c.list(ctx, found); err != nil {
		return false
	}
	return slices.ContainsFunc(found.Items, func(deployment appsv1.Deployment) bool {
		image, _, _ := strings.Cut(imageOf(&deployment), "@")
		tag, tagged := strings.CutPrefix(image, repositoryOf(image)+":")
		return isOurs(&deployment) && tagged && tag == s.Version
	})
}

// schemas returns the schema of each version of a definition, as the properties of one.
func schemas(definition *unstructured.Unstructured) map[string]any {
	of := map[string]any{}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		name, _, _ := unstructured.NestedString(asMap(version), "name")
		of[name], _, _ = unstructured.NestedMap(asMap(version), "schema", "openAPIV3Schema")
	}
	return map[string]any{"properties": of}
}

// missingFields returns the fields of the wanted schema that the one that was found does not have, as ".v1.spec.stack". A part without a schema has all.
func missingFields(found, wanted map[string]any, path string) (missing []string) {
	if preserves, _ := found["x-kubernetes-preserve-unknown-fields"].(bool); preserves {
		return nil
	}
	has, wants := asMap(found["properties"]), asMap(wanted["properties"])
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if _, known := has[name]; !known {
			missing = append(missing, path+"."+name)
			continue
		}
		missing = append(missing, missingFields(asMap(has[name]), asMap(wants[name]), path+"."+name)...)
	}
	for _, part := range []string{"items", "additionalProperties"} {
		if of := asMap(wanted[part]); of != nil && asMap(found[part]) != nil {
			missing = append(missing, missingFields(asMap(found[part]), of, path+"[]")...)
		}
	}
	return missing
}

// checkSources says which of Flux's sources the API server serves in the version that Stacks use.
func (s *session) checkSources(c *cluster) {
	for _, kind := range []string{"GitRepository", "OCIRepository", "Bucket"} {
		s.checkKind(c, schema.GroupVersionKind{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: kind}, false)
	}
}

// checkKind reports whether the API server serves a kind. A kind that not every installation needs causes a warning only.
func (s *session) checkKind(c *cluster, kind schema.GroupVersionKind, needed bool) bool {
	_, err := c.client.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	switch {
	case err == nil:
		s.log.Success("%s %s", kind.Kind, kind.GroupVersion())
		return true
	case needed:
		s.log.Failure("%s %s is not served: install the CRDs of stack-controller", kind.Kind, kind.GroupVersion())
	default:
		s.log.Warning("%s %s is not served: Stacks cannot use such a source until you install Flux 2.6 or newer", kind.Kind, kind.GroupVersion())
	}
	return false
}

// checkController returns what is wrong with the controller: with its Deployments, or if there is none, with one outside of the cluster.
func (s *session) checkController(ctx context.Context, c *cluster) (missing []string) {
	found := &appsv1.DeploymentList{}
	if err := c.list(ctx, found); err != nil {
		s.log.Warning("the controller cannot be checked: %s", err)
		return nil
	}
	found.Items = slices.DeleteFunc(found.Items, func(deployment appsv1.Deployment) bool { return !isOurs(&deployment) })
	if len(found.Items) == 0 {
		return s.checkOutside(ctx, c)
	}
	for i := range found.Items {
		if deployment := &found.Items[i]; !s.checkDeployment(deployment) {
			missing = append(missing, fmt.Sprintf("Deployment %s is not available", client.ObjectKeyFromObject(deployment)))
		}
	}
	return missing
}

// checkOutside looks for a controller without a Deployment, such as that of "make demo": by its lease, or by its work.
func (s *session) checkOutside(ctx context.Context, c *cluster) (missing []string) {
	leases, stacks := &coordinationv1.LeaseList{}, &pulumiv1.StackList{}
	if err := c.list(ctx, leases); err == nil {
		if holders := shard.Holders(leases.Items, s.Now()); len(holders) > 0 {
			s.log.Success("no Deployment, but a controller runs: %s", strings.Join(holders, ", "))
			return nil
		}
	}
	if err := c.list(ctx, stacks); err != nil {
		s.log.Warning("the controller cannot be checked: there is no Deployment with the label %s=stack-controller, and %s", controllerLabel, err)
		return nil
	}
	seen := 0
	for i := range stacks.Items {
		stack := &stacks.Items[i]
		switch {
		case isSeen(stack) && len(stack.Status.Conditions) > 0:
			seen++
		case !stack.Spec.Suspend:
			key := client.ObjectKeyFromObject(stack)
			s.log.Failure("no Deployment with the label %s=stack-controller, and Stack %s was not reconciled since its last edit", controllerLabel, key)
			return []string{fmt.Sprintf("no controller has reconciled Stack %s", key)}
		}
	}
	if seen > 0 {
		s.log.Success("no Deployment, but a controller has reconciled all Stacks (%d): it runs outside of the cluster", seen)
		return nil
	}
	s.log.Failure("no Deployment with the label %s=stack-controller, no lease of a controller, and no Stack that one has reconciled", controllerLabel)
	return []string{"no controller was found: it is not installed, or it runs outside of the cluster and has done nothing yet"}
}

func (s *session) checkDeployment(deployment *appsv1.Deployment) bool {
	wanted, available := replicasOf(deployment), deployment.Status.AvailableReplicas
	text := fmt.Sprintf("Deployment %s: %d of %d available, %s", client.ObjectKeyFromObject(deployment), available, wanted, imageOf(deployment))
	if wanted == 0 || available < wanted {
		s.log.Failure("%s", text)
		return false
	}
	s.log.Success("%s", text)
	return true
}

// imageOf is the image of the first container.
func imageOf(deployment *appsv1.Deployment) string {
	return deployment.Spec.Template.Spec.Containers[0].Image // the API server requires one
}

// replicasOf is how many pods the Deployment is to have.
func replicasOf(deployment *appsv1.Deployment) int32 { return ptr.Deref(deployment.Spec.Replicas, 1) }

// checkRights logs which rights the user does not have.
func (s *session) checkRights(ctx context.Context, c *cluster) error {
	missing := 0
	for _, right := range rights() {
		allowed, reason, err := c.may(ctx, right)
		if err != nil {
			return err
		}
		if !allowed {
			missing++
			s.log.Warning("you may not %s, which these need: %s%s", right, right.needs, reason)
		}
	}
	if missing == 0 {
		s.log.Success("you have all %d rights that the commands use", len(rights()))
	}
	return nil
}

// may asks the API server whether the user has the right.
func (c *cluster) may(ctx context.Context, right right) (bool, string, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: c.namespace, Verb: right.verb, Group: right.group, Resource: right.resource, Subresource: right.subresource,
		},
	}}
	if err := call(ctx, func(ctx context.Context) error { return c.client.Create(ctx, review) }, "ask whether you may %s", right); err != nil {
		return false, "", err
	}
	reason := cmp.Or(review.Status.Reason, review.Status.EvaluationError)
	if reason != "" {
		reason = " (" + strings.TrimSpace(reason) + ")"
	}
	return review.Status.Allowed, reason, nil
}
