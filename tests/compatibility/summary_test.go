package compatibility_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/pages"
)

// maxShortPage is how many lines the short page has at most, so that it is read.
const maxShortPage = 120

// change is a difference that a user may notice.
type change struct {
	text string
	// row is the page of its row and the anchor there.
	row string
}

// changes are the differences on the short page, by subject.
var changes = []struct {
	subject string
	changes []change
}{
	{"Sources", []change{
		{"The controller fetches a source once and sends it to the workspaces. Pods need no access to source-controller or git servers.",
			"stacks.md#spec-fluxsource"},
		{"A commit that changes no file of the stack causes no update. Set `updateOn: Revision` to update for each commit.",
			"stacks.md#spec-updateon"},
		{"The commit in the status of a Stack with a Flux source or a Program is a digest. The revision is next to it.",
			"stacks.md#status-lastupdate-lastsuccessfulcommit"},
		{"The controller connects to a git server with SSH only if its host key is known.", "stacks.md#spec-gitauth-sshauth"},
		{"A Stack that waits for its source is not Stalled, and the reason is the exact cause.", "stacks.md#reason-sourceunavailable"},
	}},
	{"Secrets and configuration", []change{
		{"A Stack waits for a missing Secret, ConfigMap or key, and names it.", "stacks.md#spec-accesstokensecret"},
		{"Values of Secrets and ConfigMaps are read when an operation starts. They are not mounted into the pod as files.",
			"stacks.md#spec-configref"},
		{"A configuration key that is set twice is rejected.", "stacks.md#spec-secrets"},
		{"A change of `secretsProvider` re-encrypts an existing stack.", "stacks.md#spec-secretsprovider"},
	}},
	{"Lifecycle", []change{
		{"Failed updates are retried without limit. After three failures the Stack is also Stalled.", "stacks.md#reason-updatefailed"},
		{"Failed destroys are retried without limit.", "stacks.md#spec-destroyonfinalize"},
		{"Interrupted updates are repeated, and do not count as failures.", "stacks.md#status-lastupdate-interruptions"},
		{"A locked stack is not a failure. `retryOnUpdateConflict` shortens the wait.", "stacks.md#spec-retryonupdateconflict"},
		{"`expectNoRefreshChanges` has an effect: with `refresh`, an update that finds drift fails.",
			"stacks.md#spec-expectnorefreshchanges"},
		{"A stack that was deployed and is missing in its backend is not created again.", "stacks.md#status-deployedstack"},
		{"A Stack with `preview` that was deployed earlier is destroyed when it is deleted with `destroyOnFinalize`.",
			"stacks.md#spec-preview"},
	}},
	{"Status and conditions", []change{
		{"`Ready` is `Unknown` while an operation runs, and stays `True` during a resync.", "stacks.md#status-conditions"},
		{"The message of a failed update is the error. The whole output of Pulumi is in the log of the pod.",
			"stacks.md#status-lastupdate-message"},
		{"The names of Updates are hashes and do not contain the time.", "stacks.md#status-lastupdate-name"},
	}},
	{"Workspaces and pods", []change{
		{"The service account of a workspace needs no binding to `system:auth-delegator`.", "stacks.md#spec-serviceaccountname"},
		{"A Workspace is Ready when its agent can run operations. Each operation installs dependencies and selects its stack.",
			"workspaces.md#workspace-succeeded"},
		{"An operation continues while the controller restarts.", "workspaces.md#update-aborted"},
	}},
	{"Programs", []change{
		{"Unknown fields are not silently removed.", "programs.md#program-resources"},
		{"Programs can use all of Pulumi YAML. Fields that the operator removes have an effect.",
			"programs.md#program-resources-options-retainondelete"},
		{"The URL of a Program's artifact cannot be fetched. The controller sends the program to the workspace.",
			"programs.md#status-artifact"},
	}},
}

// shortPage is the page that leads to the others.
func shortPage(t *testing.T, tests *pages.Tests) string {
	t.Helper()
	var text, list strings.Builder
	for _, page := range documents {
		same, different, added := page.count()
		fmt.Fprintf(&list, "| [%s](compatibility/%s) | %d | %d | %d |\n",
			strings.TrimPrefix(page.title, "Compatibility of "), page.file, same, different, added)
	}
	fmt.Fprintf(&text, summaryHead, generated, list.String(), rulesPage)
	for _, subject := range changes {
		fmt.Fprintf(&text, "\n### %s\n\n", subject.subject)
		for _, change := range subject.changes {
			if row, found := findRow(change.row); found {
				fmt.Fprintf(&text, "- %s [%s](compatibility/%s)\n", change.text, quoted(row.field), change.row)
			}
		}
	}
	text.WriteString(pulumiVersions(t, tests))
	return text.String()
}

// count returns how many rows of the page are about what is the same, different, and new.
func (p page) count() (same, different, added int) {
	for _, table := range p.tables {
		for _, row := range table.rows {
			switch {
			case row.difference == "":
				same++
			case strings.HasPrefix(row.difference, "New"):
				added++
			default:
				different++
			}
		}
	}
	return same, different, added
}

// findRow finds the row that a link leads to.
func findRow(link string) (found row, ok bool) {
	file, anchor, _ := strings.Cut(link, "#")
	for _, page := range documents {
		for _, table := range page.tables {
			for _, row := range table.rows {
				if page.file == file && table.anchorOf(row) == anchor {
					return row, true
				}
			}
		}
	}
	return row{}, false
}

func TestChangesOnTheShortPageAreDifferencesInTheTables(t *testing.T) {
	g := NewWithT(t)
	var rows []string
	for _, subject := range changes {
		for _, change := range subject.changes {
			row, found := findRow(change.row)
			g.Expect(found).To(BeTrue(), "%s is not a row", change.row)
			g.Expect(row.difference).NotTo(BeEmpty(), change.row)
			g.Expect(rows).NotTo(ContainElement(change.row))
			rows = append(rows, change.row)
		}
	}
	g.Expect(len(rows)).To(And(BeNumerically(">=", 15), BeNumerically("<=", 25)))
	g.Expect(strings.Count(shortPage(t, pages.FindTests(t)), "\n")).To(BeNumerically("<=", maxShortPage))
}

func TestLinksToRowsAreUnique(t *testing.T) {
	g := NewWithT(t)
	for _, page := range documents {
		var anchors []string
		for _, table := range page.tables {
			for _, row := range table.rows {
				anchors = append(anchors, table.anchorOf(row))
			}
		}
		slices.Sort(anchors)
		g.Expect(slices.Compact(slices.Clone(anchors))).To(Equal(anchors), page.file)
	}
}

const summaryHead = `# Compatibility

%[1]s
Manifests for the Pulumi Kubernetes Operator, "the operator" on these pages, work with stack-controller without changes:

- The kinds, fields, conditions, annotations, labels, finalizers and printer columns of the operator exist, with the same names.
- The API server accepts the same objects, with [a few exceptions](compatibility/%[3]s).
- A field has the same meaning. Where it behaves differently, the tables below name the reason.

To migrate, follow the [migration guide](guides/migration.md). [Conditions](conditions.md) describes each reason of a condition.

## All fields

| page | same | different | new |
|---|---|---|---|
%[2]s
[Rules of the API server](compatibility/%[3]s) lists what the API server rejects here and accepts with the operator's CRDs.

Each row of these pages has a test that uses the field and a test that misuses it. A misused field is missing, malformed, hostile,
very large, or contradicts another one. The test expects that the API server rejects the object, or that a condition names the
mistake, and that the object recovers when the mistake is corrected. The tests run stack-controller with a real API server,
source-controller, git server and Pulumi CLI. Those in tests/pods run it on a node.

## Differences that you may notice
`
