package v1

import (
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEmptyStackHasTheDocumentedDefaults(t *testing.T) {
	g := NewWithT(t)
	stack := &Stack{}

	g.Expect(stack.GetTimeout()).To(BeZero())
	g.Expect(stack.GetRetryInterval()).To(BeZero())
	g.Expect(stack.GetResyncInterval()).To(Equal(time.Minute))
	g.Expect(stack.GetRetryMaxBackoff()).To(Equal(24 * time.Hour))
	g.Expect(stack.GetUpdateHistoryLimit()).To(Equal(10))
	g.Expect(stack.GetWorkspaceReclaimPolicy()).To(Equal(WorkspaceReclaimRetain))
}

func TestResyncIntervalIsNeverShorterThanAMinute(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec StackSpec
		want time.Duration
	}{
		{"seconds below the minimum", StackSpec{ResyncFrequencySeconds: 5}, time.Minute},
		{"seconds above the minimum", StackSpec{ResyncFrequencySeconds: 300}, 5 * time.Minute},
		{"more seconds than a duration can hold", StackSpec{ResyncFrequencySeconds: math.MaxInt64}, 292 * 365 * 24 * time.Hour},
		{"duration below the minimum", StackSpec{ResyncFrequency: &metav1.Duration{Duration: time.Second}}, time.Minute},
		{"duration above the minimum", StackSpec{ResyncFrequency: &metav1.Duration{Duration: time.Hour}}, time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := (&Stack{Spec: tt.spec}).GetResyncInterval()
			NewWithT(t).Expect(got).To(BeNumerically("~", tt.want, tt.want/100))
		})
	}
}

func TestDurationsThatAreSetAreUsed(t *testing.T) {
	g := NewWithT(t)
	limit := int32(3)
	stack := &Stack{Spec: StackSpec{
		Timeout:                        &metav1.Duration{Duration: time.Hour},
		RetryInterval:                  &metav1.Duration{Duration: 5 * time.Minute},
		RetryMaxBackoffDurationSeconds: 90,
		UpdateHistoryLimit:             &limit,
		WorkspaceReclaimPolicy:         WorkspaceReclaimDelete,
	}}

	g.Expect(stack.GetTimeout()).To(Equal(time.Hour))
	g.Expect(stack.GetRetryInterval()).To(Equal(5 * time.Minute))
	g.Expect(stack.GetRetryMaxBackoff()).To(Equal(90 * time.Second))
	g.Expect(stack.GetUpdateHistoryLimit()).To(Equal(3))
	g.Expect(stack.GetWorkspaceReclaimPolicy()).To(Equal(WorkspaceReclaimDelete))
}
