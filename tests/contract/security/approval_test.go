package security_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
)

// approvalStep is a step between the eyes of a reviewer and the process that changes resources.
type approvalStep struct {
	step string
	// attacker is who could break the step, and how. prevented is what prevents that.
	attacker, prevented string
	// proofs are the tests that try, as in a promise.
	proofs []string
}

var approvalSteps = []approvalStep{
	{
		step:      "The Stack asks for a plan.",
		attacker:  "creators of Updates: an Update with the name of the next one, owned by the Stack, that plans another program, or with its UID under another kind",
		prevented: "For a Stack with approvals, an Update counts only if the status of the Stack has its UID and its specification was never edited. An owner counts by kind and UID. An admission policy refuses such an owner.",
		proofs: []string{"stack.TestPlanThatSomebodyElseMadeIsNotThatOfTheStack", "admission.TestOnlyTheControllerOfAStackMakesAnUpdateOneOfTheStack",
			"stack.TestUpdateWithTheUIDOfTheStackAndAnotherKindIsNotFollowed"},
	},
	{
		step:      "The plan is about the inputs of the Stack.",
		attacker:  "editors of Updates: annotations that say another commit, or that the plan corrects drift",
		prevented: "The commit, the inputs and the operation of a plan are those that the status recorded when the Update was created.",
		proofs:    []string{"stack.TestNothingIsCarriedOutUnapprovedWhateverHappens"},
	},
	{
		step:      "A preview runs the program.",
		attacker:  "creators of Updates: a preview of their own program in the Workspace, with its credentials, or of another project of the backend",
		prevented: "In this Workspace, a preview runs only what comes from the source of the Stack, and only for its stack and project.",
		proofs:    []string{"update.TestUpdateByHandIsRefusedInAGatedWorkspace", "source.TestOnlyTheSourceOfAStackIsItsOwn"},
	},
	{
		step:      "The reviewer reads the diff.",
		attacker:  "creators of Secrets: another text in the Secret of the plan. Authors: a provider with the name of a default one, or a plan too long to be shown",
		prevented: "The digest of the text is a part of the digest of the plan, and `flux-pulumi plan show --diff` compares it before it prints. Each provider that changes is listed and counted, each step names its provider, and a text that cannot be shown to its end is an error.",
		proofs: []string{"cli.TestTextOfAPlanThatSomebodyReplacedIsNotShown", "cli.TestPlanThatIsNotShownToItsEndIsAFailure",
			"operation.TestProviderWithTheNameOfADefaultProviderIsShownAndCounted", "operation.TestChangeOfADefaultProviderIsShownAndCounted",
			"operation.TestPlanSaysWhichResourceItImports"},
	},
	{
		step:      "The reviewer approves a digest.",
		attacker:  "creators of Approvals: an Approval in the name of somebody else",
		prevented: "`spec.by` is the user who creates the Approval. It counts for one plan, by the UID of its Update and its digest.",
		proofs:    []string{"admission.TestApprovalIsByWhoMakesIt", "approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		step:      "The approval waits.",
		attacker:  "editors of the Stack: a weaker `spec.approval`",
		prevented: "That needs the verb `bypass`.",
		proofs:    []string{"admission.TestWhoEditsAStackCannotWeakenItsApproval"},
	},
	{
		step:      "The plan is made again.",
		attacker:  "anyone who changes what the program reads, then cancels the update, or gives the name of its plan to another Update",
		prevented: "Approvals are kept only if inputs and changes are equal, with their values, or if an update that had started failed and each remaining change is one of the approved ones, with its values and its provider. Those of a plan that was carried out are used up. The changes are those of the Update with the UID in the status. Values that Pulumi knows as secret look the same to the reviewer and to this comparison, unless they are inputs.",
		proofs: []string{"stack.TestApprovalsAreCarriedOverToTheSameChanges", "stack.TestApprovalsOfAPlanThatWasCarriedOutAreUsedUp", "operation.TestPlanThatUsesAnotherProviderIsAnotherPlan",
			"stack.TestChangesOfAnUpdateThatTookTheNameOfAPlanWereNotApproved"},
	},
	{
		step:      "An Update carries out the plan.",
		attacker:  "creators of Updates: an Update without the plan, with another one, or with another program",
		prevented: "Only the plan in the status of the Stack, approved and not expired, from the Update with its UID. The program is compared before it is delivered, and the agent compares all inputs before it starts any process.",
		proofs: []string{"update.TestUpdateByHandIsRefusedInAGatedWorkspace", "update.TestPlanIsOnlyCarriedOutByAnUpdateThatItIsFor",
			"operation.TestPlanIsComparedWithTheInputsBeforeAnyProcessStarts", "update.TestApprovedPlanIsCarriedOutWithItsProgramOnly"},
	},
	{
		step:      "The agent gets the plan file.",
		attacker:  "creators of Secrets: another file in the Secrets of the plan",
		prevented: "The digest of the file is a part of the digest of the plan, and the controller and the agent compare it.",
		proofs:    []string{"update.TestPlanIsOnlyCarriedOutByAnUpdateThatItIsFor", "e2e.TestPlanIsCarriedOutAsItIsOrNotAtAll"},
	},
	{
		step:      "The agent starts.",
		attacker:  "anyone who changes the source, the configuration, a Secret or the state",
		prevented: "The agent compares the digests of the inputs and of the state before it changes anything.",
		proofs:    []string{"e2e.TestRejectedPlanIsNotCarriedOut"},
	},
	{
		step:     "Pulumi changes resources.",
		attacker: "what the program reads itself: files, other stacks, ESC, invokes",
		prevented: "With `enforce: Plan`, Pulumi refuses each step that is not in the plan, and inputs with other values. Pulumi 3.276, and some version after 3.255 before it, " +
			"leaves out inputs whose names begin with `_`: among them is `__provider`, the code of a dynamic provider. The text of the plan says so for each. " +
			"With `enforce: Inputs`, nothing compares the steps: the approval then covers the inputs and the state only.",
	},
	{
		step:      "The Stack is deleted.",
		attacker:  "`kubectl delete stack --cascade=orphan`, which takes the owner away from the Workspace",
		prevented: "The Workspace is found by its name, has an annotation that says that approvals are required, and nothing runs in it if its Stack is gone.",
		proofs:    []string{"update.TestWorkspaceThatLostItsOwnerStaysGated"},
	},
}

// writeApprovalSteps writes the table of the steps.
func writeApprovalSteps(t *testing.T, out *strings.Builder, tests *pages.Tests) {
	t.Helper()
	out.WriteString("| step | who could break it, and how | what prevents it | tests |\n|---|---|---|---|\n")
	for _, step := range approvalSteps {
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", step.step, step.attacker, step.prevented, strings.Join(linksTo(t, step.proofs, tests), ", "))
	}
}
