package reasons

var approvalRows = []Row{
	{
		Reason: "ApprovalCounts", State: UpToDate,
		Means: "The Approval is about the plan of the Stack, with exactly its digest.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		Reason: "PlanNotFound", State: Stalled,
		Means: "There is no Update with this name that has saved a plan, or it was created after the Approval.",
		Todo:  "Take the name and the digest of the plan from `status.plan` of the Stack.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		Reason: "DigestMismatch", State: Stalled,
		Means: "The plan has another digest.",
		Todo:  "Look at the plan again, and approve what you see.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		Reason: "PlanSuperseded", State: Stalled,
		Means: "The Stack has another plan, or has already carried out this one.",
		Todo:  "Look at the plan in `status.plan` of the Stack.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		Reason: "PlanRejected", State: Stalled,
		Means: "Somebody rejected the plan before. An approval cannot take a rejection back.",
		Todo:  "Change the source or the spec, or request another plan with `flux-pulumi reconcile stack`, and approve that one.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
	{
		Reason: "RevisionNotTarget", State: Stalled,
		Means: "The StackRollout rolls out another revision, and did not get to this one within ten minutes; or the revision was its target before, or is not written in full.",
		Todo:  "Take it from `status.target.revision` of the StackRollout.",
		Tests: []string{"approval.TestApprovalOfARevision"},
	},
	{
		Reason: "WaveNotFound", State: Stalled,
		Means: "The StackRollout has no wave of this name.",
		Todo:  "Name one of `spec.waves`, or none to mean all.",
		Tests: []string{"approval.TestApprovalOfARevision"},
	},
	{
		Reason: "RolloutNotFound", State: Stalled, Constant: elsewhere,
		Means: "There is no StackRollout of this name in the namespace of the Approval.",
		Todo:  "Create the Approval in the namespace of the StackRollout.",
		Tests: []string{"approval.TestApprovalOfARevision"},
	},
	{
		Reason: "PlanExpired", State: Stalled,
		Means: "The plan was not approved in time, and is made again.",
		Todo:  "Look at the new plan.",
		Tests: []string{"approval.TestApprovalIsJudgedByThePlanThatItNames"},
	},
}
