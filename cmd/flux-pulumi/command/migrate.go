package command

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/config"
	"github.com/stack-controller/stack-controller/internal/migrate"
)

const (
	// operatorName is a part of the names of the images of the Pulumi Kubernetes Operator.
	operatorName = "pulumi-kubernetes-operator"
	// handBackInterval is the time between two checks of the objects that are being deleted.
	handBackInterval = time.Second
	// migrateTimeout is how long to wait until updates and pods have ended.
	migrateTimeout = 15 * time.Minute
)

func (s *session) migrate() *cobra.Command {
	return group("migrate", "Move from the Pulumi Kubernetes Operator, and back",
		s.migratePlan(), s.migrateStop(), s.migrateBack())
}

func (s *session) migrateStop() *cobra.Command {
	timeout := migrateTimeout
	cmd := &cobra.Command{
		Use: "stop DEPLOYMENT", Short: "Stop a controller when no update runs",
		Long: "Wait until no update runs, scale the Deployment of a controller to 0, and wait until its pods are gone. It is the\n" +
			"operator on the way here, and stack-controller on the way back. To go back on this step, scale it up again.\n" +
			"Suspend what would restore it first: a HelmRelease, a Kustomization or an Application.",
		Example: fmt.Sprintf("  %s migrate stop pulumi-kubernetes-operator -n pulumi-kubernetes-operator", invocation(s.Program)),
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, args []string) error {
			return s.stopController(ctx, c, args[0], timeout)
		}),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "The longest time to wait for updates, and then for pods.")
	return cmd
}

func (s *session) stopController(ctx context.Context, c *cluster, name string, timeout time.Duration) error {
	deployment := &appsv1.Deployment{}
	if err := c.read(ctx, c.key(name), deployment); err != nil {
		return err
	}
	if !isController(deployment) {
		return fmt.Errorf("the Deployment %q has the image %s, which is neither the operator's nor stack-controller's", name, imageOf(deployment))
	}
	if err := s.checkRestorer(ctx, c, deployment); err != nil {
		return err
	}
	s.log.Waiting("waiting until no update runs")
	if err := s.await(ctx, timeout, "the end of all updates", c.noneRuns); err != nil {
		return err
	}
	s.log.Step("scaling Deployment %s/%s from %d to 0", c.namespace, name, replicasOf(deployment))
	before := deployment.DeepCopy()
	deployment.Spec.Replicas = new(int32)
	if err := c.change(ctx, before, deployment); err != nil {
		return err
	}
	err := s.await(ctx, timeout, "the end of Deployment "+name, func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, c.key(name), deployment); err != nil {
			return progress{}, err
		}
		// The status does not count pods that are ending, which may take minutes.
		pods, err := c.podsOf(ctx, deployment)
		if err != nil {
			return progress{}, err
		}
		running := slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		})
		left, seen := max(int(deployment.Status.Replicas), len(running)), deployment.Status.ObservedGeneration
		return progress{
			state: "waiting for its pods to end", detail: fmt.Sprintf("%d left", left), done: left == 0 && seen >= deployment.Generation,
		}, nil
	})
	if err == nil {
		s.log.Success("Deployment %s/%s has stopped", c.namespace, name)
	}
	return err
}

// checkRestorer returns an error if the object that has installed the Deployment would scale it up again. It warns where that is not known.
func (s *session) checkRestorer(ctx context.Context, c *cluster, deployment *appsv1.Deployment) error {
	installer := migrate.InstallerOf(deployment)
	if installer == nil {
		return nil
	}
	kind := schema.GroupVersionKind{Group: installer.Group(), Version: "v1", Kind: installer.Kind}
	if kind.Group == "" {
		s.log.Warning("%s scales it up again unless its automated sync is suspended", installer)
		return nil
	}
	restorer := &unstructured.Unstructured{}
	restorer.SetGroupVersionKind(c.served(kind))
	err := c.read(ctx, client.ObjectKey{Namespace: installer.Namespace, Name: installer.Name}, restorer)
	suspended, _, _ := unstructured.NestedBool(restorer.Object, "spec", "suspend")
	switch {
	case apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err):
		s.log.Warning("%s is not in this cluster: if one of another cluster manages the Deployment, suspend that", installer)
	case err != nil:
		s.log.Warning("%s scales it up again unless it is suspended, which cannot be seen: %s", installer, err)
	case !suspended:
		return fmt.Errorf("nothing was changed: %s would scale it up again. Suspend that first: flux suspend %s %s --namespace %s",
			installer, strings.ToLower(installer.Kind), installer.Name, installer.Namespace)
	}
	return nil
}

// noneRuns reports the Updates of the cluster that run. It is done when there are none.
func (c *cluster) noneRuns(ctx context.Context) (progress, error) {
	running, err := c.running(ctx)
	if err != nil {
		return progress{}, err
	}
	return progress{state: "updates are running", detail: strings.Join(running, ", "), done: len(running) == 0}, nil
}

// running returns the names of the Updates of the cluster that run. The operator and this controller mark them in the same way. Before version
// 2.0, the operator had none, and ran them in its own pod: these are the Stacks that it processes.
func (c *cluster) running(ctx context.Context) (names []string, err error) {
	list := &autov1alpha1.UpdateList{}
	if err := c.list(ctx, list); apimeta.IsNoMatchError(err) {
		stacks := &pulumiv1.StackList{}
		err := c.list(ctx, stacks)
		for i := range stacks.Items {
			if stack := &stacks.Items[i]; conditions.GetReason(stack, meta.ReconcilingCondition) == pulumiv1.StackProcessingReason {
				names = append(names, "Stack "+stack.Namespace+"/"+stack.Name)
			}
		}
		return names, err
	} else if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if update := &list.Items[i]; conditions.IsTrue(update, autov1alpha1.UpdateProgressing) {
			names = append(names, update.Namespace+"/"+update.Name)
		}
	}
	return names, nil
}

// isController reports whether the Deployment is one of the operator or of stack-controller.
func isController(deployment *appsv1.Deployment) bool {
	return isOperator(deployment) || isOurs(deployment)
}

// isOurs reports whether the Deployment runs stack-controller, however it was installed. A chart with nameOverride has another name in
// controllerLabel.
func isOurs(deployment *appsv1.Deployment) bool {
	labels := deployment.GetLabels()
	return labels[componentLabel] == controllerName || labels[controllerLabel] == controllerName
}

// isOperator reports whether the Deployment runs the operator.
func isOperator(deployment *appsv1.Deployment) bool {
	return strings.Contains(imageOf(deployment), operatorName) || deployment.GetLabels()[controllerLabel] == operatorName
}

func (s *session) migrateBack() *cobra.Command {
	var dryRun bool
	var accept []string
	controller, timeout := "", migrateTimeout
	cmd := &cobra.Command{
		Use: "back", Short: "Hand all objects back to the Pulumi Kubernetes Operator",
		Long: "Make all objects what the Pulumi Kubernetes Operator expects of them, so that it can be started again. It changes\n" +
			"nothing while stack-controller or an update runs, and can be repeated. With --namespace it is for one namespace.\n" +
			"See docs/guides/migration.md.",
		Args: arguments(cobra.NoArgs),
		RunE: s.onCluster(func(ctx context.Context, c *cluster, _ []string) error {
			ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--timeout of %s is over", timeout))
			defer cancel()
			c.config.Timeout = callTimeout // of each request
			caller, err := client.New(c.config, client.Options{Scheme: c.client.Scheme()})
			if err != nil {
				return fmt.Errorf("prepare calls of the API server: %w", err)
			}
			err = migrate.Run(ctx, migrate.Options{
				Client: caller, Namespace: *s.flags.Namespace, ControllerNamespace: controller,
				DryRun: dryRun, Accept: accept, Out: s.out, PollInterval: handBackInterval,
			})
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return failed(exitTimeout, "%w", cmp.Or(err, ctx.Err()))
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "Say what would be done, and change nothing.")
	cmd.Flags().StringSliceVar(&accept, "accept", nil,
		"The objects, as KIND/NAMESPACE/NAME, with which the operator may do what they forbid. --dry-run names them.")
	cmd.Flags().StringVar(&controller, "controller-namespace", config.Namespace,
		"The namespace of stack-controller, empty for all. Without --namespace, no controller may run in any namespace.")
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "The longest time to wait for pods to end.")
	return cmd
}
