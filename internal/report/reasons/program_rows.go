package reasons

var programRows = []Row{
	{
		Reason: "Succeeded", State: UpToDate, Constant: elsewhere,
		Means: "The Program can be run.",
		Tests: []string{"program.TestProgramThatNoStackUsesGetsItsArtifact"},
	},
	{
		Reason: "ProgramInvalid", State: Stalled,
		Means: "The Program cannot be rendered, and its Stacks are not updated. The message has the path of the problem, for example `program.runtime`.",
		When:  "an edit",
		Todo:  "Correct the field that the message names. See [limits](spec/v1/programs.md#limits).",
		Tests: []string{"program.TestProgramThatCannotBeRenderedIsReportedAndRecoversWhenItIsMended"},
	},
}
