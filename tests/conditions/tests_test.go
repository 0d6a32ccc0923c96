package conditions_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/tests/pages"
)

// mentions reports whether the test, or something that it uses, names one of the constants or has the reason as a string.
func mentions(tests *pages.Tests, test, reason string, named []constant) bool {
	return tests.Uses(test, func(d *pages.Declaration) bool {
		return d.Literals[reason] || slices.ContainsFunc(named, func(constant constant) bool {
			return d.Selected[declaredIn[constant.file]+"."+constant.name] || d.Selected["meta."+constant.name]
		})
	})
}

func TestEveryReasonIsProvokedByATest(t *testing.T) {
	all, found := constants(t), pages.FindTests(t)
	for _, table := range tables {
		for _, row := range table.rows {
			if (row.state == notSet) == (len(row.tests) > 0) {
				t.Errorf("%s: %s has tests, unless it is never set", table.kind, row.reason)
			}
			var named []constant
			for _, one := range all {
				if one.reason == row.reason {
					named = append(named, one)
				}
			}
			for _, name := range row.tests {
				test, _, _ := strings.Cut(name, "/")
				if !mentions(found, test, row.reason, named) {
					t.Errorf("%s: %s does not name the reason %s", table.kind, name, row.reason)
				}
			}
		}
	}
}
