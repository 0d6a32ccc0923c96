package compatibility_test

// The language, whose fields internal/program knows.
const (
	wholeProgram = "program.TestTheWholeLanguageIsAccepted"
	readAgain    = "program.TestRenderedProgramIsReadAsItWasWritten"
	wrongProgram = "program.TestWhatIsWrongIsToldWithItsPath"
)

var programRows = []row{
	{
		field: "configuration", operator: "Types String, Number, List<Number>, List<String>.", uses: []string{programUse + "configuration", "program.TestEveryTypeOfConfigurationIsAccepted"},
		misuses:    []string{programMisuse + "configuration (unknown type)", programMisuse + "configuration (neither type nor default)", wrongProgram},
		difference: "All types of Pulumi YAML.", why: "A Program can do what a `Pulumi.yaml` can.",
	},
	{
		field: "configuration.*.type", operator: "One of the above.",
		uses:    []string{programUse + "configuration"},
		misuses: []string{programMisuse + "configuration (unknown type)", typed},
	},
	{
		field: "configuration.*.default", operator: "A value.",
		uses:    []string{programUse + "configuration"},
		misuses: []string{programMisuse + "configuration (neither type nor default)"},
	},
	{
		field: "configuration.*.secret", operator: "None, and pruned.",
		uses:       []string{programUse + "configuration.secret"},
		misuses:    []string{typed},
		difference: "New.", why: "Pulumi YAML has it.",
	},
	{field: "variables", operator: "Expressions.", uses: []string{programUse + "variables"},
		misuses: []string{programMisuse + "variables (no expression)", programMisuse + "variables (unknown name)", programMisuse + "variables (a circle)", programMisuse + "program (two megabytes)"}},
	{
		field: "outputs", operator: "Expressions.",
		uses:    []string{programUse + "outputs"},
		misuses: []string{programMisuse + "outputs (unknown name)", typed},
	},
	{
		field: "packages", operator: "Sources, as text.",
		uses:       []string{wholeProgram},
		misuses:    []string{wrongProgram, typed},
		difference: "Objects, too.", why: "Pulumi YAML has it.",
	},
	{
		field: "resources", operator: "Resources. Unknown fields are pruned, and another program runs without a word.",
		uses:       []string{programUse + "resources"},
		misuses:    []string{programMisuse + "resources (without a type)", programMisuse + "resources (unknown field)", programMisuse + "program (unknown field)"},
		difference: "Unknown fields are `ProgramInvalid`, with their path.", why: "What is not understood must not be left out."},
	{
		field: "resources.*.type", operator: "Required.",
		uses:    []string{programUse + "resources"},
		misuses: []string{programMisuse + "resources (without a type)", programMisuse + "resources (unknown type)"},
	},
	{field: "resources.*.properties", operator: "An object.", uses: []string{programUse + "properties"}, misuses: []string{wrongProgram}},
	{
		field: "resources.*.options", operator: "Options.",
		uses:    []string{programUse + "options.provider"},
		misuses: []string{programMisuse + "options (unknown field)", typed},
	},
	{
		field: "resources.*.options.additionalSecretOutputs", operator: "Names.",
		uses:    []string{programUse + "options.additionalSecretOutputs"},
		misuses: []string{typed},
	},
	{field: "resources.*.options.aliases", operator: "URNs.", uses: []string{wholeProgram, readAgain}, misuses: []string{wrongProgram}},
	{
		field: "resources.*.options.customTimeouts", operator: "Durations.",
		uses:    []string{programUse + "options.customTimeouts"},
		misuses: []string{wrongProgram, typed},
	},
	{
		field: "resources.*.options.customTimeouts.create", operator: "A duration.",
		uses:    []string{programUse + "options.customTimeouts"},
		misuses: []string{typed},
	},
	{
		field: "resources.*.options.customTimeouts.update", operator: "A duration.",
		uses:    []string{programUse + "options.customTimeouts"},
		misuses: []string{typed},
	},
	{
		field: "resources.*.options.customTimeouts.delete", operator: "A duration.",
		uses:    []string{programUse + "options.customTimeouts"},
		misuses: []string{typed},
	},
	{field: "resources.*.options.deleteBeforeReplace", operator: "A boolean.", uses: []string{readAgain}, misuses: []string{typed}},
	{
		field: "resources.*.options.dependsOn", operator: "Resources.",
		uses:    []string{programUse + "options.dependsOn"},
		misuses: []string{wrongProgram},
	},
	{field: "resources.*.options.ignoreChanges", operator: "Paths.", uses: []string{readAgain}, misuses: []string{typed}},
	{field: "resources.*.options.import", operator: "An identifier.", uses: []string{readAgain}, misuses: []string{typed}},
	{
		field: "resources.*.options.parent", operator: "A resource.",
		uses:    []string{programUse + "options.parent"},
		misuses: []string{wrongProgram},
	},
	{field: "resources.*.options.protect", operator: "A boolean.", uses: []string{readAgain}, misuses: []string{wrongProgram}},
	{
		field: "resources.*.options.provider", operator: "A resource.",
		uses:    []string{programUse + "options.provider"},
		misuses: []string{wrongProgram},
	},
	{
		field: "resources.*.options.providers", operator: "A map.",
		uses:       []string{readAgain},
		misuses:    []string{wrongProgram},
		difference: "A list, too.", why: "Pulumi YAML has it.",
	},
	{field: "resources.*.options.version", operator: "A version.", uses: []string{programUse + "resources"}, misuses: []string{typed}},
	{
		field: "resources.*.get", operator: "Reads a resource that others manage.",
		uses:    []string{programUse + "get"},
		misuses: []string{programMisuse + "get (beside properties)", typed},
	},
	{
		field: "resources.*.get.id", operator: "Required.",
		uses:    []string{programUse + "get"},
		misuses: []string{programMisuse + "get (without an id)"},
	},
	{field: "resources.*.get.state", operator: "What is known of it.", uses: []string{programUse + "get"}, misuses: []string{typed}},
}

// newProgramFields are those that the operator does not have, and prunes.
var newProgramFields = []string{
	"author", "components", "config", "configuration.*.items", "configuration.*.name", "configuration.*.value", "description", "license", "plugins", "pulumi",
	"requiredPulumiVersion", "website", "resources.*.defaultProvider", "resources.*.name", "resources.*.options.deletedWith",
	"resources.*.options.envVarMappings", "resources.*.options.hideDiffs", "resources.*.options.pluginDownloadURL", "resources.*.options.replaceOnChanges",
	"resources.*.options.replaceWith", "resources.*.options.replacementTrigger", "resources.*.options.retainOnDelete",
}

// newProgramRows are the rows of these.
func newProgramRows() (rows []row) {
	for _, field := range newProgramFields {
		rows = append(rows, row{
			field: field, operator: "None, and pruned.", uses: []string{wholeProgram, readAgain}, misuses: []string{wrongProgram}, difference: "New.", why: "Pulumi YAML has it.",
		})
	}
	return rows
}

var programStatusRows = []row{
	{
		field: "observedGeneration", operator: "The generation that was seen.",
		uses:    []string{"program.TestProgramThatNoStackUsesGetsItsArtifact"},
		misuses: []string{"program.TestStatusIsWrittenOnceForEachChange"},
	},
	{
		field: "artifact", operator: "A Flux artifact with the project, which the operator serves over HTTP.", uses: []string{"program.TestProgramThatNoStackUsesGetsItsArtifact", "program.TestEditOfAProgramIsANewRevision"},
		misuses:    []string{"program.TestUnknownFieldIsToldAndHealsWhenItIsMended", "program.TestArtifactOfAProgramIsMadeUntilItChanges"},
		difference: "Its URL cannot be fetched.", why: "The controller delivers it, so no tenant can read the programs of another one.",
	},
	{
		field: "conditions", operator: "None.",
		uses:       []string{"program.TestProgramThatNoStackUsesGetsItsArtifact"},
		misuses:    []string{"program.TestUnknownFieldIsToldAndHealsWhenItIsMended"},
		difference: "New.", why: "What is wrong with a program is said where it is.",
	},
}
