package features_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/stack-controller/stack-controller/internal/features"
)

func parse(g Gomega, args ...string) *features.Gates {
	gates := &features.Gates{}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	gates.BindFlags(flags)
	g.Expect(flags.Parse(args)).To(Succeed())
	return gates
}

func TestGatesHaveTheirDefaultsUnlessSet(t *testing.T) {
	g := NewWithT(t)
	gates := parse(g)
	g.Expect(gates.Validate()).To(Succeed())
	for name, enabled := range features.Defaults() {
		g.Expect(gates.Enabled(name)).To(Equal(enabled), name)
	}

	gates = parse(g, "--feature-gates=ExternalArtifact=false")
	g.Expect(gates.Validate()).To(Succeed())
	g.Expect(gates.Enabled(features.ExternalArtifact)).To(BeFalse())
}

func TestUnknownGateIsAnErrorThatListsTheKnownOnes(t *testing.T) {
	g := NewWithT(t)
	gates := parse(g, "--feature-gates=ExternalArtefact=true")
	g.Expect(gates.Validate()).To(MatchError(
		`unknown feature gate "ExternalArtefact", known are ExternalArtifact`))
}
