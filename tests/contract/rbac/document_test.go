package rbac_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const updateCommand = "go test ./tests/contract/rbac -run TestTableOfRightsIsUpToDate -update-docs"

var updateDocs = flag.Bool("update-docs", false, "write docs/rbac.md")

const introduction = `# RBAC

<!-- Written by ` + updateCommand + ` from the rows in tests/contract/rbac. -->

This page lists each permission that [config/rbac](../config/rbac) grants to the controller, why the controller needs it, and what
fails without it. A [test](../tests/contract/rbac/rights_test.go) removes the permissions of each row on a real API server, and checks the last
column, in the [long suite](../CONTRIBUTING.md#tests). Unless the row says otherwise, a running controller sends the requests there. No
permission is granted without a row, and none with ` + "`*`" + `.

With [config/namespaced](../config/namespaced), and in the chart with ` + "`controller.watchAllNamespaces=false`" + `, all permissions are in a
Role and apply only to the namespace of the controller. Agents in workspace pods need no permissions.
`

const forOutputs = `
## For objects with outputs, where you grant it

None of the roles above has these rights. [Objects with outputs](spec/v1/stacks.md#objects-with-outputs) need them, in one of two ways: a Role
in the namespace of the Stack, with the names of its objects, which ` + "`flux-pulumi outputs grant`" + ` prints; or in the chart
` + "`outputs.clusterWide=true`" + `, which grants them for all Secrets and ConfigMaps. The controller writes only objects that it has created for a
Stack, but a Role protects the others also from its mistakes.

| API group | resource | verbs | why | without it |
|---|---|---|---|---|
| core | ` + "`secrets`, `configmaps`" + ` | create, patch | To apply the object. | The Stack reports ` + "`OutputsNotWritten`" + `. |
| core | ` + "`secrets`, `configmaps`" + ` | delete | To delete an object that the Stack no longer names, and to create one anew whose type has changed. | The same. |
`

const forDependencies = `
## For dependencies on other kinds

With ` + "`spec.dependsOn`" + `, a Stack can wait for [objects of other kinds](spec/v1/stacks.md#dependencies-on-other-kinds), which the flag
` + "`--dependency-kinds`" + ` lists. The controller needs the verbs get, list and watch for each of them, and uses them for no other kind. It watches
only metadata, and reads an object when a Stack waits for it. The roles above have these rights for the kinds of the
default. In the chart, the value ` + "`dependencyKinds`" + ` sets both the flag and the rights, so that a kind which is not listed cannot be read:

` + "```" + `
dependencyKinds:
  - {group: helm.toolkit.fluxcd.io, kind: HelmRelease, resource: helmreleases}
  - {group: apps, kind: Deployment, resource: deployments}
` + "```" + `

Otherwise, set the flag, bind a further ClusterRole for the kinds that you add, and remove the rules of the kinds that you do not list.
`

var sections = []struct{ role, title string }{
	{clusterRole, "In each namespace that it watches"},
	{electionRole, "In its own namespace, for leader election"},
	{tokenRole, "In its own namespace, to identify itself to agents"},
}

func TestTableOfRightsIsUpToDate(t *testing.T) {
	var page strings.Builder
	page.WriteString(introduction)
	for _, section := range sections {
		fmt.Fprintf(&page, "\n## %s\n\n| API group | resource | verbs | why | without it |\n|---|---|---|---|---|\n", section.title)
		for _, row := range rows {
			if row.role == section.role {
				group := row.group
				if group == "" {
					group = "core"
				}
				fmt.Fprintf(&page, "| %s | `%s` | %s | %s | %s |\n", group, row.resource, strings.Join(row.verbs, ", "), row.why, row.without+sentBy(row))
			}
		}
	}
	page.WriteString(forDependencies)
	page.WriteString(forOutputs)
	pages.Keep(t, "docs/rbac.md", page.String(), updateCommand, *updateDocs)
}

// sentBy returns a note for a row whose request the test sends instead of the controller.
func sentBy(r row) string {
	if byHand[r.resource] == "" {
		return ""
	}
	return " The test sends this request itself. " + byHand[r.resource]
}

// Every right needs a row, and every row a right.
func TestEveryRightHasARow(t *testing.T) {
	g := NewWithT(t)
	var given, written []right
	for _, file := range []string{"role.yaml", "leader_election_role.yaml", "token_request_role.yaml"} {
		content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "rbac", file))
		g.Expect(err).NotTo(HaveOccurred())
		role := &rbacv1.ClusterRole{} // a Role looks the same
		g.Expect(yaml.Unmarshal(content, role)).To(Succeed())
		for _, rule := range single(role.Rules) {
			given = append(given, right{role.Name, rule.APIGroups[0], rule.Resources[0], rule.Verbs[0]})
		}
	}
	for _, row := range rows {
		g.Expect(row.why).NotTo(BeEmpty())
		g.Expect(row.without).NotTo(BeEmpty())
		g.Expect(row.provoke == nil).To(Equal(slices.Equal(row.verbs, read)), "%s", row.resource)
		written = append(written, row.rights()...)
	}
	g.Expect(written).To(ConsistOf(given))
}
