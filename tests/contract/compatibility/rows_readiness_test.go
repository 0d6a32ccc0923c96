package compatibility_test

// Names of tests that several rows refer to.
const (
	toldBy      = "compatibility.TestWorkspaceShowsWhatKeptItsOperationFromRunning/"
	refusedBy   = "workspace.TestAgentThatCannotBeReachedOrRefusesIsReported"
	everyCause  = "update.TestEveryCauseOfAFailureIsAReason"
	startsToEnd = "e2e.TestConditionsOfEveryKindFromTheBeginningToTheEnd"
)

var workspaceReasonRows = []row{
	{field: "Succeeded", operator: "`Ready=True`: the dependencies of the program are installed, and the stack is selected and configured.", uses: []string{startsToEnd},
		misuses: []string{toldBy + "Unauthenticated"}, difference: "Operations can run.", why: "Each operation installs the dependencies and selects the stack, so that nothing prepared earlier can be out of date."},
	{field: "Deleting", operator: "`Ready=False`.", uses: []string{"workspace.TestWorkspaceThatWaitsForItsDependentsKeepsItsAgent"},
		misuses: []string{"workspace.TestWorkspaceThatWaitsForItsDependentsKeepsItsAgent"}},
	{field: "RollingUpdate", operator: "`Ready=False` while the pod is replaced.", uses: []string{"pods.TestEditedWorkspaceKeepsItsPodUntilItsUpdateEnds"},
		misuses: []string{"pods.TestEditedWorkspaceKeepsItsPodUntilItsUpdateEnds"}},
	{field: "WaitingForReplicas", operator: "`Ready=False` until the pod runs, whatever the problem is.",
		uses:       []string{"pod.TestStatusSaysInPlainWordsWhatIsWrong"},
		misuses:    []string{"pods.TestProblemWithTheImageIsShownAndEndsWithItsCause"},
		difference: "A problem with the pod has its own reason.", why: "A reason such as `ImagePullFailed` or `Unschedulable` tells you what to do."},
	{field: "ConnectionFailed", operator: "`Ready=False`: the agent does not answer.", uses: []string{refusedBy}, misuses: []string{refusedBy}},
	{field: "Unauthenticated", operator: "`Ready=False`: the agent rejects its caller, or the backend rejects the credentials. Retried without limit, and no operation starts.",
		uses: []string{refusedBy, toldBy + "Unauthenticated"}, misuses: []string{"backends.TestStackSaysWhatABackendMisses"},
		difference: "If the backend rejects the credentials, operations still run, and the Workspace is also `Stalled`.", why: "The next operation reads the credentials again. You have to correct them."},
	{field: "PermissionDenied", operator: "`Ready=False`: the agent rejects its caller.", uses: []string{refusedBy}, misuses: []string{refusedBy}},
	{field: "Installing", operator: "`Ready=False` while dependencies are installed, before the first operation.",
		uses: []string{startsToEnd}, misuses: []string{toldBy + "InstallationFailed"},
		difference: "Not used. The Workspace stays Ready, and the state of the Update is `Preparing`.", why: "The installation is a part of each operation, and usually takes no time."},
	{field: "InstallationFailed", operator: "`Ready=False` and `Stalled=True` until the Workspace is edited.", uses: []string{toldBy + "InstallationFailed"},
		misuses: []string{"e2e.TestStackRecoversWhenTheCauseGoesAway"}, difference: "Operations are retried.", why: "The next operation succeeds when, for example, the package registry is available again."},
	{field: "Initializing", operator: "`Ready=False` while the stack is selected and configured.", uses: []string{"workspace.TestAgentThatStartsIsNoFailure"},
		misuses: []string{toldBy + "InitializationFailed"}, difference: "`Ready=False` while the agent starts.", why: "The operation selects the stack."},
	{field: "InitializationFailed", operator: "`Ready=False` and `Stalled=True` until the Workspace is edited: the stack cannot be selected or configured.",
		uses: []string{toldBy + "InitializationFailed"}, misuses: []string{"workspace.TestWorkspaceWhoseAgentCrashesSaysWhy"},
		difference: "Operations are retried.", why: "The next operation succeeds when you create the stack or correct the passphrase."},
	{field: "IncompatibleConfiguration", operator: "`Ready=False` and `Stalled=True`: the Pulumi CLI is too old for the configuration.",
		uses: []string{"e2e.TestStackWithAPulumiThatIsTooOldIsStalledUntilItIsNot"}, misuses: []string{"e2e.TestStackWithAPulumiThatIsTooOldIsStalledUntilItIsNot"}},
}

var updateReasonRows = []row{
	{field: "Progressing", operator: "`Progressing=True`, `Failed=False` and `Complete=False` while the operation runs.", uses: []string{startsToEnd}, misuses: []string{everyCause}},
	{field: "Complete", operator: "`Progressing=False` after a success.", uses: []string{startsToEnd}, misuses: []string{everyCause}},
	{field: "UpdateSucceeded", operator: "`Failed=False` after a success.", uses: []string{startsToEnd}, misuses: []string{everyCause}},
	{field: "Updated", operator: "`Complete=True` after a success.", uses: []string{startsToEnd}, misuses: []string{everyCause}},
	{field: "Failed", operator: "`Progressing=False` and `Complete=True` after a failure.", uses: []string{everyCause}, misuses: []string{everyCause}},
	{field: "WorkspaceNotFound", operator: "`Progressing=False`: the Update waits for the Workspace.", uses: []string{"update.TestUpdateWaitsForItsWorkspace"},
		misuses: []string{"compatibility.TestUpdateByHandThatDescribesNoOperationIsAborted"}},
	{field: "WorkspaceNotReady", operator: "`Progressing=False`: the Update waits for the Workspace.", uses: []string{"update.TestUpdateWaitsForItsWorkspace"}, misuses: []string{"update.TestUpdateWaitsForItsWorkspace"}},
	{field: "TransientFailure", operator: "`Progressing=False`: the agent cannot be reached. Retried after 5 seconds.", uses: []string{"update.TestTransientFailuresPass"},
		misuses: []string{"update.TestTransientFailuresPass"}},
	{field: "Aborted", operator: "`Failed=True`: the operator was restarted during the operation, the type is not an operation, or the stack has no name.",
		uses:    []string{"compatibility.TestUpdateByHandThatDescribesNoOperationIsAborted"},
		misuses: []string{"update.TestUpdateThatDescribesNoOperationIsAborted"}, difference: "Not used after a restart of the controller.", why: "The agent owns the operation, and the next controller finds it. A lost operation is `Interrupted`."},
	{field: "Canceled", operator: "`Failed=True`: the Update was deleted, or has no owner reference with `controller: true`.", uses: []string{"update.TestUpdateThatIsDeletedSaysThatItWasCanceled"},
		misuses: []string{"e2e.TestSuspendedStackEndsItsUpdateWhenItIsAskedTo"}, difference: "The Update needs no owner reference.", why: "It names its Workspace."},
	{field: "UpdateFailed", operator: "`Failed=True`: Pulumi failed.", uses: []string{everyCause}, misuses: []string{"e2e.TestStackRecoversWhenTheCauseGoesAway"}},
	{field: "Unknown", operator: "`Failed=True`: any failure without its own reason.", uses: []string{everyCause}, misuses: []string{everyCause},
		difference: "Most failures have their own reason.", why: "What to do depends on the cause."},
	{field: "UpdateConflict", operator: "`Failed=True`: another update of the stack is running. Only with Pulumi Cloud.", uses: []string{"backends.TestUpdateThatPulumiCloudRefusesBesideAnotherIsAConflict"},
		misuses: []string{"e2e.TestLockOfAnotherIsShownAndWaitedFor/locked"}, difference: "Used with every backend.", why: "The other backends lock stacks as well."},
	{field: "InvalidAccessToken", operator: "`Failed=True`: Pulumi Cloud rejects the token.", uses: []string{"backends.TestStackSaysWhatABackendMisses"}, misuses: []string{everyCause},
		difference: "Used with every backend.", why: "The other backends have credentials as well."},
}
