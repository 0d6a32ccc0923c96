package compatibility_test

var sourceRows = append([]row{
	{
		field: "fluxSource", operator: "A source in the namespace of the Stack. Each pod downloads its artifact.",
		uses:       []string{sourceUse + "fluxSource", "e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses:    []string{sourceMisuse + "fluxSource (beside a git repository)", "e2e.TestHostileArtifactNeverRunsAndIsExplained", "e2e.TestWrongDigestIsReportedAndRecovers"},
		difference: "The controller downloads the artifact once and sends it to the pods. The commit is the digest of the artifact.", why: "Pods need no network access to source-controller, and a commit that does not change the content causes no update.",
	}, {
		field: "fluxSource.sourceRef", operator: "Required.", uses: []string{sourceUse + "fluxSource"}, misuses: []string{typed},
	},
	{
		field: "fluxSource.sourceRef.apiVersion", operator: "Required. A version that the cluster does not serve is retried without limit and without a status.",
		uses: []string{sourceUse + "fluxSource.sourceRef.apiVersion (retired)", sourceUse + "fluxSource.sourceRef.apiVersion (left out)",
			"e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses:    []string{sourceMisuse + "fluxSource.sourceRef.apiVersion (malformed)"},
		difference: "Optional for Flux's kinds. The controller uses the version that the cluster serves.", why: "Flux removes versions that manifests still use.",
	}, {
		field: "fluxSource.sourceRef.kind", operator: "Required. Any kind that publishes an artifact.",
		uses: []string{"e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses: []string{sourceMisuse + "fluxSource.sourceRef.kind (unknown)", sourceMisuse + "fluxSource.sourceRef.kind (no source)",
			sourceMisuse + "fluxSource.sourceRef.kind (a Program)", "e2e.TestStackSaysWhatIsWrongWithItsSource/forbidden-kind",
			"stack.TestNobodyMakesTheControllerReadSecretsByNamingOneAsASource", "source.TestKindThatCannotBeASourceIsRefusedUnread"},
		difference: "Built-in kinds of Kubernetes and the kinds of this API are rejected.", why: "Users who can create Stacks must not make the controller read Secrets.",
	},
	same("fluxSource.sourceRef.name", "Required.", sourceUse+"fluxSource", sourceMisuse+"fluxSource.sourceRef.name (missing)",
		sourceMisuse+"fluxSource.sourceRef.name (absent)"),
	{
		field: "fluxSource.dir", operator: "The directory of the program.",
		uses: []string{sourceUse + "fluxSource.dir", sourceUse + "fluxSource.dir (with a leading slash)"},
		misuses: []string{sourceMisuse + "fluxSource.dir (missing)", sourceMisuse + "fluxSource.dir (outside)",
			sourceMisuse + "fluxSource.dir (without a program)"},
	},
}, gitRows...)
