package compatibility_test

// The names with which rows refer to tests of this package.
const (
	typed = "compatibility.TestFieldsOfAnotherTypeAreRefusedByName"

	identityUse    = "compatibility.TestIdentityFieldsWork/"
	identityMisuse = "compatibility.TestMisusedIdentityFieldsAreExplainedAndRecover/"

	configUse    = "compatibility.TestConfigurationFieldsWork/"
	configMisuse = "compatibility.TestMisusedConfigurationFieldsAreExplainedAndRecover/"

	sourceUse    = "compatibility.TestSourceFieldsWork/"
	sourceMisuse = "compatibility.TestMisusedSourceFieldsAreExplainedAndRecover/"

	gitUse    = "compatibility.TestGitFieldsWork/"
	gitMisuse = "compatibility.TestMisusedGitFieldsAreExplainedAndRecover/"

	lifecycleUse    = "compatibility.TestLifecycleFieldsWork/"
	lifecycleMisuse = "compatibility.TestMisusedLifecycleFieldsAreExplainedAndRecover/"
	lifecycleOdd    = "compatibility.TestOddCombinationsOfLifecycleFieldsAreHarmless/"

	statusUse    = "compatibility.TestStatusFieldsShowWhatWasDone"
	statusFailed = "compatibility.TestStatusFieldsShowWhatWentWrong"
	statusEdited = "compatibility.TestStatusThatSomebodyEditedIsPutRight/"
	statusTyped  = "compatibility.TestStatusOfAnotherTypeIsRefused"

	programUse    = "compatibility.TestProgramFieldsWork/"
	programMisuse = "compatibility.TestMisusedProgramFieldsAreExplainedAndRecover/"
)

// same returns the row of a field that works as with the operator, with a test that uses it.
func same(field, operator, use string, misuses ...string) row {
	return row{field: field, operator: operator, uses: []string{use}, misuses: misuses}
}

// added returns the row of a field that the operator does not have.
func added(field, why, use string, misuses ...string) row {
	return row{field: field, operator: "None.", uses: []string{use}, misuses: misuses, difference: "New.", why: why}
}

const stacks, programDefinition = "pulumi.com_stacks.yaml", "pulumi.com_programs.yaml"

// wholes lists the fields whose row covers all fields below them.
var wholes = []string{"dependsOn", "inputs", "outputs", "shareOutputs", "rolloutRef", "windows", "outputObjects", "storedOutputs", "approval", "plan", "drift", "pulumiCloud", "history", "lastUpdate.resourceChanges", "gitAuth.knownHostsRef", "gitAuth.certSecretRef", "gitAuth.proxySecretRef",
	"components", "pulumi", "configuration.*.items", "artifact"}

// documents lists the pages with all tables.
var documents = []page{
	{
		file: "stacks.md", title: "Compatibility of Stacks",
		introduction: `Each field of a Stack (` + "`pulumi.com/v1`" + `): what the Pulumi Kubernetes Operator does with it, what is different here and why. See
[compatibility](../compatibility.md) for a summary, and [Stacks](../spec/v1/stacks.md) for the specification.`,
		tables: []table{
			{
				heading: "Identity, backend, environment", about: "Fields under `spec`.",
				anchor: "spec", definition: stacks, top: "spec", rows: identityRows,
			},
			{heading: "Configuration", about: "Fields under `spec`.", anchor: "spec", definition: stacks, top: "spec", rows: configurationRows},
			{heading: "Source", about: "Fields under `spec`.", anchor: "spec", definition: stacks, top: "spec", rows: sourceRows},
			{heading: "Lifecycle", about: "Fields under `spec`.", anchor: "spec", definition: stacks, top: "spec", rows: lifecycleRows},
			{
				heading: "New fields", about: "Optional fields under `spec` that the operator does not have.",
				anchor: "spec", definition: stacks, top: "spec", rows: newRows,
			},
			{heading: "Status", about: "Fields under `status`.", anchor: "status", definition: stacks, top: "status", rows: statusRows},
			{
				heading: "Reasons of conditions", about: "Reasons of `Ready`, `Reconciling` and `Stalled`. See [conditions](../conditions.md#stack).",
				anchor: "reason", rows: append(reasonRows, newReasonRows()...),
			},
			{heading: "Names, columns, versions", about: "What scripts and tools use besides fields.", anchor: "name", rows: nameRows},
		},
	},
	{
		file: "workspaces.md", title: "Compatibility of Workspaces and Updates",
		introduction: `The reasons of conditions: when the Pulumi Kubernetes Operator uses them, what is different here and why. See
[compatibility](../compatibility.md) for a summary, and [Workspaces](../spec/v1/workspaces.md) and [Updates](../spec/v1/updates.md) for all fields.`,
		tables: []table{
			{
				heading: "Workspaces", anchor: "workspace", rows: workspaceReasonRows,
				about: "Reasons of `Ready` and `Stalled` of a Workspace (`auto.pulumi.com/v1alpha1`). See [conditions](../conditions.md#workspace).",
			},
			{
				heading: "Updates", anchor: "update", rows: updateReasonRows,
				about: "Reasons of `Progressing`, `Failed` and `Complete` of an Update (`auto.pulumi.com/v1alpha1`). See [conditions](../conditions.md#update).",
			},
		},
	},
	{
		file: "programs.md", title: "Compatibility of Programs",
		introduction: `Each field of a Program (` + "`pulumi.com/v1`" + `): what the Pulumi Kubernetes Operator does with it, what is different here and why. See
[compatibility](../compatibility.md) for a summary, and [Programs](../spec/v1/programs.md) for the specification.`,
		tables: []table{
			{
				heading: "Program", about: "Fields under `program`, which is at the top level of the object, next to `metadata`.",
				anchor: "program", definition: programDefinition, top: "program", rows: append(programRows, newProgramRows()...),
			},
			{heading: "Status", about: "Fields under `status`.", anchor: "status", definition: programDefinition, top: "status", rows: programStatusRows},
		},
	},
}
