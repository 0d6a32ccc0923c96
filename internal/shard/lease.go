package shard

import (
	"fmt"
	"regexp"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/leaderelection"
)

// lease is the name of the lease of a controller without a label selector.
const lease = "stack-controller-leader-election"

// IsLease reports whether a lease with this name is one of stack-controller, whatever its shard.
func IsLease(name string) bool { return leases.MatchString(name) }

var leases = regexp.MustCompile("^" + lease + "(-[0-9a-f]{8})?$")

// Lease returns the name of the lease that the leader of the replicas with this label selector holds. Each shard has its own lease.
func Lease(labelSelector string) string {
	if labelSelector == "" {
		return lease
	}
	return leaderelection.GenerateID(lease, labelSelector)
}

// Holders returns a text for each lease of a controller of any shard that is held: who holds it, and until when. A controller that ended
// has released its lease, and one that was killed does not renew it. Other leases of the namespace do not count.
func Holders(of []coordinationv1.Lease, now time.Time) (holders []string) {
	for i := range of {
		holder, renewed, lasts := Holder(&of[i]), of[i].Spec.RenewTime, of[i].Spec.LeaseDurationSeconds
		if !IsLease(of[i].Name) || holder == "" || renewed == nil || lasts == nil {
			continue
		}
		if end := renewed.Add(time.Duration(*lasts) * time.Second); now.Before(end) {
			holders = append(holders, fmt.Sprintf("%s until %s", holder, end.Format(time.TimeOnly)))
		}
	}
	return holders
}

// Holder returns a text that says who holds the lease, or held it last and did not release it; empty if it is released.
func Holder(lease *coordinationv1.Lease) string {
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		return fmt.Sprintf("%s holds the lease %s", *holder, client.ObjectKeyFromObject(lease))
	}
	return ""
}
