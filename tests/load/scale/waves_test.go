package main

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestPlacesThatBecomeFreeAreCountedWithinTheirWave(t *testing.T) {
	g := NewWithT(t)
	of := func(wave int, start, end time.Duration) span {
		return span{stack: fmt.Sprintf("stack-%d-0000", wave), start: int64(start), end: int64(end)}
	}
	ran := []span{of(0, 1, 10), of(0, 2, 20), of(0, 13, 30), of(0, 25, 40), of(1, 50, 60)}
	g.Expect(atOnce(ran)).To(Equal(2))
	g.Expect(freePlaces(ran)).To(ConsistOf(time.Duration(3), time.Duration(5)))
	g.Expect(checkOrder(ran)).To(Succeed())
	g.Expect(checkOrder(append(ran, of(1, 35, 36)))).NotTo(Succeed())
	g.Expect(atOnce(append(ran, of(1, 60, 70)))).To(Equal(2), "one ends when another begins")
}
