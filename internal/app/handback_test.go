package app

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	runtimectrl "github.com/fluxcd/pkg/runtime/controller"
)

func TestHandBackHasFlagsOfItsOwn(t *testing.T) {
	g := NewWithT(t)
	t.Setenv(runtimectrl.EnvRuntimeNamespace, "")
	o, err := parseHandBackOptions(nil, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.namespace).To(BeEmpty())
	g.Expect(o.controllerNamespace).To(Equal("flux-system"))
	g.Expect(o.dryRun).To(BeFalse())
	g.Expect(o.timeout).To(Equal(15 * time.Minute))

	t.Setenv(runtimectrl.EnvRuntimeNamespace, "elsewhere")
	o, err = parseHandBackOptions([]string{"--dry-run", "--namespace=apps"}, io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.controllerNamespace).To(Equal("elsewhere"))
	g.Expect(o.dryRun).To(BeTrue())
	g.Expect(o.namespace).To(Equal("apps"))

	var help strings.Builder
	g.Expect(run(t.Context(), "dev", []string{"hand-back", "--help"}, &help)).To(Succeed())
	g.Expect(help.String()).To(And(ContainSubstring("stack-controller hand-back [flags]"), ContainSubstring("--dry-run")))
	for _, args := range [][]string{{"apps"}, {"--timeout=0s"}, {"--no-such-flag"}} {
		var usage *usageError
		g.Expect(errors.As(run(t.Context(), "dev", append([]string{"hand-back"}, args...), io.Discard), &usage)).To(BeTrue(), "%s", args)
	}
}
