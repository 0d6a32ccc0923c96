package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/config"
)

const (
	// controllerName is the name of the Deployment.
	controllerName = "stack-controller"
	// shownProblems bounds how many problems of one kind a message has.
	shownProblems = 5
)

// installation has the flags of install.
type installation struct {
	controller, agent string
	// namesImage and namesAgent say which images the user has named.
	namesImage, namesAgent, export, force bool
	timeout                               time.Duration
}

func (s *session) install() *cobra.Command {
	i := &installation{controller: s.ControllerImage, agent: s.AgentImage}
	cmd := &cobra.Command{
		Use: "install", Short: "Install stack-controller, or upgrade it",
		Long: "Apply the manifests of the version of this program, server-side, in the namespace flux-system, and wait until the\n" +
			"controller runs. Nothing is changed if you lack a right, if Helm or Flux manages the installation, or if it has settings\n" +
			"that the manifests do not have.",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if i.controller == "" || i.agent == "" {
				return usage(cmd, errors.New("this build belongs to no release: name its images with --image and --agent-image"))
			}
			if err := s.expectOwnNamespace(cmd); err != nil {
				return err
			}
			objects, err := config.Objects(i.controller, i.agent)
			if err != nil {
				return err
			}
			if i.export {
				return s.exportObjects(objects)
			}
			i.namesImage, i.namesAgent = cmd.Flags().Changed("image"), cmd.Flags().Changed("agent-image")
			return s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
				return s.applyInstallation(ctx, c, objects, i)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&i.controller, "image", i.controller, "The image of the controller, for example in a mirror.")
	cmd.Flags().StringVar(&i.agent, "agent-image", i.agent, "The image of the agent.")
	cmd.Flags().BoolVar(&i.export, "export", false, "Print the manifests instead.")
	cmd.Flags().BoolVar(&i.force, "force", false, "Take away settings of the installation that the manifests do not have.")
	cmd.Flags().DurationVar(&i.timeout, "timeout", defaultTimeout, "The longest time to wait.")
	return cmd
}

// expectOwnNamespace returns an error if the user names another namespace than that of the manifests.
func (s *session) expectOwnNamespace(cmd *cobra.Command) error {
	if namespace := *s.flags.Namespace; namespace != "" && namespace != config.Namespace {
		return usage(cmd, fmt.Errorf("%s is for the installation in the namespace %s: for another one, make an overlay of config/default",
			cmd.Name(), config.Namespace))
	}
	return nil
}

func (s *session) exportObjects(objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		content, err := yaml.Marshal(object.Object)
		if err != nil {
			return fmt.Errorf("encode %s: %w", named(object), err)
		}
		if _, err := fmt.Fprintf(s.out, "---\n%s", content); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
	}
	return nil
}

// named is the kind and name of an object, for a message.
func named(object client.Object) string {
	return object.GetObjectKind().GroupVersionKind().Kind + " " + object.GetName()
}

func (s *session) applyInstallation(ctx context.Context, c *cluster, objects []*unstructured.Unstructured, i *installation) error {
	s.log.Step("checking the cluster")
	if err := s.checkBefore(ctx, c); err != nil {
		return err
	}
	if !i.force {
		if err := c.checkSettings(ctx, objects, i); err != nil {
			return err
		}
	}
	if err := c.tryAll(ctx, objects); err != nil {
		return err
	}
	s.log.Step("installing %s in namespace %s", s.Version, config.Namespace)
	for _, object := range objects {
		before := object.DeepCopy()
		if err := c.apply(ctx, before); err != nil {
			return err
		}
	}
	s.log.Success("%d objects are applied", len(objects))
	if err := s.awaitDeployment(ctx, c, i.timeout); err != nil {
		return err
	}
	s.log.Success("stack-controller is installed")
	return nil
}

// checkBefore returns an error if something else manages an installation, or if the namespace does not exist.
func (s *session) checkBefore(ctx context.Context, c *cluster) error {
	namespace := &corev1.Namespace{}
	switch err := c.read(ctx, client.ObjectKey{Name: config.Namespace}, namespace); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the namespace %s does not exist: install Flux first, with 'flux install', or create the namespace to use stack-controller without Flux",
			config.Namespace)
	case err != nil:
		return err
	}
	s.checkFlux(ctx, c)
	return c.checkOthers(ctx)
}

// checkOthers returns an error if there is another installation in the cluster, or one that something else manages. All share the custom
// resource definitions.
func (c *cluster) checkOthers(ctx context.Context) error {
	deployments := &appsv1.DeploymentList{}
	if err := c.list(ctx, deployments); err != nil {
		return err
	}
	for i := range deployments.Items {
		if err := checkOther(&deployments.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkFlux says which version of source-controller is there, and whether it is new enough.
func (s *session) checkFlux(ctx context.Context, c *cluster) {
	source := &appsv1.Deployment{}
	switch err := c.read(ctx, client.ObjectKey{Namespace: config.Namespace, Name: "source-controller"}, source); {
	case apierrors.IsNotFound(err):
		s.log.Warning("Flux's source-controller is not installed: Stacks can use git and Programs, but no Flux sources. Install it with 'flux install'")
	case err != nil:
		s.log.Warning("Flux cannot be checked: %s", err)
	default:
		s.log.Success("Flux's source-controller: %s", imageOf(source))
		s.checkSources(c)
	}
}

// checkOther returns an error if the Deployment is another installation, or one that something else manages.
func checkOther(deployment *appsv1.Deployment) error {
	key, labels := client.ObjectKeyFromObject(deployment), deployment.Labels
	switch {
	case isOperator(deployment) && replicasOf(deployment) > 0:
		return fmt.Errorf("the Pulumi Kubernetes Operator runs in Deployment %s: two controllers must not work on the same Stacks. See 'migrate --help'", key)
	case !isOurs(deployment):
		return nil
	case key != client.ObjectKey{Namespace: config.Namespace, Name: controllerName}:
		return fmt.Errorf("stack-controller is installed as Deployment %s, not by this program", key)
	case restoringOwner(deployment) != "": // also with a chart
		return fmt.Errorf("stack-controller was installed by %s: change that, or its source", restoringOwner(deployment))
	case labels["app.kubernetes.io/managed-by"] == "Helm":
		return fmt.Errorf("stack-controller was installed with Helm: upgrade it with 'helm upgrade'")
	}
	return nil
}

// tryAll applies the objects in a way that changes nothing, and returns everything that the API server has against it.
func (c *cluster) tryAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	var problems []string
	for _, object := range objects {
		answer := object.DeepCopy()
		switch err := c.apply(ctx, answer, client.DryRunAll); {
		case err != nil:
			problems = append(problems, err.Error())
		case isBeingDeleted(answer): // the API server would accept changes until it is gone
			problems = append(problems, named(object)+" is being deleted: install again when it is gone, which it is after all objects that belong to it")
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("nothing was changed: %s", shorten(problems))
}

func isBeingDeleted(object client.Object) bool { return !object.GetDeletionTimestamp().IsZero() }

// shorten joins the first lines of a list.
func shorten(all []string) string {
	shown := all[:min(len(all), shownProblems)]
	if more := len(all) - len(shown); more > 0 {
		shown = append(slices.Clone(shown), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(shown, "; ")
}

// apply applies an object server-side. It takes over fields that others own: the manifests are the whole truth about these objects.
func (c *cluster) apply(ctx context.Context, object *unstructured.Unstructured, options ...client.ApplyOption) error {
	options = append(options, client.FieldOwner(fieldOwner), client.ForceOwnership)
	return call(ctx, func(ctx context.Context) error {
		return c.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), options...)
	}, "apply %s", named(object))
}

// awaitDeployment waits until the controller of the new version runs.
func (s *session) awaitDeployment(ctx context.Context, c *cluster, timeout time.Duration) error {
	deployment := &appsv1.Deployment{}
	return s.await(ctx, timeout, "stack-controller", func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, client.ObjectKey{Namespace: config.Namespace, Name: controllerName}, deployment); err != nil {
			return progress{}, err
		}
		wanted, status := replicasOf(deployment), deployment.Status
		now := progress{
			state: "waiting until the controller runs", detail: fmt.Sprintf("%d of %d available", status.AvailableReplicas, wanted),
			done: status.ObservedGeneration >= deployment.Generation && status.UpdatedReplicas == wanted && status.AvailableReplicas == wanted &&
				status.Replicas == wanted,
		}
		if problem := c.podProblem(ctx, deployment); problem != "" && !now.done {
			now.detail += ", " + problem
		}
		return now, nil
	})
}

// podProblem returns why there is no pod of the Deployment, or why one waits, if it is known.
func (c *cluster) podProblem(ctx context.Context, deployment *appsv1.Deployment) string {
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			return condition.Reason + ": " + condition.Message
		}
	}
	pods, err := c.podsOf(ctx, deployment)
	if err != nil {
		return ""
	}
	for i := range pods {
		for _, status := range pods[i].Status.ContainerStatuses {
			if waiting := status.State.Waiting; waiting != nil && waiting.Message != "" {
				return waiting.Reason + ": " + waiting.Message
			}
		}
		for _, condition := range pods[i].Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Message != "" {
				return condition.Reason + ": " + condition.Message
			}
		}
	}
	return ""
}

// podsOf returns the pods of the Deployment.
func (c *cluster) podsOf(ctx context.Context, deployment *appsv1.Deployment) ([]corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("the selector of Deployment %s: %w", deployment.Name, err)
	}
	pods := &corev1.PodList{}
	err = c.list(ctx, pods, client.InNamespace(deployment.Namespace), client.MatchingLabelsSelector{Selector: selector})
	return pods.Items, err
}

func (s *session) uninstall() *cobra.Command {
	var yes bool
	timeout := defaultTimeout
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Uninstall stack-controller",
		Long: "Delete the objects that install applies, with the custom resource definitions, and so all Programs, Workspaces,\n" +
			"Updates, Approvals and StackRollouts. It refuses while there are Stacks: delete them first, so that the\n" +
			"controller can destroy what they have deployed, if they say so. It also refuses while an Update has not ended.",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.expectOwnNamespace(cmd); err != nil {
				return err
			}
			return s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
				return s.removeInstallation(ctx, c, yes, timeout)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask.")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "The longest time to wait.")
	return cmd
}

func (s *session) removeInstallation(ctx context.Context, c *cluster, yes bool, timeout time.Duration) error {
	if err := c.expectNothingLeft(ctx); err != nil {
		return err
	}
	if err := c.checkOthers(ctx); err != nil {
		return err
	}
	if !yes {
		refusal := "nothing was deleted"
		if !isTerminal(s.In) {
			refusal += "; without a terminal, confirm with --yes"
		}
		if err := s.confirm(ctx, "This deletes stack-controller with all Programs, Workspaces, Updates, Approvals and StackRollouts. Do you want it?", refusal); err != nil {
			return err
		}
	}
	objects, err := config.Objects("", "")
	if err != nil {
		return err
	}
	slices.Reverse(objects) // the definitions come last
	isDefinition := func(object *unstructured.Unstructured) bool { return object.GetKind() == "CustomResourceDefinition" }
	first := slices.IndexFunc(objects, isDefinition)
	for _, object := range objects[:first] {
		if err := c.remove(ctx, object); err != nil {
			return err
		}
	}
	// Without a controller, a Stack or an Update that somebody has created meanwhile would never go.
	if err := c.expectNothingLeft(ctx); err != nil {
		return fmt.Errorf("the controller is gone, but %w. To go on, run install again", err)
	}
	for _, definition := range objects[first:] {
		if err := c.remove(ctx, definition); err != nil {
			return err
		}
	}
	err = s.await(ctx, timeout, "the end of stack-controller", func(ctx context.Context) (progress, error) {
		for _, object := range objects {
			switch err := c.read(ctx, client.ObjectKeyFromObject(object), object.DeepCopy()); {
			case err == nil:
				return progress{state: "waiting for the end of " + named(object)}, nil
			case !apierrors.IsNotFound(err) && !apimeta.IsNoMatchError(err):
				return progress{}, err
			}
		}
		return progress{done: true}, nil
	})
	if err == nil {
		s.log.Success("stack-controller is uninstalled")
	}
	return err
}

// expectNothingLeft returns an error if the cluster has Stacks, or Updates that have not ended. Only a controller lets them go.
func (c *cluster) expectNothingLeft(ctx context.Context) error {
	left := func(what string, list client.ObjectList, is func(client.Object) bool) error {
		var names []string
		switch err := c.list(ctx, list); {
		case apimeta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		_ = apimeta.EachListItem(list, func(item runtime.Object) error { // fails for what is not a list
			if object := item.(client.Object); is(object) {
				names = append(names, client.ObjectKeyFromObject(object).String())
			}
			return nil
		})
		if len(names) > 0 {
			return fmt.Errorf("there are %s (%d): %s", what, len(names), shorten(names))
		}
		return nil
	}
	if err := left("Stacks", &pulumiv1.StackList{}, func(client.Object) bool { return true }); err != nil {
		return err
	}
	return left("Updates that have not ended", &autov1alpha1.UpdateList{}, func(object client.Object) bool {
		update := object.(*autov1alpha1.Update)
		return controllerutil.ContainsFinalizer(update, pulumiv1.Finalizer) || update.HasStarted() && !update.IsComplete()
	})
}
