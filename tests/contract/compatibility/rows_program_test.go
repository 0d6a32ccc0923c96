package compatibility_test

import (
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
)

// Tests about the program itself. Its language is Pulumi's: pulumi receives what the Program has, and reports what is wrong with it.
const (
	wholeProgram   = "render.TestRenderedProgramsKeepTheirDigests"
	readAgain      = "render.TestRenderedProgramIsReadAsItWasWritten"
	wrongProgram   = "e2e.TestWhatOnlyPulumiCanFindWrongIsReportedByTheStack"
	unknownField   = "render.TestFieldsThatTheControllerDoesNotKnowReachPulumi"
	invalidProgram = "program.TestProgramThatCannotBeRenderedIsReportedAndRecoversWhenItIsMended"
)

var programRows = []row{
	{
		field: "configuration", operator: "The types `String`, `Number`, `List<Number>` and `List<String>`.", uses: []string{programUse + "configuration", wholeProgram},
		misuses:    []string{programMisuse + "configuration (unknown type)", programMisuse + "configuration (neither type nor default)", wrongProgram},
		difference: "All types of Pulumi YAML.", why: "A Program can do everything that a `Pulumi.yaml` can.",
	},
	same("configuration.*.type", "One of these types.", programUse+"configuration", programMisuse+"configuration (unknown type)",
		typed),
	same("configuration.*.default", "The default value.", programUse+"configuration",
		programMisuse+"configuration (neither type nor default)"),
	{
		field: "configuration.*.secret", operator: "None. The API server removes the field.",
		uses:       []string{programUse + "configuration.secret"},
		misuses:    []string{typed},
		difference: "New.", why: "Pulumi YAML has this field.",
	},
	same("variables", "Expressions.", programUse+"variables", programMisuse+"variables (no expression)",
		programMisuse+"variables (unknown name)", programMisuse+"variables (a circle)", programMisuse+"program (two megabytes)"),
	same("outputs", "Expressions.", programUse+"outputs", programMisuse+"outputs (unknown name)", typed),
	{
		field: "packages", operator: "Sources, as strings.",
		uses:       []string{wholeProgram},
		misuses:    []string{wrongProgram, typed},
		difference: "Objects are accepted as well.", why: "Pulumi YAML accepts both.",
	},
	{
		field: "resources", operator: "Resources. Unknown fields are removed without an error, so that another program runs.",
		uses:       []string{programUse + "resources"},
		misuses:    []string{programMisuse + "resources (without a type)", programMisuse + "resources (unknown field)", programMisuse + "program (runtime)", unknownField},
		difference: "Unknown fields are passed to Pulumi.", why: "A new field of Pulumi YAML works without a new release of the controller."},
	same("resources.*.type", "Required.", programUse+"resources", programMisuse+"resources (without a type)",
		programMisuse+"resources (unknown type)"),
	same("resources.*.properties", "An object.", programUse+"properties", wrongProgram),
	same("resources.*.options", "The options of the resource.", programUse+"options.provider", unknownField, typed),
	same("resources.*.options.additionalSecretOutputs", "Names.", programUse+"options.additionalSecretOutputs", typed),
	{field: "resources.*.options.aliases", operator: "URNs.", uses: []string{wholeProgram, readAgain}, misuses: []string{wrongProgram}},
	same("resources.*.options.customTimeouts", "Durations.", programUse+"options.customTimeouts", wrongProgram, typed),
	same("resources.*.options.customTimeouts.create", "A duration.", programUse+"options.customTimeouts", typed),
	same("resources.*.options.customTimeouts.update", "A duration.", programUse+"options.customTimeouts", typed),
	same("resources.*.options.customTimeouts.delete", "A duration.", programUse+"options.customTimeouts", typed),
	same("resources.*.options.deleteBeforeReplace", "A boolean.", readAgain, typed),
	same("resources.*.options.dependsOn", "Resources.", programUse+"options.dependsOn", wrongProgram),
	same("resources.*.options.ignoreChanges", "Paths.", readAgain, typed),
	same("resources.*.options.import", "An identifier.", readAgain, typed),
	same("resources.*.options.parent", "A resource.", programUse+"options.parent", wrongProgram),
	same("resources.*.options.protect", "A boolean.", readAgain, wrongProgram),
	same("resources.*.options.provider", "A resource.", programUse+"options.provider", wrongProgram),
	{
		field: "resources.*.options.providers", operator: "A map.",
		uses:       []string{readAgain},
		misuses:    []string{wrongProgram},
		difference: "A list is accepted as well.", why: "Pulumi YAML accepts both.",
	},
	same("resources.*.options.version", "A version.", programUse+"resources", typed),
	same("resources.*.get", "Reads a resource that is managed elsewhere.", programUse+"get", programMisuse+"get (beside properties)",
		typed),
	same("resources.*.get.id", "Required.", programUse+"get", programMisuse+"get (without an id)"),
	same("resources.*.get.state", "The known state of the resource.", programUse+"get", typed),
}

// newProgramRows returns the rows of the fields that the operator does not have and that have no row of their own. With the operator's
// definitions the API server removes these fields.
func newProgramRows() (rows []row) {
	for _, field := range newfields.Of(newfields.Programs) {
		path := strings.TrimPrefix(field.Path, "program.")
		if slices.ContainsFunc(programRows, func(row row) bool { return row.field == path }) {
			continue
		}
		rows = append(rows, row{
			field: path, operator: "None. The API server removes the field.", uses: []string{wholeProgram, readAgain}, misuses: []string{wrongProgram}, difference: "New.", why: "Pulumi YAML has this field.",
		})
	}
	return rows
}

var programStatusRows = []row{
	same("observedGeneration", "The last generation that was processed.", "program.TestProgramThatNoStackUsesGetsItsArtifact",
		"program.TestStatusIsWrittenOnceForEachChange"),
	{
		field: "artifact", operator: "A Flux artifact with the project, which the operator serves over HTTP.", uses: []string{"program.TestProgramThatNoStackUsesGetsItsArtifact", "program.TestEditOfAProgramIsANewRevision"},
		misuses:    []string{invalidProgram, "program.TestArtifactOfAProgramIsMadeUntilItChanges"},
		difference: "The URL of the artifact cannot be fetched.", why: "The controller sends the program to the workspace, so tenants cannot read the Programs of other tenants.",
	},
	added("conditions", "Problems of a Program are reported on the Program.", "program.TestProgramThatNoStackUsesGetsItsArtifact",
		invalidProgram),
}
