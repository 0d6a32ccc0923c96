package reasons

var rolloutRows = []Row{
	{
		Reason: "RolloutComplete", State: UpToDate,
		Means: "All Stacks have the revision that the source offers. `Complete` is true.",
		Tests: []string{"rollout.TestDecisions/complete"},
	},
	{
		Reason: "Progressing", State: UpToDate, Constant: "RolloutProgressingReason",
		Means: "Stacks of a wave are being updated. The StackRollout is Ready meanwhile; `Complete` says when all have the revision.",
		Tests: []string{"rollout.TestDecisions/first-wave"},
	},
	{
		Reason: "Soaking", State: UpToDate, Constant: "RolloutSoakingReason",
		Means: "All Stacks of a wave have the revision, and the next wave waits for the end of its `soak`.",
		Tests: []string{"rollout.TestDecisions/soak"},
	},
	{
		Reason: "Suspended", State: UpToDate, Constant: "RolloutSuspendedReason",
		Means: "`spec.suspend` is true: no other Stack gets the revision.",
		Todo:  "Set `spec.suspend` to false to go on.",
		Tests: []string{"rollout.TestDecisions/suspended"},
	},
	{
		Reason: "WindowClosed", State: UpToDate, Constant: "RolloutWindowClosedReason",
		Means: "`spec.windows` allow no update now: no other Stack gets the revision. The message says when that changes.",
		When:  "when a window opens or closes",
		Todo:  "To go on at once, promote all waves: `flux-pulumi rollout promote NAME --all`.",
		Tests: []string{"rollout.TestWindows/of-the-rollout"},
	},
	{
		Reason: "PromotionRequired", State: UpToDate,
		Means: "The next wave has `promotion: Manual`, and waits until somebody has approved the revision.",
		Todo:  "Create an Approval: `flux-pulumi rollout promote NAME`.",
		Tests: []string{"rollout.TestDecisions/promotion"},
	},
	{
		Reason: "RevisionRejected", State: Stalled,
		Means: "Somebody has rejected the revision, so no other Stack gets it. The message says who.",
		Todo:  "Commit something else. A rejection cannot be taken back; an Approval of the same revision does not count.",
		Tests: []string{"rollout.TestDecisions/rejection"},
	},
	{
		Reason: "RolloutHalted", State: WaitingOrStalled,
		Means: "More Stacks of a wave failed than `maxFailures` allows, so no other Stack gets the revision. Stalled as soon as one of them is Stalled itself. `.status.failing` has the Stacks and their messages.",
		Todo:  "Mend the Stacks, for example with a commit that reverts the change. To go on without them, suspend them or raise `maxFailures`.",
		Tests: []string{"rollout.TestDecisions/halted"},
	},
	{
		Reason: "DependencyInLaterWave", State: Stalled,
		Means: "A Stack depends on one in a later wave, which waits for it. Nothing is updated.",
		Todo:  "Put the dependency into the same or an earlier wave.",
		Tests: []string{"rollout.TestDecisions/dependency-in-a-later-wave"},
	},
	{
		Reason: "InvalidCELExpression", State: Stalled, Constant: elsewhere,
		Means: "The `check` of a wave does not compile, does not return a bool, is too large or too complex, or reads a field that is not allowed. Nothing is updated.",
		Todo:  "See the message, which has the wave, and the position or the field.",
		Tests: []string{"rollout.TestChecks/invalid"},
	},
	{
		Reason: "SpecInvalid", State: Stalled, Constant: elsewhere,
		Means: "A selector of a wave, or an entry of `spec.windows`, is invalid. The message names it.",
		Todo:  "Correct it.",
		Tests: []string{"rollout.TestDecisions/invalid-selector"},
	},
}
