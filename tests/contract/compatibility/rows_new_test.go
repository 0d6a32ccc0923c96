package compatibility_test

// asFlux is the explanation for fields that Flux's controllers have.
const asFlux = "Flux's controllers have this field."

var newRows = []row{
	added("suspend", asFlux, "e2e.TestSuspendedStackCatchesUpWhenItIsResumed", typed),
	{
		field: "timeout", operator: "None.",
		uses:       []string{"update.TestUpdateRunsItsOperationWithAllInputs", "e2e.TestTimeoutEndsAnUpdateGracefullyAndIsAFailure"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative timeout", "api.TestWhatCannotWorkIsRefusedWithAClearMessage/timeout in days"},
		difference: "New.", why: asFlux,
	},
	added("retryInterval", asFlux, "compatibility.TestRetryIntervalTakesThePlaceOfTheBackoff",
		"api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative retry interval"),
	{
		field: "dependsOn", operator: "None.",
		uses: []string{"e2e.TestStackWaitsForItsPrerequisites", "stack.TestReadyExprDecidesWhenADependencyIsReady",
			"stack.TestStackWaitsForAKustomizationAndGoesOnAtOnceWhenItIsReady", "stack.TestStackThatOnlyHasToExistNeedNotBeReady"},
		misuses: []string{"stack.TestReadyExprThatIsNoneStalls", "stack.TestKindThatIsNotAllowedStallsAndNamesTheFlag", "stack.TestCycleIsReportedOnEachOfItsStacksAndRecoversWithAnyOfThem",
			"api.TestWhatCannotWorkIsRefusedWithAClearMessage/dependency with a kind but no version", typed},
		difference: "New.", why: "Flux's controllers have this field, for their own kinds.",
	},
	{
		field: "destroyAfterDependents", operator: "None: Stacks that are deleted together are destroyed at the same time.",
		uses:       []string{"e2e.TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder"},
		misuses:    []string{"e2e.TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes", "e2e.TestNobodyWaitsForDependentsInACycleOrWithoutAReason", typed},
		difference: "New.", why: "A Stack that others depend on is destroyed after them.",
	},
	{
		field: "fluxSource.sourceRef.namespace", operator: "None: the source is in the namespace of the Stack.",
		uses:       []string{"api.TestWhatMayWorkIsAccepted"},
		misuses:    []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/other-namespace"},
		difference: "New. Other namespaces are rejected unless the controller runs with `--no-cross-namespace-refs=false`.", why: asFlux,
	},
	{
		field: "updateHistoryLimit", operator: "None: Updates are only deleted by age.",
		uses:       []string{"e2e.TestHistoryIsLimited"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/more ended updates than can be kept"},
		difference: "New.", why: "A Stack that fails often does not fill etcd.",
	},
	added("gitAuth.knownHostsRef", "For the host keys of your own servers.", "source.TestCredentialsAreReadFromWhereTheyAreKept",
		"source.TestWhatIsMissingIsNamed", typed),
	added("gitAuth.certSecretRef", asFlux, "git.TestPrivateCAAndClientCertificate", "source.TestWhatIsMissingIsNamed", typed),
	added("gitAuth.proxySecretRef", asFlux, "git.TestExplicitProxyIsUsed", "source.TestWhatIsMissingIsNamed", typed),
	added("recurseSubmodules", asFlux, "source.TestGitFieldsOfAStackBecomeASource", typed),
	{
		field: "sourcePaths", operator: "None: each commit updates each Stack.",
		uses:       []string{"e2e.TestCommitRunsOnlyTheStacksThatItTouches", "e2e.TestPathsCountForFluxSourcesToo"},
		misuses:    []string{typed},
		difference: "New.", why: "For repositories with the programs of many Stacks.",
	},
	{
		field: "requireVerified", operator: "None: signatures of sources are not considered.",
		uses:       []string{"sources.TestStackThatRequiresItRunsNothingButWhatFluxHasVerified", "source.TestArtifactIsVerifiedWhenOneReadOfItsSourceSaysSo"},
		misuses:    []string{"source.TestSourcesWithoutVerificationAreRefusedForGood", typed},
		difference: "New.", why: "For users who sign what they deploy.",
	},
	{
		field: "drift", operator: "None: drift is found by an update with `refresh`, which overwrites it.",
		uses:       []string{"e2e.TestDriftIsReportedWhenTwoChecksSeeTheSame", "e2e.TestDriftIsCorrectedOnTheResourcesThatDrifted", "stack.TestIgnoredDriftIsNone"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/drift interval of a minute", typed},
		difference: "New.", why: "A change outside of Pulumi is seen before an update overwrites it.",
	},
	{
		field: "approval", operator: "None: each commit is deployed at once.",
		uses:       []string{"e2e.TestPlanWaitsForItsApprovalAndIsCarriedOut", "stack.TestChangesAreCarriedOutAsTheyWereApproved"},
		misuses:    []string{"e2e.TestRejectedPlanIsNotCarriedOut", typed},
		difference: "New.", why: "A change is seen, and approved by somebody, before it is made.",
	},
	{
		field: "outputs", operator: "None: outputs are in a Secret whose name changes with each update, and in the status.",
		uses:       []string{"e2e.TestOutputsAreInObjectsThatOthersCanUse", "stack.TestOutputsAreWrittenBeforeTheStackIsReadyAndFollowIt", "stack.TestOutputsThatSomebodyChangedAreRestored"},
		misuses:    []string{"stack.TestForeignObjectIsNotOverwrittenByOutputs", "stack.TestOutputsThatCannotBeWrittenSayWhy", typed},
		difference: "New.", why: "Kustomizations, HelmReleases and pods can use the outputs.",
	},
	{
		field: "pulumiCloud", operator: "None: an access token in a Secret.",
		uses:       []string{"operation.TestEachOperationLogsInAndNothingOfThatStays", "pods.TestPodLogsInToPulumiCloudWithTheTokenOfItsServiceAccount"},
		misuses:    []string{"stack.TestLoginThatCannotWorkIsRefusedWithItsPlace", "operation.TestRefusedLoginNamesWhatPulumiCloudHasToTrust", typed},
		difference: "New.", why: "The access token of an operation is for that operation only, and nobody has to rotate it.",
	},
	{
		field: "inputs", operator: "None: structured configuration takes no secrets, and no Stack takes outputs of another one.",
		uses:       []string{"e2e.TestInputsFollowTheOutputsOfAnotherStack", "inputs.TestInputHasTheValueOfItsSource"},
		misuses:    []string{"e2e.TestInputThatIsMissingWaits", "inputs.TestInputWithoutAValueSaysWhy", typed},
		difference: "New.", why: "A Stack uses the outputs of another one, and is updated when they change.",
	},
	{
		field: "shareOutputs", operator: "None.",
		uses:       []string{"stack.TestOutputOfAnotherNamespaceNeedsConsent", "e2e.TestOutputsOfAnotherNamespaceAreSharedByConsent"},
		misuses:    []string{"stack.TestOutputOfAnotherNamespaceNeedsConsent", "e2e.TestOutputsOfAnotherNamespaceAreSharedByConsent", typed},
		difference: "New.", why: "The owner of a Stack decides which other namespaces see its outputs.",
	},
	{
		field: "rolloutRef", operator: "None: a commit updates all Stacks of its source at once.",
		uses:       []string{"e2e.TestWavesReachOneStackAfterTheOther"},
		misuses:    []string{"e2e.TestStackWithoutItsStackRolloutGetsNothingNew", typed},
		difference: "New.", why: "A mistake reaches a few Stacks, and not all.",
	},
	{
		field: "windows", operator: "None: updates begin at any time.",
		uses:       []string{"e2e.TestWindowHoldsUpdatesUntilItOpens", "windows.TestAt"},
		misuses:    []string{"windows.TestInvalidWindowIsNamedByItsNumber", typed},
		difference: "New.", why: "Maintenance windows and freezes need no second tool.",
	},
	{
		field: "workspaceIdleTimeout", operator: "None: a pod for each Stack, unless `workspaceReclaimPolicy` is `Delete`.",
		uses:       []string{"pods.TestIdleWorkspaceHasNoPodUntilTheNextUpdate"},
		misuses:    []string{typed},
		difference: "New. By default pods are kept.", why: "Stacks that seldom change need no pod between their updates.",
	},
	{
		field: "updateOn", operator: "None: each revision causes an update, as with `Revision`.",
		uses:       []string{"e2e.TestEveryRevisionRunsWhenTheSpecSaysSo"},
		misuses:    []string{typed},
		difference: "New. The default is `Content`.", why: "A commit that changes no file of the stack causes no update.",
	},
}
