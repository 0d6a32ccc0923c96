package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/shard"
)

// maxLease bounds how long a lease is watched, whatever it says.
const maxLease = 2 * time.Minute

// requireStoppedController fails while a Deployment of a controller has replicas, or a controller, also one of a shard, renews its lease: it would
// take the objects back at once. When all objects are handed back, it does not matter where the controller runs.
//
// A controller that ends gives its lease up. One that was killed leaves it as it is, so a lease that is held is watched for as long as it lasts.
// Its times are not compared with the clock of this machine, which may be another one.
func (h *handBack) requireStoppedController(ctx context.Context) error {
	deployments, err := h.deployments(ctx, h.lookedAt())
	if err != nil {
		return err
	}
	for i := range deployments {
		if deployment := &deployments[i]; ptr.Deref(deployment.Spec.Replicas, 1) > 0 {
			return fmt.Errorf("stack-controller still runs: Deployment %s has replicas; scale its Deployments to 0 and try again, nothing was changed",
				client.ObjectKeyFromObject(deployment))
		}
	}
	held, err := h.heldLeases(ctx, len(deployments) > 0)
	if err != nil || len(held) == 0 {
		return err
	}
	longest, seen := time.Duration(0), map[client.ObjectKey]string{}
	for i := range held {
		if lasts := held[i].Spec.LeaseDurationSeconds; lasts != nil {
			longest = max(longest, time.Duration(*lasts)*time.Second)
		}
		seen[client.ObjectKeyFromObject(&held[i])] = held[i].ResourceVersion
	}
	longest = min(longest, maxLease)
	fmt.Fprintf(h.Out, "%s: watching it for %s, to see whether the controller runs\n", shard.Holder(&held[0]), longest)
	until := time.Now().Add(longest)
	return wait.PollUntilContextCancel(ctx, h.PollInterval, false, func(ctx context.Context) (bool, error) {
		held, err := h.heldLeases(ctx, true)
		for i := range held {
			if seen[client.ObjectKeyFromObject(&held[i])] != held[i].ResourceVersion {
				return false, fmt.Errorf("stack-controller still runs: %s; scale its Deployments to 0 and try again, nothing was changed", shard.Holder(&held[i]))
			}
		}
		return len(held) == 0 || !time.Now().Before(until), err
	})
}

// lookedAt returns the namespace in which controllers may not run, empty for all.
func (h *handBack) lookedAt() string {
	if h.Namespace == "" {
		return ""
	}
	return h.ControllerNamespace
}

// deployments returns the Deployments of stack-controller in the namespace, empty for all.
func (h *handBack) deployments(ctx context.Context, namespace string) ([]appsv1.Deployment, error) {
	found := &appsv1.DeploymentList{}
	err := h.Client.List(ctx, found, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/component": "stack-controller"})
	if err != nil {
		return nil, fmt.Errorf("list the Deployments of the controllers: %w", err)
	}
	return found.Items, nil
}

// heldLeases returns the leases of controllers that are held. If all are looked for in one namespace, which the user may have named by mistake,
// there has to be one, at least one that was given up, or a Deployment.
func (h *handBack) heldLeases(ctx context.Context, known bool) ([]coordinationv1.Lease, error) {
	leases, namespace := &coordinationv1.LeaseList{}, h.lookedAt()
	if err := h.Client.List(ctx, leases, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the leases, which say whether stack-controller runs: %w", err)
	}
	found := slices.DeleteFunc(leases.Items, func(lease coordinationv1.Lease) bool { return !shard.IsLease(lease.Name) })
	if namespace != "" && len(found) == 0 && !known {
		return nil, fmt.Errorf("stack-controller has neither a lease nor a Deployment in the namespace %s: name its namespace with --controller-namespace, "+
			"or give an empty one to look in all. Nothing was changed", namespace)
	}
	return slices.DeleteFunc(found, func(lease coordinationv1.Lease) bool { return shard.Holder(&lease) == "" }), nil
}
