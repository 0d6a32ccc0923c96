package compatibility_test

var identityRows = []row{
	{
		field: "accessTokenSecret", operator: "Deprecated. The key `accessToken` of this Secret becomes `PULUMI_ACCESS_TOKEN`. If the Secret is missing, the pod does not start, and the Stack only reports that it waits for its workspace.",
		uses:       []string{identityUse + "accessTokenSecret"},
		misuses:    []string{identityMisuse + "accessTokenSecret (missing)", identityMisuse + "accessTokenSecret (without its key)"},
		difference: "The Stack waits for a missing Secret or key with the reason `SecretNotFound`, and names it.", why: "You see what is missing, and you can create objects in any order. The Stack continues without a restart.",
	}, {
		field: "backend", operator: "The URL of the state backend, set as `PULUMI_BACKEND_URL`. If it is empty, Pulumi Cloud is used. An entry of `envRefs` with that name takes precedence.",
		uses:    []string{identityUse + "backend", "backends.TestStackLivesInObjectStore", "backends.TestStackLivesInDatabase", "stack.TestSpecBecomesAWorkspace"},
		misuses: []string{identityMisuse + "backend (unknown scheme)", identityMisuse + "backend (not there)", "backends.TestStackSaysWhatABackendMisses"},
	},
	{
		field: "stack", operator: "Required: `stack`, `organisation/stack` or `organisation/project/stack`. Not validated: an empty name fails in the pod.",
		uses: []string{identityUse + "stack", identityUse + "backend"},
		misuses: []string{identityMisuse + "stack (absent)", identityMisuse + "stack (empty)", identityMisuse + "stack (hostile)", identityMisuse + "stack (a flag)",
			identityMisuse + "stack (huge)"},
		difference: "An empty name is rejected with `SpecInvalid`. A malformed name fails before Pulumi is started.", why: "A name cannot be taken for a flag of Pulumi or for a path.",
	}, {
		field: "secretsProvider", operator: "The secrets provider of a new stack. Ignored if the stack exists.",
		uses:       []string{identityUse + "secretsProvider", "e2e.TestSecretsProviderOfAStackFollowsItsSpec", "backends.TestSecretsAreEncryptedByKeyManagementService"},
		misuses:    []string{identityMisuse + "secretsProvider (unknown)", "e2e.TestChangedPassphraseIsReportedAndRecoversWhenItIsRestored"},
		difference: "An existing stack with another provider is re-encrypted.", why: "The description of the field in the operator's CRD promises it.",
	},
	{
		field: "serviceAccountName", operator: "The service account of the pod. It must be bound to `system:auth-delegator`.",
		uses:       []string{"pods.TestWalkthrough"},
		misuses:    []string{"pods.TestProblemWithTheCreationOfThePodIsShownAndEndsWithItsCause/account-missing", typed},
		difference: "The binding to `system:auth-delegator` is optional.", why: "Tenants cannot create such bindings. The agent verifies its caller with and without it.",
	}, {
		field: "envs", operator: "Deprecated. All keys of these ConfigMaps become environment variables.",
		uses:       []string{identityUse + "envs"},
		misuses:    []string{identityMisuse + "envs (missing)", typed},
		difference: "The Stack waits for a missing ConfigMap with the reason `SecretNotFound`. The next operation uses the values of a changed ConfigMap.", why: "Environment variables belong to the operation and not to the pod, so the pod is not restarted.",
	},
	{
		field: "envSecrets", operator: "Deprecated. All keys of these Secrets become environment variables.",
		uses:       []string{identityUse + "envSecrets"},
		misuses:    []string{identityMisuse + "envSecrets (missing)", typed},
		difference: "The Stack waits for a missing Secret with the reason `SecretNotFound`. The next operation uses the values of a changed Secret.", why: "See `envs`.",
	}, {
		field: "envRefs (Literal)", operator: "The value of an environment variable.",
		uses:    []string{identityUse + "envRefs.Literal"},
		misuses: []string{identityMisuse + "envRefs.Literal (names none)", identityMisuse + "envRefs (a name that is none)"},
	},
	{
		field: "envRefs (Secret)", operator: "A key of a Secret in the namespace of the Stack. A reference without a Secret is retried without limit and without a status.",
		uses: []string{identityUse + "envRefs.Secret", "e2e.TestMissingSecretKeyIsWaitedForAndIsNoFailure"},
		misuses: []string{identityMisuse + "envRefs.Secret (missing key)", identityMisuse + "envRefs.Secret (another namespace)",
			identityMisuse + "envRefs.Secret (names none)", identityMisuse + "envRefs (unknown type)"},
		difference: "A reference without a Secret or with an unknown type is rejected with `SpecInvalid`. The Stack waits for a missing Secret or key with `SecretNotFound`.", why: "The message names the mistake.",
	}, {
		field: "envRefs (File)", operator: "Rejects the type.",
		uses:       []string{"update.TestVariablesOfFilesAreReadByTheAgent"},
		misuses:    []string{"stack.TestUnusableSpecIsRefusedWithItsPlace"},
		difference: "New: a file of the workspace pod below `/var/run/secrets/`.", why: "Some providers take the token of a cloud identity, and not the path to it.",
	}, {
		field: "envRefs (Env, FS)", operator: "Deprecated in 1.x, and rejected with `SpecInvalid` since 2.0.",
		uses:    []string{"api.TestWhatMayWorkIsAccepted/deprecated references"},
		misuses: []string{identityMisuse + "envRefs.Env", identityMisuse + "envRefs.FS"},
	},
	same("environment", "Pulumi ESC environments, which are added to the imports of the stack.",
		"compatibility.TestEnvironmentsReachPulumi", identityMisuse+"environment (backend without environments)", typed),
}

var configurationRows = []row{
	{
		field: "config", operator: "Values of any JSON type. A key without a colon belongs to the project. Numbers are converted to floating point.",
		uses: []string{configUse + "config", configUse + "config (half a megabyte)", "e2e.TestConfigurationOfEveryKindReachesTheProgram"},
		misuses: []string{configMisuse + "config (a type that the program refuses)", configMisuse + "config (a key that is none)",
			configMisuse + "config (set twice)", typed},
		difference: "A number keeps all its digits; inside of an object, 64-bit integers do.", why: "Long numbers, such as account numbers, do not change.",
	}, {
		field: "configRef", operator: "A key of a ConfigMap. The ConfigMap is mounted into the pod.",
		uses:       []string{configUse + "configRef"},
		misuses:    []string{configMisuse + "configRef (missing)", configMisuse + "configRef (missing key)", configMisuse + "configRef (without a name)"},
		difference: "Nothing is mounted. The value is read when an operation starts.", why: "The next operation uses a changed value, and the pod is not restarted.",
	},
	same("configRef.*.name", "Required.", configUse+"configRef", configMisuse+"configRef (missing)",
		configMisuse+"configRef (without a name)"),
	{
		field: "configRef.*.key", operator: "Required.", uses: []string{configUse + "configRef"}, misuses: []string{configMisuse + "configRef (missing key)"},
	},
	same("configRef.*.json", "Parses the value as JSON.", configUse+"configRef", configMisuse+"configRef.json (no JSON)"),
	{
		field: "secrets", operator: "Deprecated. Secret values in plain text. A key that is set in two of the four maps of configuration causes an error without a condition.",
		uses:       []string{configUse + "secrets"},
		misuses:    []string{configMisuse + "secrets (set twice)", typed},
		difference: "A key that is set in two maps is rejected with `SpecInvalid`. The message names both places.", why: "Such a key has no defined value.",
	},
	same("secretsRef (Literal)", "A secret value in plain text.", configUse+"secretsRef.Literal",
		configMisuse+"secretsRef.Literal (names none)"),
	{
		field: "secretsRef (Secret)", operator: "A key of a Secret. The Secret is mounted into the pod.",
		uses:       []string{configUse + "secretsRef.Secret", "e2e.TestSecretOutputsAreInTheirSecretAndNowhereElse"},
		misuses:    []string{configMisuse + "secretsRef (missing)", configMisuse + "secretsRef (another namespace)"},
		difference: "Nothing is mounted. The value is read when an operation starts.", why: "See `configRef`.",
	},
	same("secretsRef (Env, FS)", "Deprecated in 1.x, and rejected with `SpecInvalid` since 2.0.",
		"api.TestWhatMayWorkIsAccepted/deprecated references", configMisuse+"secretsRef.Env", configMisuse+"secretsRef.FS"),
}
