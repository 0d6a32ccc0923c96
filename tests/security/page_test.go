// Package security_test makes docs/security.md: what is written by hand, in page.tmpl, and for each promise the attacks on it, which it reads from
// the tables of tests/tenancy. It sees to it that every promise is attacked and that every test which is named exists.
package security_test

import (
	_ "embed"
	"flag"
	"fmt"
	"strings"
	"testing"
	"text/template"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/pages"
)

// document is the page, relative to the root of the repository.
const document = "docs/security.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

// updateCommand writes the page.
const updateCommand = "go test ./tests/security -update-docs"

//go:embed page.tmpl
var page string

func TestSecurityPageIsUpToDate(t *testing.T) {
	g := NewWithT(t)
	attacks, tests := findAttacks(t), pages.FindTests(t)
	var promised strings.Builder
	for i := range promises {
		writePromise(t, &promised, &promises[i], attacks, tests)
	}
	tmpl, err := template.New("page").Option("missingkey=error").Parse(page)
	g.Expect(err).NotTo(HaveOccurred())
	var made strings.Builder
	g.Expect(tmpl.Execute(&made, map[string]any{"promises": strings.TrimSpace(promised.String()), "attacks": len(attacks), "marks": pages.AboutMarks("../")})).To(Succeed())

	pages.Keep(t, document, made.String(), updateCommand, *updateDocs)
}

// writePromise writes a promise with the attacks on it and the tests that stand for it.
func writePromise(t *testing.T, out *strings.Builder, p *promise, attacks []attack, tests *pages.Tests) {
	fmt.Fprintf(out, "### %s\n\n%s\n", p.title, p.text)
	rows := 0
	for _, attack := range attacks {
		if attack.promise != p.name {
			continue
		}
		if rows == 0 {
			out.WriteString("\n| the attacker | result | test |\n|---|---|---|\n")
		}
		rows++
		fmt.Fprintf(out, "| %s | %s | [%s](../%s) |\n", pages.Cell(attack.does), pages.Cell(attack.sees), attack.name, attack.file)
	}
	var links []string
	for _, proof := range p.proofs {
		file, found := tests.File(proof)
		if !found {
			t.Errorf("%s: there is no test %s", p.name, proof)
		}
		links = append(links, fmt.Sprintf("[%s](../%s)%s", proof, file, tests.Mark(proof)))
	}
	if len(links) > 0 {
		fmt.Fprintf(out, "\nMore tests: %s.\n", strings.Join(links, ", "))
	}
	if rows+len(links) == 0 {
		t.Errorf("nothing stands for the promise %q", p.name)
	}
	out.WriteString("\n")
}

func TestEveryAttackIsOnAPromise(t *testing.T) {
	g := NewWithT(t)
	names := map[string]bool{}
	for _, promise := range promises {
		names[promise.name] = true
	}
	attacks := findAttacks(t)
	g.Expect(len(attacks)).To(BeNumerically(">=", 40))
	for _, attack := range attacks {
		g.Expect(names).To(HaveKey(attack.promise), attack.name)
		g.Expect(attack.does).NotTo(BeEmpty(), attack.name)
		g.Expect(attack.sees).To(MatchRegexp("`[A-Za-z0-9]+`"), "%s: a reason, a code or a field, which the attack compares with what it finds", attack.name)
	}
}
