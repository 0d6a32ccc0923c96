package compatibility_test

// The names under which rows speak of tests of this package.
const (
	typed = "compatibility.TestFieldsOfAnotherTypeAreRefusedByName"

	identityUse    = "compatibility.TestIdentityFieldsWork/"
	identityMisuse = "compatibility.TestMisusedIdentityFieldsAreExplainedAndHeal/"

	configUse    = "compatibility.TestConfigurationFieldsWork/"
	configMisuse = "compatibility.TestMisusedConfigurationFieldsAreExplainedAndHeal/"

	sourceUse    = "compatibility.TestSourceFieldsWork/"
	sourceMisuse = "compatibility.TestMisusedSourceFieldsAreExplainedAndHeal/"

	gitUse    = "compatibility.TestGitFieldsWork/"
	gitMisuse = "compatibility.TestMisusedGitFieldsAreExplainedAndHeal/"

	lifecycleUse    = "compatibility.TestLifecycleFieldsWork/"
	lifecycleMisuse = "compatibility.TestMisusedLifecycleFieldsAreExplainedAndHeal/"
	lifecycleOdd    = "compatibility.TestOddCombinationsOfLifecycleFieldsAreHarmless/"

	statusUse    = "compatibility.TestStatusFieldsTellWhatWasDone"
	statusFailed = "compatibility.TestStatusFieldsTellWhatWentWrong"
	statusEdited = "compatibility.TestStatusThatSomebodyEditedIsPutRight/"
	statusTyped  = "compatibility.TestStatusOfAnotherTypeIsRefused"

	programUse    = "compatibility.TestProgramFieldsWork/"
	programMisuse = "compatibility.TestMisusedProgramFieldsAreExplainedAndHeal/"
)

const stacks, programDefinition = "pulumi.com_stacks.yaml", "pulumi.com_programs.yaml"

// wholes are fields whose row speaks of all fields below them.
var wholes = []string{"dependsOn", "history", "lastUpdate.resourceChanges", "gitAuth.knownHostsRef", "gitAuth.certSecretRef", "gitAuth.proxySecretRef",
	"components", "pulumi", "configuration.*.items", "artifact"}

const introduction = `# Compatibility

<!-- Written by ` + updateCommand + ` from the rows in tests/compatibility. -->

Manifests that were written for the Pulumi Kubernetes Operator work here as they are. This page has each field of its API: what the
operator does with it, what is different here and why, a test that uses it and a test that misuses it. The tests run
stack-controller as a process beside a real kube-apiserver, source-controller, git server and pulumi CLI, or with pods on a real
node (those in tests/pods), with manifests as a user writes them.

*Misused* is: missing, malformed, hostile, huge or contradictory. The test then expects what the user sees, which is a refusal by the
API server or a condition with a reason and a message that names the culprit, and that everything heals when it is mended.

How to change over is in the [migration guide](guides/migration.md); what each reason means is in [conditions](conditions.md).
`

// tables are all parts of the page.
var tables = []table{
	{
		heading:    "Stack: identity, backend, environment",
		about:      "Fields below `spec` of a Stack (`pulumi.com/v1`).",
		definition: stacks, top: "spec", rows: identityRows,
	},
	{heading: "Stack: configuration", about: "Fields below `spec`.", definition: stacks, top: "spec", rows: configurationRows},
	{heading: "Stack: source", about: "Fields below `spec`.", definition: stacks, top: "spec", rows: sourceRows},
	{heading: "Stack: lifecycle", about: "Fields below `spec`.", definition: stacks, top: "spec", rows: lifecycleRows},
	{heading: "Stack: fields that the operator does not have", about: "Fields below `spec`. No manifest needs them.", definition: stacks, top: "spec", rows: newRows},
	{heading: "Stack: status", about: "Fields below `status`.", definition: stacks, top: "status", rows: statusRows},
	{heading: "Stack: reasons of conditions", about: "Reasons of `Ready`, `Reconciling` and `Stalled`.", rows: append(reasonRows, newReasonRows()...)},
	{heading: "Stack: names, columns, versions", about: "What scripts and tools rely on besides fields.", rows: nameRows},
	{heading: "Program", about: "Fields below `program`, which is beside `metadata`, of a Program (`pulumi.com/v1`).", definition: programDefinition, top: "program", rows: append(programRows, newProgramRows()...)},
	{heading: "Program: status", about: "Fields below `status`.", definition: programDefinition, top: "status", rows: programStatusRows},
}
