package conditions_test

var approvalRows = []row{
	{
		reason: "ApprovalCounts", state: upToDate,
		means: "The Approval is about the plan of the Stack, with exactly its digest.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		reason: "PlanNotFound", state: stalled,
		means: "There is no Update with this name that has saved a plan, or it was created after the Approval.",
		todo:  "Take the name and the digest of the plan from `status.plan` of the Stack.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		reason: "DigestMismatch", state: stalled,
		means: "The plan has another digest.",
		todo:  "Look at the plan again, and approve what you see.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		reason: "PlanSuperseded", state: stalled,
		means: "The Stack has another plan, or has already carried out this one.",
		todo:  "Look at the plan in `status.plan` of the Stack.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		reason: "PlanRejected", state: stalled,
		means: "Somebody rejected the plan before. An approval cannot take a rejection back.",
		todo:  "Change the source or the spec, or request another plan with `flux-pulumi reconcile stack`, and approve that one.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		reason: "PlanExpired", state: stalled,
		means: "The plan was not approved in time, and is made again.",
		todo:  "Look at the new plan.",
		tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
}
