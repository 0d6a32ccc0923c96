package compatibility_test

var lifecycleRows = []row{
	{
		field: "targets", operator: "URNs for `--target` of `up` and `preview`, never of `destroy`.",
		uses:    []string{lifecycleUse + "targets", "e2e.TestOptionsReachPulumi"},
		misuses: []string{lifecycleMisuse + "targets (not there)", lifecycleMisuse + "targets (hostile)", typed},
	}, {
		field: "targetDependents", operator: "`--target-dependents`.",
		uses: []string{lifecycleUse + "targetDependents"}, misuses: []string{lifecycleOdd + "targetDependents (without targets)", typed},
	}, {
		field: "prerequisites", operator: "Stacks of the same namespace that must have succeeded. Circles are not noticed.",
		difference: "Stacks that wait for each other are Stalled with `DependencyCycle`.", why: "They would wait for ever.",
		uses:    []string{"e2e.TestStackWaitsForItsPrerequisites"},
		misuses: []string{lifecycleMisuse + "prerequisites (missing)", lifecycleMisuse + "prerequisites (itself)", "compatibility.TestPrerequisitesInACircleWaitAndHealWhenItIsBroken"},
	}, {
		field: "prerequisites[].name", operator: "Required.", uses: []string{"e2e.TestStackWaitsForItsPrerequisites"}, misuses: []string{lifecycleMisuse + "prerequisites (missing)", typed},
	}, {
		field: "prerequisites[].requirement", operator: "What is asked of the prerequisite.",
		uses: []string{"compatibility.TestPrerequisiteThatSucceededTooLongAgoIsRunFirst"}, misuses: []string{typed},
	}, {
		field: "prerequisites[].requirement.succeededWithinDuration", operator: "A prerequisite whose success is older is run again.",
		uses:       []string{"compatibility.TestPrerequisiteThatSucceededTooLongAgoIsRunFirst", "stack.TestPrerequisiteThatSucceededTooLongAgoIsAskedToRunOnce"},
		misuses:    []string{lifecycleMisuse + "prerequisites.requirement.succeededWithinDuration (no duration)"},
		difference: "Less than 10 seconds counts as 10 seconds, and it matters only when there is something to update.", why: "An update does not end, and get noticed, in less; a Stack that is up to date needs nobody.",
	}, {
		field: "continueResyncOnCommitMatch", operator: "Runs `up` every `resyncFrequencySeconds` though nothing changed.",
		uses: []string{"e2e.TestResyncRunsWhenItIsDueAndKeepsTheStackReady", "pods.TestWalkthrough"}, misuses: []string{typed},
	}, {
		field: "resyncFrequencySeconds", operator: "The interval of the above and of looking at a git branch; 60 at least.",
		uses:    []string{"e2e.TestResyncRunsWhenItIsDueAndKeepsTheStackReady"},
		misuses: []string{lifecycleMisuse + "resyncFrequencySeconds (negative)", lifecycleOdd + "resyncFrequencySeconds (less than a minute)", typed},
	}, {
		field: "refresh", operator: "`--refresh` of `up` and `preview`.",
		uses: []string{lifecycleUse + "refresh"}, misuses: []string{lifecycleOdd + "refresh (of resources that are gone)", typed},
		difference: "Of `destroy`, too.", why: "What is gone already must not make a destroy fail.",
	}, {
		field: "expectNoRefreshChanges", operator: "Ignored.",
		uses:       []string{lifecycleUse + "expectNoRefreshChanges", "e2e.TestDriftThatNobodyExpectsIsLeftUntilSomebodyDecides"},
		misuses:    []string{"automation.TestDriftFailsAnOperationThatExpectsNoneAndChangesNothing", typed},
		difference: "With `refresh`, an update or preview that would find drift fails before it changes anything.", why: "It does what its name promises.",
	}, {
		field: "destroyOnFinalize", operator: "Runs `destroy` before the object goes. After three failures it is not tried again.",
		uses:       []string{lifecycleUse + "destroyOnFinalize", lifecycleUse + "destroyOnFinalize (not set)", "e2e.TestDeletedStackDestroysItsResourcesThoughItsSourceIsGone"},
		misuses:    []string{lifecycleOdd + "preview (with destroyOnFinalize, deployed before)", typed},
		difference: "Failed destroys are tried for ever.", why: "Nothing else would ever remove the finalizer, and what was deployed must not be forgotten.",
	}, {
		field: "runProgram", operator: "`--run-program` of `destroy`.",
		uses: []string{lifecycleUse + "runProgram"}, misuses: []string{lifecycleOdd + "runProgram (without destroyOnFinalize)", typed},
	}, {
		field: "retryOnUpdateConflict", operator: "Ignored since 2.0.",
		uses:       []string{lifecycleUse + "retryOnUpdateConflict", "e2e.TestLockOfAnotherIsShownAndWaitedFor/locked-eager"},
		misuses:    []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked", typed},
		difference: "A stack that is locked is tried again every 10 to 15 seconds; without it with growing waits, up to 10 minutes. Neither is a failure.",
		why:        "It does what its name promises.",
	}, {
		field: "useLocalStackOnly", operator: "Does not create the stack: a missing one stalls the Workspace, which is not retried.",
		uses:       []string{lifecycleUse + "useLocalStackOnly"},
		misuses:    []string{lifecycleMisuse + "useLocalStackOnly (missing stack)", typed},
		difference: "A missing stack is a failed attempt, and attempts go on.", why: "Somebody may create the stack at any time.",
	}, {
		field: "preview", operator: "Only ever previews. A Stack with it destroys nothing when it is deleted.",
		uses: []string{lifecycleUse + "preview", "e2e.TestPreviewStackDeploysNothing"},
		misuses: []string{lifecycleOdd + "preview (with destroyOnFinalize, never deployed)",
			lifecycleOdd + "preview (with destroyOnFinalize, deployed before)", typed},
		difference: "A Stack that deployed something before still destroys it.", why: "The resources would be left without an owner.",
	}, {
		field: "retryMaxBackoffDurationSeconds", operator: "The longest wait between attempts; a day by default. There are three retries at all since 2.8.",
		uses:       []string{"compatibility.TestFailuresAreRepeatedAfterTheLongestBackoffAtMost"},
		misuses:    []string{lifecycleMisuse + "retryMaxBackoffDurationSeconds (negative)", typed},
		difference: "Attempts go on.", why: "What heals by itself needs nobody.",
	}, {
		field: "workspaceReclaimPolicy", operator: "`Retain` keeps the pod, `Delete` removes the Workspace after a success.",
		uses: []string{lifecycleUse + "workspaceReclaimPolicy", "e2e.TestReclaimedWorkspaceIsMadeAgainWhenItIsNeeded",
			"pods.TestReclaimedWorkspaceLeavesNoPodAndComesBackWhenItIsNeeded"},
		misuses: []string{lifecycleMisuse + "workspaceReclaimPolicy (unknown)"},
	}, {
		field: "workspaceTemplate", operator: "Is merged over the Workspace. A name in its metadata breaks the Stack.",
		uses:       []string{lifecycleUse + "workspaceTemplate", "pods.TestCustomisedStackBecomesReadyAndItsPodIsAsItSays"},
		misuses:    []string{lifecycleMisuse + "workspaceTemplate (refused by the API server)", lifecycleMisuse + "workspaceTemplate (unknown field)", lifecycleOdd + "workspaceTemplate (a name and a status of its own)", "pods.TestTroubleWithTheCreationOfThePodIsShownAndEndsWithItsCause/template-invalid"},
		difference: "Of its metadata only labels and annotations count.", why: "Everything else belongs to the controller.",
	}, {
		field: "updateTemplate", operator: "Is merged over Updates.",
		uses:    []string{lifecycleUse + "updateTemplate"},
		misuses: []string{lifecycleMisuse + "updateTemplate (refused by the API server)", lifecycleMisuse + "updateTemplate (unknown field)", "api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative lifetime of an ended update in a template"},
	}, {
		field: "initOnCreate", operator: "Of 1.x: creates the stack when it does not exist. Gone since 2.0.",
		uses:       []string{lifecycleUse + "initOnCreate", "compatibility.TestStackOfTheOldVersionWorks"},
		misuses:    []string{typed},
		difference: "Accepted; it is what always happens.", why: "Manifests of the 1.x documentation can be applied.",
	}, {
		field: "resyncFrequency", operator: "Not a field, though tutorials use it: a duration such as `5m`.",
		uses:       []string{"api.TestPublishedManifestsAreAccepted", "compatibility.TestPublishedManifestsGoAsFarAsTheyCan"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/two resync intervals", "api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative resync interval"},
		difference: "Works as `resyncFrequencySeconds`.", why: "People write what they have read.",
	},
}
