package automation

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTheTimeUntilTheAgentIsKilledIsDivided(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name               string
		end, first, second time.Duration
	}{
		{"a long time is for a graceful end", 595 * time.Second, 570 * time.Second, 585 * time.Second},
		{"half of a short time is", 24 * time.Second, 12 * time.Second, 20 * time.Second},
		{"no time", 0, 0, 0},
		{"too late", -time.Second, -time.Second, -time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			d := newDeadline()
			d.set(now, now.Add(test.end), terminateGrace)
			// What comes later does not give more time.
			d.set(now, now.Add(time.Hour), terminateGrace)
			g.Expect(d.limits[0].Sub(now)).To(Equal(test.first))
			g.Expect(d.limits[1].Sub(now)).To(Equal(test.second))
		})
	}
}
