package compatibility_test

var statusRows = []row{
	{
		field: "observedGeneration", operator: "The generation that was seen.",
		uses:    []string{statusUse},
		misuses: []string{statusEdited + "observedGeneration", statusTyped},
	},
	{field: "observedReconcileRequest", operator: "The annotation `pulumi.com/reconciliation-request` that was seen.",
		uses: []string{statusUse, "e2e.TestRequestsRunAnUpdateEach"}, misuses: []string{statusEdited + "observedReconcileRequest", statusTyped}},
	{
		field: "conditions", operator: "`Ready`, `Reconciling`, `Stalled`, without `observedGeneration`.",
		uses: []string{statusUse, "compatibility.TestKubectlWaitsForAStackAsScriptsDo"}, misuses: []string{statusEdited + "conditions"},
		difference: "`Ready` is `Unknown` while an operation runs; conditions have their `observedGeneration`.", why: "kstatus: the outcome is open. A periodic run of a Ready Stack leaves it `True`.",
	},
	{
		field: "outputs", operator: "The outputs, secret ones as `[secret]`. Those of the last run stay when the next has none.",
		uses: []string{
			statusUse, "e2e.TestSecretOutputsAreInTheirSecretAndNowhereElse", "e2e.TestOutputsKeepTheirNamesAndGoWhenTheProgramDropsThem",
		},
		misuses:    []string{statusEdited + "outputs", "e2e.TestOutputsThatAreTooLargeDoNotFailTheUpdate"},
		difference: "They are those of the last run, and bounded.", why: "An output that the program dropped is none; etcd has a limit.",
	},
	{field: "projectInfo", operator: "The project of the last success, for a destroy without source.",
		uses: []string{statusUse, "e2e.TestDeletedStackDestroysItsResourcesThoughItsSourceIsGone"}, misuses: []string{statusEdited + "projectInfo", statusTyped}},
	{
		field: "projectInfo.name", operator: "Its name.",
		uses:    []string{statusUse},
		misuses: []string{statusEdited + "projectInfo", statusTyped},
	},
	{
		field: "projectInfo.runtime", operator: "Its runtime.",
		uses:    []string{statusUse},
		misuses: []string{statusEdited + "projectInfo", statusTyped},
	},
	{
		field: "currentUpdate", operator: "The Update that is on its way. One that does not exist is waited for, for ever.",
		uses: []string{statusUse, "stack.TestInterruptedUpdateIsFollowedByAnotherOneAtOnce"}, misuses: []string{statusEdited + "currentUpdate", statusTyped},
		difference: "One that does not exist is forgotten.", why: "A crash between two writes, or somebody who deletes an Update, must not stop a Stack.",
	},
	{
		field: "currentUpdate.generation", operator: "What it is for.",
		uses:    []string{"e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"},
		misuses: []string{statusEdited + "currentUpdate", statusTyped},
	},
	{
		field: "currentUpdate.reconcileRequest", operator: "What it is for.",
		uses:    []string{"e2e.TestRequestsRunAnUpdateEach"},
		misuses: []string{statusEdited + "currentUpdate", statusTyped},
	},
	{
		field: "currentUpdate.name", operator: "Its name.",
		uses:    []string{"e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"},
		misuses: []string{statusEdited + "currentUpdate", statusTyped},
	},
	{
		field: "currentUpdate.commit", operator: "What it is for.",
		uses:       []string{"e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"},
		misuses:    []string{statusEdited + "currentUpdate", statusTyped},
		difference: "As `lastSuccessfulCommit`.", why: "As `lastSuccessfulCommit`."},
	{
		field: "lastUpdate", operator: "How the last operation ended.",
		uses:    []string{statusUse, statusFailed},
		misuses: []string{statusEdited + "lastUpdate", statusTyped},
	},
	{
		field: "lastUpdate.generation", operator: "The generation that it was for.",
		uses:    []string{statusUse},
		misuses: []string{statusEdited + "lastUpdate", statusTyped},
	},
	{
		field: "lastUpdate.reconcileRequest", operator: "The request that it was for.",
		uses:    []string{statusUse},
		misuses: []string{statusEdited + "lastUpdate", statusTyped},
	},
	{
		field: "lastUpdate.name", operator: "Its Update, which is named by the time.", uses: []string{statusUse}, misuses: []string{statusEdited + "lastUpdate.name", statusTyped},
		difference: "Updates are named by what they are for.", why: "A crash cannot start one twice.",
	},
	{
		field: "lastUpdate.type", operator: "`up`, `preview` or `destroy`.",
		uses:    []string{statusUse, lifecycleUse + "preview"},
		misuses: []string{statusTyped},
	},
	{field: "lastUpdate.state", operator: "`succeeded` or `failed`.", uses: []string{statusUse, statusFailed}, misuses: []string{statusTyped}},
	{
		field: "lastUpdate.message", operator: "All that pulumi printed, when it failed.", uses: []string{statusUse, statusFailed},
		misuses:    []string{"e2e.TestStackSaysWhatIsWrongWithItsProgram", "e2e.TestSecretsThatAProgramPrintsStaySecret"},
		difference: "The error, bounded, without secret values.", why: "Whoever may read a Stack may not read its secrets, and etcd is no place for logs.",
	},
	{
		field: "lastUpdate.lastAttemptedCommit", operator: "SHA of a git commit, revision of a Flux source, generation of a Program.",
		uses: []string{statusUse, statusFailed}, misuses: []string{statusTyped},
		difference: "As `lastSuccessfulCommit`.", why: "As `lastSuccessfulCommit`.",
	},
	{
		field: "lastUpdate.lastSuccessfulCommit", operator: "SHA of a git commit, revision of a Flux source, generation of a Program.",
		uses: []string{statusUse, statusFailed, "e2e.TestStackOfTheFormerControllerIsTakenOver"}, misuses: []string{statusTyped},
		difference: "For a Flux source and a Program it is the digest; the revision is in `revision`.", why: "The digest says what was run. That is what the announcement of 2.0 shows, too.",
	},
	{field: "lastUpdate.permalink", operator: "Its page in Pulumi Cloud.", uses: []string{statusUse}, misuses: []string{statusTyped}},
	{
		field: "lastUpdate.lastResyncTime", operator: "When it ended.",
		uses:    []string{statusUse, "e2e.TestResyncRunsWhenItIsDueAndKeepsTheStackReady"},
		misuses: []string{statusTyped},
	},
	{
		field: "lastUpdate.failures", operator: "Failures in a row; it begins to count at 0 or 1, and a new commit leaves it as it is.",
		uses: []string{statusFailed, "e2e.TestNewCommitMendsAFailedProgramAtOnce"}, misuses: []string{statusTyped},
		difference: "The number of failed attempts on the same inputs.", why: "So it is what it is called.",
	},
	{
		field: "currentUpdate.revision", operator: "None.",
		uses:       []string{"e2e.TestStackFollowsTheCommitsOfAGitRepository"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "The commit for people.",
	},
	{
		field: "currentUpdate.requestedAt", operator: "None.",
		uses:       []string{"e2e.TestRequestsRunAnUpdateEach"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "The request that it answers.",
	},
	{
		field: "currentUpdate.contentDigest", operator: "None.",
		uses:       []string{"e2e.TestCommitRunsOnlyTheStacksThatItTouches"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "What tells whether a commit changes anything.",
	},
	{
		field: "currentUpdate.referencesDigest", operator: "None.",
		uses:       []string{"e2e.TestChangeOfALabelledSecretOrConfigMapIsDeployed"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "What tells whether a Secret or ConfigMap has changed.",
	},
	{
		field: "lastUpdate.contentDigest", operator: "None.",
		uses:       []string{"e2e.TestCommitRunsOnlyTheStacksThatItTouches"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "As in `currentUpdate`.",
	},
	{
		field: "lastUpdate.referencesDigest", operator: "None.",
		uses:       []string{"e2e.TestRestartRunsNoUpdateForSecretsThatDidNotChange"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "As in `currentUpdate`.",
	},
	{
		field: "lastUpdate.revision", operator: "None.", uses: []string{"e2e.TestStackFollowsTheCommitsOfAGitRepository"}, misuses: []string{statusTyped},
		difference: "New.", why: "The commit for people.",
	},
	{
		field: "lastUpdate.interruptions", operator: "None.",
		uses:       []string{"e2e.TestInterruptionsInARowAreNoHotLoop"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "Interruptions are no failures.",
	},
	{
		field: "lastUpdate.conflicts", operator: "None.",
		uses:       []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "Waiting for a lock is no failure.",
	},
	{
		field: "lastUpdate.conflictsSince", operator: "None.",
		uses:       []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "A Stack that waits for long is also Stalled.",
	},
	{
		field: "lastUpdate.reason", operator: "None.",
		uses:       []string{"e2e.TestLostStackIsNotCreatedAgainAndHealsWhenItIsBack"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "Why an update failed is in its message only there.",
	},
	{
		field: "lastUpdate.unsettled", operator: "None.",
		uses:       []string{"e2e.TestCreationThatWasCutOffIsNotRepeatedAlthoughAllThatToldOfItIsGone"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "What was being created when an operation was cut off must not be created twice.",
	},
	{
		field: "lastUpdate.resourceChanges", operator: "None.",
		uses:       []string{"stack.TestResultIsRecordedOnceAndTheSameTwice"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "What an update did is in its status.",
	},
	{
		field: "deployed", operator: "None.",
		uses:       []string{"e2e.TestPreviewStackDeploysNothing"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "Whether there may be something to destroy.",
	},
	{
		field: "deployedStack", operator: "A stack that is gone from its backend is created again, with all of its resources.",
		uses:       []string{"e2e.TestStackWithAnotherNameIsCreated", "e2e.TestLostStackIsNotCreatedAgainAndHealsWhenItIsBack"},
		misuses:    []string{"e2e.TestDestroyOfALostStackIsNoProof", statusTyped},
		difference: "New.", why: "A volume that is not mounted must not double what is deployed, nor prove that it was destroyed.",
	},
	{
		field: "history", operator: "None.",
		uses:       []string{"e2e.TestHistoryIsLimited"},
		misuses:    []string{statusEdited + "everything", statusTyped},
		difference: "New.", why: "As Flux's controllers have it.",
	},
	{
		field: "lastAppliedRevision", operator: "None.",
		uses:       []string{sourceUse + "fluxSource"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "As Flux's controllers have it.",
	},
	{
		field: "lastAttemptedRevision", operator: "None.",
		uses:       []string{"e2e.TestStackFollowsTheCommitsOfAGitRepository"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "As Flux's controllers have it.",
	},
	{
		field: "lastHandledReconcileAt", operator: "None.",
		uses:       []string{"e2e.TestRequestsRunAnUpdateEach"},
		misuses:    []string{statusTyped},
		difference: "New.", why: "As Flux's controllers have it.",
	},
	{
		field: "lastHandledForceAt", operator: "None.",
		uses:       []string{statusTyped},
		misuses:    []string{statusTyped},
		difference: "New, and without effect yet.", why: "As Flux's controllers have it.",
	},
}

var reasonRows = []row{
	{field: "ProcessingCompleted", operator: "Ready.", uses: []string{statusUse}, misuses: []string{statusEdited + "conditions"}},
	{
		field: "NotReadyInProgress", operator: "`Ready=False` while something goes on.",
		uses:       []string{"stack.TestStackFollowsTheTroubleOfItsWorkspace"},
		misuses:    []string{statusEdited + "conditions"},
		difference: "`Ready=Unknown`, and only while an operation is on its way.", why: "kstatus."},
	{
		field: "NotReadyStalled", operator: "`Ready=False` beside `Stalled=True`.",
		uses:       []string{identityMisuse + "stack (empty)"},
		misuses:    []string{identityMisuse + "envRefs.Env"},
		difference: "Not used: `Ready` has the reason of `Stalled`.", why: "Tools that show only `Ready` show what is wrong."},
	{
		field: "StackProcessing", operator: "`Reconciling` while something goes on.",
		uses:    []string{"stack.TestStackFollowsTheTroubleOfItsWorkspace"},
		misuses: []string{statusEdited + "conditions"},
	},
	{
		field: "RetryingAfterFailure", operator: "An attempt failed.",
		uses:    []string{statusFailed},
		misuses: []string{"e2e.TestStackSaysWhatIsWrongWithItsProgram"},
	},
	{
		field: "PreviewFailed", operator: "A preview failed.",
		uses:    []string{"compatibility.TestPreviewThatFailsSaysSoAndHeals"},
		misuses: []string{"compatibility.TestPreviewThatFailsSaysSoAndHeals"},
	},
	{
		field: "PrerequisiteNotSatisfied", operator: "A prerequisite is not met.",
		uses:    []string{"e2e.TestStackWaitsForItsPrerequisites"},
		misuses: []string{lifecycleMisuse + "prerequisites (missing)"},
	},
	{
		field: "DependencyCycle", operator: "None: Stacks wait for each other.",
		uses:       []string{"stack.TestCycleIsToldOnEachOfItsStacksAndHealsWithAnyOfThem"},
		misuses:    []string{lifecycleMisuse + "prerequisites (itself)", "compatibility.TestPrerequisitesInACircleWaitAndHealWhenItIsBroken"},
		difference: "New.", why: "They would wait for ever.",
	},
	{
		field: "SpecInvalid", operator: "The spec cannot be used.",
		uses:    []string{identityMisuse + "stack (empty)"},
		misuses: []string{configMisuse + "config (set twice)", sourceMisuse + "fluxSource.sourceRef.apiVersion (malformed)"},
	},
	{
		field: "SourceUnavailable", operator: "The source cannot be had, for whatever reason. Stalled.",
		uses:       []string{"e2e.TestStackSaysWhatIsWrongWithItsSource"},
		misuses:    []string{"e2e.TestArtifactThatVanishedIsWaitedFor", sourceMisuse + "fluxSource.sourceRef.name (missing)"},
		difference: "There is a reason for each cause, and waiting for a source is not Stalled.", why: "Most sources come by themselves."},
	{
		field: "PulumiVersionTooLow", operator: "The pulumi CLI of the workspace is too old for structured configuration.",
		uses:    []string{"pods.TestTroubleWithTheImageIsShownAndEndsWithItsCause/image-with-old-pulumi"},
		misuses: []string{"pods.TestTroubleWithTheImageIsShownAndEndsWithItsCause/image-without-pulumi"}},
	{
		field: "WorkspaceFailed", operator: "The Workspace is stalled. Nothing retries.",
		uses:       []string{lifecycleMisuse + "workspaceTemplate (refused by the API server)"},
		misuses:    []string{"pods.TestTroubleWithTheCreationOfThePodIsShownAndEndsWithItsCause/template-invalid"},
		difference: "Heals with its cause.", why: "A registry that is away for a minute must not need a human."},
	{
		field: "UpdateFailed", operator: "Three attempts failed. Nothing retries.",
		uses:       []string{"compatibility.TestFailuresAreRepeatedAfterTheLongestBackoffAtMost"},
		misuses:    []string{"compatibility.TestFailuresAreRepeatedAfterTheLongestBackoffAtMost"},
		difference: "Attempts go on.", why: "What heals by itself needs nobody."},
	{
		field: "NamespaceTerminating", operator: "The namespace goes before the stack is destroyed.",
		uses:    []string{"compatibility.TestStackInANamespaceThatGoesSaysWhatToDo"},
		misuses: []string{"compatibility.TestStackInANamespaceThatGoesSaysWhatToDo"}},
}

var nameRows = []row{
	{field: "metadata.name", operator: "At most 42 characters, for v1.", uses: []string{"api.TestWhatMayWorkIsAccepted/name of 42 characters"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/name longer than the names made of it can be"},
		difference: "For v1alpha1, too.", why: "The names that are made from it are the same."},
	{
		field: "pulumi.com/reconciliation-request", operator: "A new value runs an update.",
		uses:    []string{"e2e.TestRequestsRunAnUpdateEach"},
		misuses: []string{statusEdited + "observedReconcileRequest"},
	},
	{
		field: "finalizer.stack.pulumi.com", operator: "On Stacks and Updates.",
		uses:    []string{"compatibility.TestEveryUpdateIsNamedByItsStack"},
		misuses: []string{"e2e.TestStackOfTheFormerControllerIsTakenOver"},
	},
	{
		field: "pulumi.com/component, pulumi.com/stack-name", operator: "Labels of Workspaces and Updates.",
		uses:    []string{"compatibility.TestEveryUpdateIsNamedByItsStack"},
		misuses: []string{lifecycleMisuse + "workspaceTemplate (refused by the API server)"}},
	{
		field: "UPDATE-stack-outputs, pulumi.com/secrets", operator: "The Secret with the outputs.",
		uses:    []string{"e2e.TestSecretOutputsAreInTheirSecretAndNowhereElse"},
		misuses: []string{"update.TestSecretOfSomebodyElseIsNotOverwritten"},
	},
	{
		field: "printer columns", operator: "Stack, Last Update, Age, Last Commit, Ready, Reconciling, Stalled, Permalink.",
		uses:    []string{"api.TestKubectlShowsTheColumnsThatUsersKnow", "compatibility.TestKubectlWaitsForAStackAsScriptsDo"},
		misuses: []string{"api.TestNewObjectCountsAsNotObserved"}},
	{
		field: "category pulumi", operator: "`kubectl get pulumi`.",
		uses:    []string{"api.TestCategoryPulumiListsEveryKind"},
		misuses: []string{"api.TestCategoryPulumiListsEveryKind"},
	},
	{field: "pulumi.com/v1alpha1", operator: "Served; it shows only `outputs` and `lastUpdate` of the status, and prunes the rest when it is written.",
		uses: []string{"compatibility.TestStackOfTheOldVersionWorks", "api.TestOldVersionShowsTheWholeStack"}, misuses: []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage"},
		difference: "It shows and keeps the whole status.", why: "Whoever edits through the old version must not lose conditions."},
}
