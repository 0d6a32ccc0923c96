package suite_test

import (
	"flag"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestEachPassRunsTheTestsOnce(t *testing.T) {
	g := NewWithT(t)
	count := flag.Lookup("test.count").Value
	before := count.String()
	t.Cleanup(func() { _ = count.Set(before) })
	g.Expect(count.Set("3")).To(Succeed())
	passes := 0
	code := suite.EachPass(func() int {
		g.Expect(count.String()).To(Equal("1"))
		passes++
		return passes % 3 // the last pass is green
	})
	g.Expect(passes).To(Equal(3))
	g.Expect(code).To(Equal(2), "of the worst pass")
}
