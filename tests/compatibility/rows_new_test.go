package compatibility_test

// asFlux is the reason for fields that Flux's controllers have.
const asFlux = "As Flux's controllers have it."

var newRows = []row{
	{
		field: "suspend", operator: "None.",
		uses:       []string{"e2e.TestSuspendedStackCatchesUpWhenItIsResumed"},
		misuses:    []string{typed},
		difference: "New.", why: asFlux,
	},
	{
		field: "timeout", operator: "None.",
		uses:       []string{"update.TestUpdateRunsItsOperationWithAllInputs", "e2e.TestTimeoutEndsAnUpdateGracefullyAndIsAFailure"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative timeout", "api.TestWhatCannotWorkIsRefusedWithAClearMessage/timeout in days"},
		difference: "New.", why: asFlux,
	},
	{
		field: "retryInterval", operator: "None.",
		uses:       []string{"compatibility.TestRetryIntervalTakesThePlaceOfTheBackoff"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/negative retry interval"},
		difference: "New.", why: asFlux,
	},
	{
		field: "dependsOn", operator: "None.",
		uses:       []string{"e2e.TestStackWaitsForItsPrerequisites", "stack.TestReadyExprDecidesWhenADependencyIsReady"},
		misuses:    []string{"stack.TestReadyExprThatIsNoneStalls", "stack.TestCycleIsToldOnEachOfItsStacksAndHealsWithAnyOfThem", typed},
		difference: "New.", why: asFlux,
	},
	{
		field: "destroyAfterDependents", operator: "None: Stacks that are deleted together are destroyed at the same time.",
		uses:       []string{"e2e.TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder"},
		misuses:    []string{"e2e.TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes", "e2e.TestNobodyWaitsForDependentsInACycleOrWithoutAReason", typed},
		difference: "New.", why: "What is built on something has to go before it.",
	},
	{
		field: "fluxSource.sourceRef.namespace", operator: "None: the namespace of the Stack.",
		uses:       []string{"api.TestWhatMayWorkIsAccepted"},
		misuses:    []string{"e2e.TestStackSaysWhatIsWrongWithItsSource/other-namespace"},
		difference: "New; refused unless the administrator allows it.", why: asFlux,
	},
	{
		field: "updateHistoryLimit", operator: "None: Updates expire by time only.",
		uses:       []string{"e2e.TestHistoryIsLimited"},
		misuses:    []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/more ended updates than can be kept"},
		difference: "New.", why: "A Stack that fails often must not fill etcd.",
	},
	{
		field: "gitAuth.knownHostsRef", operator: "None.",
		uses:       []string{"source.TestCredentialsAreReadFromWhereTheyAreKept"},
		misuses:    []string{"source.TestWhatIsMissingIsNamed", typed},
		difference: "New.", why: "Host keys of a server of one's own.",
	},
	{
		field: "gitAuth.certSecretRef", operator: "None.",
		uses:       []string{"git.TestPrivateCAAndClientCertificate"},
		misuses:    []string{"source.TestWhatIsMissingIsNamed", typed},
		difference: "New.", why: asFlux,
	},
	{
		field: "gitAuth.proxySecretRef", operator: "None.",
		uses:       []string{"git.TestExplicitProxyIsUsed"},
		misuses:    []string{"source.TestWhatIsMissingIsNamed", typed},
		difference: "New.", why: asFlux,
	},
	{
		field: "recurseSubmodules", operator: "None.",
		uses:       []string{"source.TestGitFieldsOfAStackBecomeASource"},
		misuses:    []string{typed},
		difference: "New.", why: asFlux,
	},
	{
		field: "sourcePaths", operator: "None: every commit runs every Stack.",
		uses:       []string{"e2e.TestCommitRunsOnlyTheStacksThatItTouches", "e2e.TestPathsCountForFluxSourcesToo"},
		misuses:    []string{typed},
		difference: "New.", why: "For repositories with the programs of many Stacks.",
	},
	{
		field: "updateOn", operator: "None: as `Revision`.",
		uses:       []string{"e2e.TestEveryRevisionRunsWhenTheSpecSaysSo"},
		misuses:    []string{typed},
		difference: "New; `Content` by default.", why: "A commit that changes nothing runs nothing.",
	},
}
