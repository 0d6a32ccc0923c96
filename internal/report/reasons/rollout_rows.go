package reasons

var rolloutRows = []Row{
	{
		Reason: "RolloutComplete", State: UpToDate,
		Means: "All waves are complete with the revision that the source offers. `Complete` is true. Stacks that failed, as far as `maxFailures` allows it, those that were broken before, and those that are left out may not have it: `.status.done` counts the others.",
		Tests: []string{"rollout.TestDecisions/complete"},
	},
	{
		Reason: "Progressing", State: UpToDate, Constant: "RolloutProgressingReason",
		Means: "Stacks of a wave are being updated, or wait; the message says for what. The StackRollout is Ready meanwhile; `Complete` says when all waves are complete.",
		When:  "its Stacks",
		Tests: []string{"rollout.TestDecisions/first-wave"},
	},
	{
		Reason: "Soaking", State: UpToDate, Constant: "RolloutSoakingReason",
		Means: "All Stacks of a wave have the revision, and the next wave waits for the end of its `soak`.",
		When:  "the end of the soak; its Stacks",
		Tests: []string{"rollout.TestDecisions/soak-kargo-4586"},
	},
	{
		Reason: "Suspended", State: UpToDate, Constant: "RolloutSuspendedReason",
		Means: "`spec.suspend` is true: no other Stack gets the revision.",
		When:  "an edit",
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
		When:  "an Approval",
		Todo:  "Create an Approval: `flux-pulumi rollout promote NAME`.",
		Tests: []string{"rollout.TestDecisions/promotion"},
	},
	{
		Reason: "RevisionRejected", State: Stalled,
		Means: "Somebody has rejected the revision, so no other Stack gets it. The message says who.",
		When:  "the source",
		Todo:  "Commit something else, which changes the artifact. A rejection cannot be taken back; an Approval of the same revision does not count.",
		Tests: []string{"rollout.TestDecisions/rejection"},
	},
	{
		Reason: "RolloutHalted", State: WaitingOrStalled,
		Means: "More Stacks of a wave failed than `maxFailures` allows, so no other Stack gets the revision. Stalled as soon as one of them is Stalled itself. `.status.failing` has the Stacks and their messages.",
		When:  "its Stacks; the source; an edit",
		Todo:  "Mend the Stacks, for example with a commit that reverts the change. To go on without them, suspend them or raise `maxFailures`.",
		Tests: []string{"rollout.TestDecisions/halted"},
	},
	{
		Reason: "DependencyInLaterWave", State: Stalled,
		Means: "A Stack depends on one in a later wave, which waits for it. Nothing is updated. A commit that may change nothing for that one makes it wait for up to five minutes first.",
		When:  "an edit of the StackRollout or of the Stack",
		Todo:  "Put the dependency into the same or an earlier wave.",
		Tests: []string{"rollout.TestDecisions/dependency-in-a-later-wave-atlantis-5791"},
	},
	{
		Reason: "InvalidCELExpression", State: Stalled, Constant: elsewhere,
		Means: "The `check` of a wave does not compile, does not return a bool, is too large or too complex, or reads a field that is not allowed. Nothing is updated.",
		When:  "an edit",
		Todo:  "See the message, which has the wave, and the position or the field.",
		Tests: []string{"rollout.TestChecks/invalid"},
	},
	{
		Reason: "SpecInvalid", State: Stalled, Constant: elsewhere,
		Means: "A selector of a wave, or an entry of `spec.windows`, is invalid; or it selects by the labels of Namespaces, which the controller may not read. The message says which.",
		When:  "an edit",
		Todo:  "Correct it, or [grant the rights](spec/v1/stackrollouts.md#namespaces).",
		Tests: []string{"rollout.TestDecisions/invalid-selector"},
	},
}
