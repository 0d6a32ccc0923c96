package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestPlotHasTheNamesOfItsLines(t *testing.T) {
	suite.Long(t, "it compiles a library that draws")
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "memory.svg")
	rising := line{Name: "resident"}
	rising.add(100, 1)
	rising.add(200, 2)
	g.Expect(draw(t.Context(), path, "MB", []line{rising})).To(Succeed())
	drawn, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(drawn)).To(And(ContainSubstring("<svg"), ContainSubstring("resident"), ContainSubstring("MB")))

	path = filepath.Join(t.TempDir(), "missing", "memory.svg")
	g.Expect(draw(t.Context(), path, "MB", nil)).To(MatchError(ContainSubstring("no such file")))
}
