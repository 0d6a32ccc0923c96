package cli_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestLogsShowWhatPulumiPrintedInTheLastUpdate(t *testing.T) {
	p := begin(t, "logs")
	answer := ask(p.Scene, "logs", "stack", p.Name)
	p.Expect(answer.code).To(Equal(0), answer.err)
	p.Expect(answer.out).To(And(ContainSubstring("\nUpdating (dev):\n"), ContainSubstring("Outputs:\n"), Not(ContainSubstring(`"msg"`)), Not(ContainSubstring("operation ended"))))
	p.Expect(ask(p.Scene, "logs", "stack", p.Name, "--agent", "--timestamps").out).To(MatchRegexp(`(?m)^20\d\d-\S+Z? operation ended`))

	p.says(1, "logs stack nobody", `"nobody" not found`)
	p.says(1, "logs stack logs --update nothing", `"nothing" not found`)
}
