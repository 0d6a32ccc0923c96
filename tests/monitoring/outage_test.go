package monitoring_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// The counters of the next controller begin at zero, so that this test is behind those that read them.
func TestAlertFiresWhileTheControllerIsDown(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	firing := func() ([]alert, error) { return observed.firing(t.Context(), "StackControllerDown") }
	// Prometheus looks for the next one at the same place.
	address := system.MetricsAddr
	g.Expect(system.StopController()).To(Succeed())
	eventually(g, firing).Should(HaveLen(1))
	g.Expect(system.StartController(t.Context(), "--metrics-addr="+address)).To(Succeed())
	eventually(g, firing).Should(BeEmpty())
}
