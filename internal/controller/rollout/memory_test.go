package rollout

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// heapOf returns the bytes of what make returns, for each of so many.
func heapOf(many int, make func() any) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := make()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(many)
}

func TestControllerRemembersLittleOfEachStackOfItsRollouts(t *testing.T) {
	suite.WithoutRaceDetector(t)
	const many = 10_000
	f := newFleet(t)
	f.stacks = nil
	var members []*waves.Member
	for i := range many {
		stack := f.add(fmt.Sprintf("stack-%d", i), false)
		stack.ResourceVersion = fmt.Sprint(i)
		stack.Spec.Windows = []autov1alpha1.Window{between(autov1alpha1.WindowAllow, -time.Hour, time.Hour)}
		members = append(members, waves.Observe(stack, f.rollout, &f.rollout.Status))
	}
	perStack := heapOf(many, func() any {
		reconciler := &Reconciler{}
		for known := 0; known < many; {
			hours := reconciler.hoursOf(types.NamespacedName{}, many, noon)
			check := reconciler.checksOf(t.Context(), f.rollout, f.stacks)
			known = 0
			for _, m := range members {
				_, done := check(m.NamespacedName, "stack.status.lastUpdate.state == 'failed'")
				if open := hours(m); done && open.Open {
					known++
				}
			}
		}
		return reconciler
	})
	t.Logf("%.0f bytes", perStack)
	f.Expect(perStack).To(BeNumerically("<", 300))
	runtime.KeepAlive(members)
}

func TestStackOfAnotherShardNeedsLittleMemory(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	const many = 2_000
	stack := newFleet(t).stacks[0]
	text := func(n int) string {
		return fmt.Sprintf("a message of usual length about something that has happened, number %d", n)
	}
	stack.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": repeat("x", 1500)}
	stack.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "stacks", "kustomize.toolkit.fluxcd.io/namespace": "flux-system", "tier": "canary"}
	stack.Spec.Stack, stack.Spec.ServiceAccountName = "acme/network/production", "pulumi"
	stack.Spec.SecretEnvs = []string{text(1), text(2)}
	stack.Status.Conditions = nil
	for i, kind := range []string{meta.ReadyCondition, meta.ReconcilingCondition, pulumiv1.DriftedCondition} {
		stack.Status.Conditions = append(stack.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: meta.SucceededReason,
			Message: text(i), LastTransitionTime: metav1.NewTime(noon), ObservedGeneration: 1})
	}
	written, err := json.Marshal(stack)
	g.Expect(err).NotTo(HaveOccurred())
	cached := func(change func(*pulumiv1.Stack)) float64 {
		return heapOf(many, func() any {
			stacks := make([]any, many)
			for i := range stacks {
				read := &pulumiv1.Stack{}
				g.Expect(json.Unmarshal(written, read)).To(Succeed())
				read.UID, read.Name = types.UID(fmt.Sprintf("uid-%d", i)), fmt.Sprintf("stack-%d", i)
				change(read)
				stacks[i], err = CacheTransform(read)
				g.Expect(err).NotTo(HaveOccurred())
			}
			return stacks
		})
	}
	member, other := cached(func(*pulumiv1.Stack) {}), cached(func(stack *pulumiv1.Stack) { stack.Spec.RolloutRef = nil })
	t.Logf("%.0f bytes, and %.0f without a StackRollout", member, other)
	g.Expect(member).To(BeNumerically("<", 3_000))
	g.Expect(other).To(BeNumerically("<", 1_500))
}
