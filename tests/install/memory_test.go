package install_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestGoGetsTheMemoryLimitOfTheContainer(t *testing.T) {
	t.Parallel()
	for way, rendered := range map[string]objects{"the chart": template(t), "kustomize": kustomize(t, inRepository("config/default"))} {
		NewWithT(t).Expect(manager(t, rendered.get(t, "Deployment", "stack-controller"), "env")).To(ContainElement(And(HaveKeyWithValue("name", "GOMEMLIMIT"),
			HaveKeyWithValue("valueFrom", HaveKeyWithValue("resourceFieldRef", HaveKeyWithValue("resource", "limits.memory"))))), way)
	}
}
