package conditions_test

var programRows = []row{
	{
		reason: "Succeeded", state: settled,
		means: "The Program can be run.",
		tests: []string{"program.TestProgramThatNoStackUsesGetsItsArtifact"},
	},
	{
		reason: "ProgramInvalid", state: stalled,
		means: "It cannot be run, and its Stacks are not updated. The message has the path of each problem, such as an unknown field.",
		when:  "edit",
		todo:  "Mend what the message names; see [the language](spec/v1/programs.md#the-language). An unknown field that the Pulumi Kubernetes Operator dropped silently has to be removed.",
		tests: []string{"program.TestUnknownFieldIsToldAndHealsWhenItIsMended"},
	},
}
