package compatibility_test

var identityRows = []row{
	{
		field: "accessTokenSecret", operator: "Deprecated. The key `accessToken` of this Secret becomes `PULUMI_ACCESS_TOKEN`. When it is missing the pod does not start, and the Stack says only that it waits.",
		uses:       []string{identityUse + "accessTokenSecret"},
		misuses:    []string{identityMisuse + "accessTokenSecret (missing)", identityMisuse + "accessTokenSecret (without its key)"},
		difference: "A missing Secret is `SecretNotFound`, by name.", why: "Whoever applies a Stack before its Secret sees what is waited for, and nothing has to be restarted.",
	}, {
		field: "backend", operator: "The URL of the state backend, as `PULUMI_BACKEND_URL`. Pulumi Cloud when empty. An entry of `envRefs` with that name wins.",
		uses:    []string{identityUse + "backend", "backends.TestStackLivesInObjectStore", "backends.TestStackLivesInDatabase", "stack.TestSpecBecomesAWorkspace"},
		misuses: []string{identityMisuse + "backend (unknown scheme)", identityMisuse + "backend (not there)", "backends.TestStackSaysWhatABackendMisses"},
	}, {
		field: "stack", operator: "Required: `stack`, `organisation/stack` or `organisation/project/stack`. Passed on as it is; an empty one fails in the pod.",
		uses: []string{identityUse + "stack", identityUse + "backend"},
		misuses: []string{identityMisuse + "stack (absent)", identityMisuse + "stack (empty)", identityMisuse + "stack (hostile)", identityMisuse + "stack (a flag)",
			identityMisuse + "stack (huge)"},
		difference: "An empty name is `SpecInvalid`; one that is no name fails before pulumi is called.", why: "A name must not be taken for a flag of pulumi or for a path.",
	}, {
		field: "secretsProvider", operator: "The secrets provider of a stack that is created. Ignored for one that exists.",
		uses:       []string{identityUse + "secretsProvider", "e2e.TestSecretsProviderOfAStackFollowsItsSpec", "backends.TestSecretsAreEncryptedByKeyManagementService"},
		misuses:    []string{identityMisuse + "secretsProvider (unknown)", "e2e.TestChangedPassphraseIsReportedAndHealsWhenItIsRestored"},
		difference: "A stack that exists is changed to it.", why: "The comment of the field in the operator promises as much.",
	}, {
		field: "serviceAccountName", operator: "The ServiceAccount of the pod. It has to be bound to `system:auth-delegator`.",
		uses:       []string{"pods.TestWalkthrough"},
		misuses:    []string{"pods.TestTroubleWithTheCreationOfThePodIsShownAndEndsWithItsCause/account-missing", typed},
		difference: "The binding to `system:auth-delegator` is not needed.", why: "Tenants cannot create such bindings; the agent verifies its caller with and without it. Manifests with the binding work.",
	}, {
		field: "envs", operator: "Deprecated. All keys of these ConfigMaps become environment variables.",
		uses:       []string{identityUse + "envs"},
		misuses:    []string{identityMisuse + "envs (missing)", typed},
		difference: "A missing ConfigMap is `SecretNotFound`, by name; a changed one counts from the next operation on.", why: "Environment variables belong to the operation, not to the pod, so nothing is restarted.",
	}, {
		field: "envSecrets", operator: "Deprecated. All keys of these Secrets become environment variables.",
		uses:       []string{identityUse + "envSecrets"},
		misuses:    []string{identityMisuse + "envSecrets (missing)", typed},
		difference: "As for `envs`.", why: "As for `envs`.",
	}, {
		field: "envRefs (Literal)", operator: "The value is that of an environment variable.",
		uses:    []string{identityUse + "envRefs.Literal"},
		misuses: []string{identityMisuse + "envRefs.Literal (names none)", identityMisuse + "envRefs (a name that is none)"},
	}, {
		field: "envRefs (Secret)", operator: "A key of a Secret in the namespace of the Stack. A reference that names nothing is retried for ever without a status.",
		uses: []string{identityUse + "envRefs.Secret", "e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"},
		misuses: []string{identityMisuse + "envRefs.Secret (missing key)", identityMisuse + "envRefs.Secret (another namespace)",
			identityMisuse + "envRefs.Secret (names none)", identityMisuse + "envRefs (unknown type)"},
		difference: "The API server refuses what names nothing and unknown types; a missing Secret or key is `SecretNotFound`.", why: "A mistake is told where it is made.",
	}, {
		field: "envRefs (Env, FS)", operator: "Deprecated since 1.x and refused since 2.0: `SpecInvalid`.",
		uses:    []string{"api.TestWhatMayWorkIsAccepted/deprecated references"},
		misuses: []string{identityMisuse + "envRefs.Env", identityMisuse + "envRefs.FS"},
	}, {
		field: "environment", operator: "Pulumi ESC environments, which are added to the imports of the stack.",
		uses:    []string{"compatibility.TestEnvironmentsReachPulumi"},
		misuses: []string{identityMisuse + "environment (backend without environments)", typed},
	},
}

var configurationRows = []row{
	{
		field: "config", operator: "Values of any JSON type. Keys without a colon belong to the project. Numbers go through a float.",
		uses: []string{configUse + "config", configUse + "config (half a megabyte)", "e2e.TestConfigurationOfEveryKindReachesTheProgram"},
		misuses: []string{configMisuse + "config (a type that the program refuses)", configMisuse + "config (a key that is none)",
			configMisuse + "config (set twice)", typed},
		difference: "Numbers keep their digits.", why: "An account number is not a measurement.",
	}, {
		field: "configRef", operator: "A key of a ConfigMap, which is mounted into the pod.",
		uses:       []string{configUse + "configRef"},
		misuses:    []string{configMisuse + "configRef (missing)", configMisuse + "configRef (missing key)", configMisuse + "configRef (without a name)"},
		difference: "Nothing is mounted; the value is read when an operation starts.", why: "A changed ConfigMap counts from the next operation on, and nothing is restarted.",
	}, {
		field: "configRef.*.name", operator: "Required.", uses: []string{configUse + "configRef"},
		misuses: []string{configMisuse + "configRef (missing)", configMisuse + "configRef (without a name)"},
	}, {
		field: "configRef.*.key", operator: "Required.", uses: []string{configUse + "configRef"}, misuses: []string{configMisuse + "configRef (missing key)"},
	}, {
		field: "configRef.*.json", operator: "Parses the value.", uses: []string{configUse + "configRef"}, misuses: []string{configMisuse + "configRef.json (no JSON)"},
	}, {
		field: "secrets", operator: "Deprecated. Secret values in plain text. A key that is in two of the four maps makes an error without a condition.",
		uses:       []string{configUse + "secrets"},
		misuses:    []string{configMisuse + "secrets (set twice)", typed},
		difference: "A key in two maps is `SpecInvalid`, with both places.", why: "It has no defined value, and the user has to know.",
	}, {
		field: "secretsRef (Literal)", operator: "A secret value in plain text.", uses: []string{configUse + "secretsRef.Literal"},
		misuses: []string{"api.TestWhatCannotWorkIsRefusedWithAClearMessage/literal without a value"},
	}, {
		field: "secretsRef (Secret)", operator: "A key of a Secret, which is mounted into the pod.",
		uses:       []string{configUse + "secretsRef.Secret", "e2e.TestSecretOutputsAreInTheirSecretAndNowhereElse"},
		misuses:    []string{configMisuse + "secretsRef (missing)", configMisuse + "secretsRef (another namespace)"},
		difference: "Nothing is mounted; the value is read when an operation starts.", why: "As for `configRef`.",
	}, {
		field: "secretsRef (Env, FS)", operator: "Deprecated since 1.x and refused since 2.0: `SpecInvalid`.",
		uses:    []string{"api.TestWhatMayWorkIsAccepted/deprecated references"},
		misuses: []string{configMisuse + "secretsRef.Env", configMisuse + "secretsRef.FS"},
	},
}
