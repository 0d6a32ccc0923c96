package cli

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

func TestTheTimeUntilTheAgentIsKilledIsDivided(t *testing.T) {
	for _, test := range []struct {
		name               string
		end, first, second time.Duration
	}{
		{"a long time is for a graceful end", 595 * time.Second, 570 * time.Second, 585 * time.Second},
		{"half of a short time is", 24 * time.Second, 12 * time.Second, 20 * time.Second},
		{"no time", 0, 0, 0},
		{"too late", -time.Second, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, d := time.Now(), newDeadline()
				d.set(start.Add(test.end), terminateGrace)
				// A later call does not give more time.
				d.set(start.Add(time.Hour), terminateGrace)
				for signal, after := range []time.Duration{test.first, test.second} {
					<-d.over[signal]
					NewWithT(t).Expect(time.Since(start)).To(Equal(after))
				}
			})
		})
	}
}
