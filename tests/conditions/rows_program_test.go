package conditions_test

var programRows = []row{
	{
		reason: "Succeeded", state: upToDate, constant: elsewhere,
		means: "The Program can be run.",
		tests: []string{"program.TestProgramThatNoStackUsesGetsItsArtifact"},
	},
	{
		reason: "ProgramInvalid", state: stalled,
		means: "The Program cannot be rendered, and its Stacks are not updated. The message has the path of the problem, for example `program.runtime`.",
		when:  "an edit",
		todo:  "Correct the field that the message names. See [limits](spec/v1/programs.md#limits).",
		tests: []string{"program.TestProgramThatCannotBeRenderedIsReportedAndRecoversWhenItIsMended"},
	},
}
