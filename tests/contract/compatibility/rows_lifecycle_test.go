package compatibility_test

var lifecycleRows = []row{
	{
		field: "targets", operator: "URNs for `--target` of `up` and `preview`, but not of `destroy`.",
		uses:    []string{lifecycleUse + "targets"},
		misuses: []string{lifecycleMisuse + "targets (not there)", lifecycleMisuse + "targets (hostile)", typed},
	}, {
		field: "targetDependents", operator: "Sets `--target-dependents`.",
		uses: []string{lifecycleUse + "targetDependents"}, misuses: []string{lifecycleOdd + "targetDependents (without targets)", typed},
	},
	{
		field: "prerequisites", operator: "Stacks of the same namespace that must have succeeded. Cycles are not detected.",
		difference: "Stacks that wait for each other are Stalled with `DependencyCycle`.", why: "They would wait forever.",
		uses:    []string{"e2e.TestStackWaitsForItsPrerequisites"},
		misuses: []string{lifecycleMisuse + "prerequisites (missing)", lifecycleMisuse + "prerequisites (itself)", "compatibility.TestPrerequisitesInACircleWaitAndRecoverWhenItIsBroken"},
	}, {
		field: "prerequisites[].name", operator: "Required.", uses: []string{"e2e.TestStackWaitsForItsPrerequisites"}, misuses: []string{lifecycleMisuse + "prerequisites (missing)", typed},
	},
	same("prerequisites[].requirement", "The requirement that the prerequisite must meet.",
		"compatibility.TestPrerequisiteThatSucceededTooLongAgoIsRunFirst", typed),
	{
		field: "prerequisites[].requirement.succeededWithinDuration", operator: "The maximum age of the last success. An older prerequisite is updated again.",
		uses:       []string{"compatibility.TestPrerequisiteThatSucceededTooLongAgoIsRunFirst", "stack.TestPrerequisiteThatSucceededTooLongAgoIsAskedToRunOnce"},
		misuses:    []string{lifecycleMisuse + "prerequisites.requirement.succeededWithinDuration (no duration)"},
		difference: "The minimum is 10 seconds, and the age matters only when this Stack has to be updated.", why: "An update takes longer than that to run and to be recorded. A Stack that is up to date needs no prerequisite.",
	},
	{
		field: "continueResyncOnCommitMatch", operator: "Runs `up` every `resyncFrequencySeconds`, even if nothing changed.",
		uses: []string{"e2e.TestResyncRunsWhenItIsDueAndKeepsTheStackReady", "pods.TestWalkthrough"}, misuses: []string{typed},
	}, {
		field: "resyncFrequencySeconds", operator: "The interval of resyncs and of checks of a git branch. The minimum is 60.",
		uses:    []string{"e2e.TestResyncRunsWhenItIsDueAndKeepsTheStackReady"},
		misuses: []string{lifecycleOdd + "resyncFrequencySeconds (negative)", lifecycleOdd + "resyncFrequencySeconds (less than a minute)", typed},
	},
	{
		field: "refresh", operator: "Sets `--refresh` for `up` and `preview`.",
		uses: []string{lifecycleUse + "refresh"}, misuses: []string{lifecycleOdd + "refresh (of resources that are gone)", typed},
		difference: "Also applies to `destroy`.", why: "A destroy does not fail because a resource is already gone.",
	}, {
		field: "expectNoRefreshChanges", operator: "No effect.",
		uses:       []string{lifecycleUse + "expectNoRefreshChanges", "e2e.TestDriftThatNobodyExpectsIsLeftUntilSomebodyDecides"},
		misuses:    []string{"operation.TestDriftFailsAnOperationThatExpectsNoneAndChangesNothing", typed},
		difference: "With `refresh`, an update or preview that finds drift fails before it changes anything.", why: "The field does what its name promises.",
	},
	{
		field: "destroyOnFinalize", operator: "Runs `destroy` before the object is removed. Gives up after three failures.",
		uses:       []string{lifecycleUse + "destroyOnFinalize", lifecycleUse + "destroyOnFinalize (not set)", "e2e.TestDeletedStackDestroysItsResourcesThoughItsSourceIsGone"},
		misuses:    []string{lifecycleOdd + "preview (with destroyOnFinalize, deployed before)", typed},
		difference: "A failed destroy is retried without limit.", why: "The object stays until its resources are destroyed, so giving up would block its deletion.",
	}, {
		field: "runProgram", operator: "Sets `--run-program` for `destroy`.",
		uses: []string{lifecycleUse + "runProgram"}, misuses: []string{lifecycleOdd + "runProgram (without destroyOnFinalize)", typed},
	},
	{
		field: "retryOnUpdateConflict", operator: "No effect since 2.0.",
		uses:       []string{lifecycleUse + "retryOnUpdateConflict", "e2e.TestLockOfAnotherIsShownAndWaitedFor/locked-eager"},
		misuses:    []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked", typed},
		difference: "An update that finds the stack locked is retried every 10 to 15 seconds. Without the field it is retried with backoff, up to 10 minutes. A lock is not a failure.",
		why:        "The field does what its name promises.",
	}, {
		field: "useLocalStackOnly", operator: "Does not create the stack. If it is missing, the Workspace is Stalled and not retried.",
		uses:       []string{lifecycleUse + "useLocalStackOnly"},
		misuses:    []string{lifecycleMisuse + "useLocalStackOnly (missing stack)", typed},
		difference: "A missing stack is a failed attempt, which is retried.", why: "The stack can be created at any time.",
	},
	{
		field: "preview", operator: "Only runs previews. Deleting the Stack destroys nothing.",
		uses: []string{lifecycleUse + "preview", "e2e.TestPreviewStackDeploysNothing"},
		misuses: []string{lifecycleOdd + "preview (with destroyOnFinalize, never deployed)",
			lifecycleOdd + "preview (with destroyOnFinalize, deployed before)", typed},
		difference: "With `destroyOnFinalize`, a Stack that was deployed earlier is still destroyed.", why: "Otherwise its resources would be left behind.",
	}, {
		field: "retryMaxBackoffDurationSeconds", operator: "The maximum time between attempts, one day by default. Since 2.8 there are only three retries.",
		uses:       []string{"compatibility.TestFailuresAreRepeatedAfterTheLongestBackoffAtMost"},
		misuses:    []string{lifecycleMisuse + "retryMaxBackoffDurationSeconds (negative)", typed},
		difference: "Retries continue.", why: "An update succeeds without your help when the cause of the failure is gone.",
	},
	{
		field: "workspaceReclaimPolicy", operator: "`Retain` keeps the pod. `Delete` removes the Workspace after each success.",
		uses: []string{lifecycleUse + "workspaceReclaimPolicy", "e2e.TestReclaimedWorkspaceIsMadeAgainWhenItIsNeeded",
			"pods.TestReclaimedWorkspaceLeavesNoPodAndComesBackWhenItIsNeeded"},
		misuses: []string{lifecycleMisuse + "workspaceReclaimPolicy (unknown)"},
	}, {
		field: "workspaceTemplate", operator: "Is merged into the Workspace. A name in its metadata breaks the Stack.",
		uses:       []string{lifecycleUse + "workspaceTemplate", "pods.TestCustomisedStackBecomesReadyAndItsPodIsAsItSays"},
		misuses:    []string{lifecycleMisuse + "workspaceTemplate (refused by the API server)", lifecycleMisuse + "workspaceTemplate (unknown field)", lifecycleOdd + "workspaceTemplate (a name and a status of its own)", "pods.TestProblemWithTheCreationOfThePodIsShownAndEndsWithItsCause/template-invalid"},
		difference: "Only the labels and annotations of its metadata are used.", why: "The controller owns the other metadata.",
	},
	{
		field: "updateTemplate", operator: "Is merged into the Updates.",
		uses: []string{lifecycleUse + "updateTemplate", lifecycleUse + "updateTemplate (a preview)"},
		misuses: []string{lifecycleMisuse + "updateTemplate (refused by the API server)", lifecycleMisuse + "updateTemplate (unknown field)",
			lifecycleMisuse + "updateTemplate (another operation)", lifecycleOdd + "updateTemplate (a negative lifetime)"},
		difference: "`type` is `up` or `preview`, which is the same as `spec.preview`. With another one the Stack is Stalled.",
		why:        "The Stack decides when it is refreshed and destroyed.",
	}, {
		field: "initOnCreate", operator: "A field of 1.x: creates the stack if it does not exist. Removed in 2.0.",
		uses:       []string{lifecycleUse + "initOnCreate", "compatibility.TestStackOfTheOldVersionWorks"},
		misuses:    []string{typed},
		difference: "Accepted without effect. A stack that does not exist is always created.", why: "You can apply manifests from the documentation of 1.x.",
	},
	{
		field: "resyncFrequency", operator: "Not a field, although tutorials use it: a duration such as `5m`.",
		uses:       []string{"api.TestPublishedManifestsAreAccepted", "compatibility.TestPublishedManifestsGoAsFarAsTheyCan"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/two resync intervals", "api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative resync interval"},
		difference: "Sets the interval, like `resyncFrequencySeconds`.", why: "Manifests from tutorials work.",
	},
}
