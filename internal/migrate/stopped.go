package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/shard"
)

// maxLease bounds how long a lease is watched, whatever it says.
const maxLease = 2 * time.Minute

// requireStoppedController fails while a controller, also one of a shard, renews its lease: it would take the objects back at once. When all
// objects are handed back, it does not matter where the controller runs.
//
// A controller that ends gives its lease up. One that was killed leaves it as it is, so a lease that is held is watched for as long as it lasts.
// Its times are not compared with the clock of this machine, which may be another one.
func (h *handBack) requireStoppedController(ctx context.Context) error {
	held, err := h.heldLeases(ctx)
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
		held, err := h.heldLeases(ctx)
		for i := range held {
			if seen[client.ObjectKeyFromObject(&held[i])] != held[i].ResourceVersion {
				return false, fmt.Errorf("stack-controller still runs: %s; scale its Deployments to 0 and try again, nothing was changed", shard.Holder(&held[i]))
			}
		}
		return len(held) == 0 || !time.Now().Before(until), err
	})
}

// heldLeases returns the leases of controllers that are held. If all are looked for in one namespace, which the user may have named by mistake,
// there has to be one, at least one that was given up.
func (h *handBack) heldLeases(ctx context.Context) ([]coordinationv1.Lease, error) {
	leases, namespace := &coordinationv1.LeaseList{}, h.ControllerNamespace
	if h.Namespace == "" {
		namespace = ""
	}
	if err := h.Client.List(ctx, leases, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the leases, which say whether stack-controller runs: %w", err)
	}
	found := slices.DeleteFunc(leases.Items, func(lease coordinationv1.Lease) bool { return !shard.IsLease(lease.Name) })
	if namespace != "" && len(found) == 0 {
		return nil, fmt.Errorf("stack-controller never ran in the namespace %s: name its namespace with --controller-namespace; if it ran without "+
			"leader election, give an empty one. Nothing was changed", namespace)
	}
	return slices.DeleteFunc(found, func(lease coordinationv1.Lease) bool { return shard.Holder(&lease) == "" }), nil
}
