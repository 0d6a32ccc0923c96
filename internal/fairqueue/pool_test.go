package fairqueue

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPoolLeavesSlotsToOtherNamespaces(t *testing.T) {
	g := NewWithT(t)
	p := NewPool(4)
	releases := make(chan func(), 10)
	for range 10 {
		go func() {
			if release, err := p.Acquire(t.Context(), "hanging"); err == nil {
				releases <- release
			}
		}()
	}
	g.Eventually(releases).Should(HaveLen(2))
	for range 3 {
		release, err := p.Acquire(t.Context(), "team")
		g.Expect(err).NotTo(HaveOccurred())
		release()
		release() // does nothing
	}
	g.Consistently(releases, "20ms").Should(HaveLen(2))
	(<-releases)()
	g.Eventually(releases).Should(HaveLen(2))
}

func TestWhoGivesUpTakesNoSlot(t *testing.T) {
	g := NewWithT(t)
	p := NewPool(2)
	release, err := p.Acquire(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	for range 100 {
		go func() {
			_, err := p.Acquire(ctx, "a")
			failed <- err
		}()
	}
	cancel()
	for range 100 {
		g.Eventually(failed).Should(Receive(MatchError(context.Canceled)))
	}
	release()
	g.Expect(p.shares.len).To(BeZero())
	g.Expect(p.shares.held).To(BeEmpty())
	g.Expect(p.shares.free).To(Equal(2))
}
