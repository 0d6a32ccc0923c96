package shard_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/stack-controller/stack-controller/internal/shard"
)

func TestEachShardHasALeaseOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	g.Expect(shard.Lease("")).To(Equal("stack-controller-leader-election"))
	one, two := shard.Lease("sharding.fluxcd.io/key=shard1"), shard.Lease("sharding.fluxcd.io/key=shard2")
	g.Expect(one).To(MatchRegexp("^stack-controller-leader-election-[0-9a-f]{8}$"))
	g.Expect(one).NotTo(Equal(two))
}

func TestHoldersAreTheControllersOfAllShardsThatRun(t *testing.T) {
	now := time.Date(2026, 11, 24, 4, 0, 0, 0, time.UTC)
	held := func(name, holder string, ago time.Duration) coordinationv1.Lease {
		return coordinationv1.Lease{
			Namespace: "flux-system", Name: name,
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](35), RenewTime: &metav1.MicroTime{Time: now.Add(-ago)},
			},
		}
	}
	plain, one := shard.Lease(""), shard.Lease("sharding.fluxcd.io/key=shard1")
	never := coordinationv1.Lease{Name: plain}
	for name, test := range map[string]struct {
		leases []coordinationv1.Lease
		want   []string
	}{
		"none":                   {},
		"the main controller":    {[]coordinationv1.Lease{held(plain, "pod-a", time.Second)}, []string{"pod-a holds the lease flux-system/" + plain + " until 04:00:34"}},
		"one of a shard":         {[]coordinationv1.Lease{held(plain, "", 0), held(one, "pod-b", 0)}, []string{"pod-b holds the lease flux-system/" + one + " until 04:00:35"}},
		"both":                   {[]coordinationv1.Lease{held(plain, "pod-a", 0), held(one, "pod-b", 0)}, []string{"pod-a holds the lease flux-system/" + plain + " until 04:00:35", "pod-b holds the lease flux-system/" + one + " until 04:00:35"}},
		"given up":               {leases: []coordinationv1.Lease{held(one, "", time.Second)}},
		"not renewed":            {leases: []coordinationv1.Lease{held(one, "pod-b", 35*time.Second)}},
		"never held":             {leases: []coordinationv1.Lease{never}},
		"of somebody else":       {leases: []coordinationv1.Lease{held("source-controller-leader-election", "pod-c", 0)}},
		"of somebody like it":    {leases: []coordinationv1.Lease{held(plain+"-of-mine", "pod-c", 0), held("my-"+plain, "pod-c", 0)}},
		"of one that ended long": {leases: []coordinationv1.Lease{held(plain, "pod-a", time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(shard.Holders(test.leases, now)).To(Equal(test.want))
		})
	}
}
