package compatibility_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/tests/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// oldestTest is the test that runs the oldest CLI.
const oldestTest = "operation.TestOldestCLIDoesAllThatMatters"

// pulumiVersions is the part of the page about versions of the pulumi CLI.
func pulumiVersions(t *testing.T, tests *pages.Tests) string {
	t.Helper()
	var part strings.Builder
	fmt.Fprintf(&part, `
## Versions of the pulumi CLI

A Workspace runs the Pulumi CLI of its image. As with the operator, any version 3 is accepted. Each change is tested with
%[3]s, and the long suite also runs the main scenarios with %[1]s, the oldest version that is tested (%[2]s).
No test runs the versions between them, or newer ones.

An Update that needs a flag that its CLI does not have fails with `+"`ConfigInvalid`"+`. Except for structured configuration, nothing else is
rejected.

| since | feature | with older versions |
|---|---|---|
`, pinned(t, "pulumi-oldest"), tests.Links(t, []string{oldestTest}, "../"), pinned(t, "pulumi"))
	for _, feature := range cli.Features() {
		fmt.Fprintf(&part, "| %s | %s | %s |\n", feature.Since, feature.Name, pages.Cell(feature.Without))
	}
	return part.String()
}

// pinned returns the version of the pulumi CLI that the tool is built from.
func pinned(t *testing.T, tool string) string {
	t.Helper()
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "tests", "tools", tool, "go.mod"))
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(`\tgithub\.com/pulumi/pulumi/pkg/v3 v(\S+)`).FindSubmatch(content)
	g.Expect(found).NotTo(BeNil())
	return string(found[1])
}
