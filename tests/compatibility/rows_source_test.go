package compatibility_test

var sourceRows = append([]row{
	{
		field: "fluxSource", operator: "A source in the namespace of the Stack. Each pod downloads its artifact.",
		uses:       []string{sourceUse + "fluxSource", "e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses:    []string{sourceMisuse + "fluxSource (beside a git repository)", "e2e.TestHostileArtifactNeverRunsAndIsExplained", "e2e.TestWrongDigestIsReportedWithBothAndHeals"},
		difference: "The controller downloads and delivers it; what is a commit is its digest.", why: "No network policy has to let tenants reach source-controller, and a commit that does not change the content runs nothing.",
	}, {
		field: "fluxSource.sourceRef", operator: "Required.", uses: []string{sourceUse + "fluxSource"}, misuses: []string{typed},
	}, {
		field: "fluxSource.sourceRef.apiVersion", operator: "Required. A version that the cluster does not serve is retried for ever without a status.",
		uses: []string{sourceUse + "fluxSource.sourceRef.apiVersion (retired)", sourceUse + "fluxSource.sourceRef.apiVersion (left out)",
			"e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses:    []string{sourceMisuse + "fluxSource.sourceRef.apiVersion (malformed)"},
		difference: "Any version of the group is taken for the one that is served.", why: "Flux retires versions that manifests still name.",
	}, {
		field: "fluxSource.sourceRef.kind", operator: "Required. Any kind that publishes an artifact.",
		uses: []string{"e2e.TestStackFollowsEveryKindOfSourceWhateverVersionItNames"},
		misuses: []string{sourceMisuse + "fluxSource.sourceRef.kind (unknown)", sourceMisuse + "fluxSource.sourceRef.kind (no source)",
			sourceMisuse + "fluxSource.sourceRef.kind (a Program)", "e2e.TestStackSaysWhatIsWrongWithItsSource/forbidden-kind",
			"stack.TestNobodyMakesTheControllerReadSecretsByNamingOneAsASource", "source.TestKindThatCannotBeASourceIsRefusedUnread"},
		difference: "No kind of Kubernetes itself, and none of this API.", why: "Whoever creates a Stack shall not make the controller read and watch Secrets.",
	}, {
		field: "fluxSource.sourceRef.name", operator: "Required.", uses: []string{sourceUse + "fluxSource"},
		misuses: []string{sourceMisuse + "fluxSource.sourceRef.name (missing)", sourceMisuse + "fluxSource.sourceRef.name (absent)"},
	}, {
		field: "fluxSource.dir", operator: "The directory of the program.",
		uses: []string{sourceUse + "fluxSource.dir", sourceUse + "fluxSource.dir (with a leading slash)"},
		misuses: []string{sourceMisuse + "fluxSource.dir (missing)", sourceMisuse + "fluxSource.dir (outside)",
			sourceMisuse + "fluxSource.dir (without a program)"},
	},
}, gitRows...)
