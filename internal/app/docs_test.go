package app

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
)

const documentation = "../../docs/README.md"

var updateDocs = flag.Bool("update-docs", false, "write the table of flags into "+documentation)

// The table of flags stands between these lines.
const (
	flagsBegin = "<!-- flags: written by go test ./internal/app -run TestDocumentationListsEveryFlag -update-docs -->\n"
	flagsEnd   = "<!-- end of flags -->\n"
)

func TestDocumentationListsEveryFlag(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(documentation)
	g.Expect(err).NotTo(HaveOccurred())
	before, rest, found := strings.Cut(string(content), flagsBegin)
	g.Expect(found).To(BeTrue(), "no line %q", flagsBegin)
	table, after, found := strings.Cut(rest, flagsEnd)
	g.Expect(found).To(BeTrue(), "no line %q", flagsEnd)
	if *updateDocs {
		table = flagTable()
		g.Expect(os.WriteFile(documentation, []byte(before+flagsBegin+table+flagsEnd+after), 0o644)).To(Succeed())
	}
	g.Expect(table).To(Equal(flagTable()), "run: go test ./internal/app -run TestDocumentationListsEveryFlag -update-docs")
}

func flagTable() string {
	table := "\n| Name | Type | Default | Description |\n|------|------|---------|-------------|\n"
	(&options{}).flagSet().VisitAll(func(flag *pflag.Flag) {
		value := ""
		if flag.DefValue != "" {
			value = "`" + flag.DefValue + "`"
		}
		table += fmt.Sprintf("| `--%s` | %s | %s | %s |\n", flag.Name, flag.Value.Type(), value, flag.Usage)
	})
	return table + "\n"
}

func TestDocumentationListsEveryFeatureGate(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(documentation)
	g.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(content), "### Feature gates\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n#")
	for name, enabled := range featureGates() {
		g.Expect(section).To(ContainSubstring(fmt.Sprintf("\n| `%s` | `%t` | ", name, enabled)))
	}
	g.Expect(strings.Count(section, "\n| `")).To(Equal(len(featureGates())), "a gate that does not exist is documented")
}
