package cluster

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/images"
)

// FluxNamespace is the namespace in which Flux's controllers run.
const FluxNamespace = "flux-system"

// Ports that Flux's NetworkPolicies open to other namespaces.
const (
	metricsPort = 8080
	webhookPort = 9292
)

//go:embed manifests
var manifests embed.FS

// InstallFlux runs source-controller as a pod with the given image, as Flux installs it: the namespace flux-system with the restricted
// level of pod security, CRDs, RBAC, Deployment, Service and the NetworkPolicies, which only have an effect after EnforceNetworkPolicies.
// It returns when source-controller is ready.
func (c *Cluster) InstallFlux(ctx context.Context, sourceController images.Image) error {
	return c.installController(ctx, "source-controller", sourceController, "flux.yaml", "source-controller.yaml")
}

// InstallNotificationController also runs notification-controller. Call it after InstallFlux has returned. It returns when
// notification-controller is ready.
func (c *Cluster) InstallNotificationController(ctx context.Context, image images.Image) error {
	return c.installController(ctx, "notification-controller", image, "notification-controller.yaml")
}

// installController applies the manifests of one of Flux's controllers, and waits for its Deployment.
func (c *Cluster) installController(ctx context.Context, controller string, image images.Image, names ...string) error {
	if err := c.LoadImage(ctx, image.Tar); err != nil {
		return err
	}
	definitions, err := controlplane.FluxCRDs(ctx, controller)
	if err != nil {
		return err
	}
	if err := c.InstallCRDs(definitions); err != nil {
		return err
	}
	for _, name := range names {
		manifest, err := manifests.ReadFile("manifests/" + name)
		if err != nil {
			return fmt.Errorf("read the manifest %s: %w", name, err)
		}
		expanded := strings.ReplaceAll(string(manifest), "${IMAGE}", image.Reference)
		if _, err := c.KubectlInput(ctx, expanded, "apply", "--server-side", "--filename=-"); err != nil {
			return err
		}
	}
	return c.awaitRollout(ctx, FluxNamespace, "deployment/"+controller)
}

// awaitRollout waits until the pods of a Deployment or StatefulSet are ready. The error describes the pods.
func (c *Cluster) awaitRollout(ctx context.Context, namespace, name string) error {
	_, err := c.Kubectl(ctx, "rollout", "status", name, "--namespace="+namespace, "--timeout="+readyTimeout.String())
	if err == nil {
		return nil
	}
	pods, _ := c.Kubectl(ctx, "describe", "pods", "--namespace="+namespace) // the first error is the relevant one
	return fmt.Errorf("%w\n%s", err, pods)
}
