package command

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestThePatchOfTheQuickstartMeansTheSameInAllShells(t *testing.T) {
	g := NewWithT(t)
	g.Expect(quickstartBreak).NotTo(ContainSubstring("%")) // of cmd.exe, and of formats
	g.Expect(quickstartBreak).NotTo(MatchRegexp("[\"'`$!\\\\^]"))
	var program pulumiv1.Program
	g.Expect(yaml.UnmarshalStrict([]byte(quickstartBreak), &program)).To(Succeed())
	g.Expect(program.Program.Configuration).To(HaveKey("broken"))
}
