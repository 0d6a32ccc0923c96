package compatibility_test

const invalidReference = "git.TestURLIsOneOfARemoteRepository"

var gitRows = []row{
	{
		field: "projectRepo", operator: "The URL of a git repository: http, https, ssh, or `user@host:path`.",
		uses: []string{gitUse + "branch", gitUse + "gitAuth.sshAuth", "e2e.TestStackFollowsTheBranchOfARepositoryDirectly", "compatibility.TestRepositoryThatIsRenamed"},
		misuses: []string{gitMisuse + "projectRepo (absent)", gitMisuse + "projectRepo (malformed)", gitMisuse + "projectRepo (a file)", gitMisuse + "projectRepo (a command)",
			gitMisuse + "projectRepo (a flag)", gitMisuse + "projectRepo (not there)", gitMisuse + "projectRepo (no server)", invalidReference},
		difference: "The controller looks and clones, once for all Stacks. `file://` is refused.", why: "One commit for a hundred Stacks is one clone; a file would be one of the controller.",
	}, {
		field: "repoDir", operator: "The directory of the program.", uses: []string{gitUse + "branch", gitUse + "repoDir (without one)"},
		misuses: []string{gitMisuse + "repoDir (missing)", gitMisuse + "repoDir (outside)"},
	}, {
		field: "commit", operator: "A SHA, which is used as it is, or a name, which is looked up and not followed.",
		uses:       []string{gitUse + "commit", "e2e.TestPinnedCommitStaysWhateverIsPushed"},
		misuses:    []string{gitMisuse + "commit (not there)", gitMisuse + "branch (beside a commit)"},
		difference: "A commit that is not there is `RevisionNotFound`.", why: "In the operator it is found missing in the pod, which never starts.",
	}, {
		field: "branch", operator: "A branch, a tag or a full reference, looked at every `resyncFrequencySeconds`, by each Stack for itself.",
		uses: []string{gitUse + "branch", gitUse + "branch (full reference)", "e2e.TestTagIsDeployed", "compatibility.TestHundredStacksOnABranchLookAtItOnce",
			"compatibility.TestBranchThatIsForcePushedDeletedAndPushedAgain"},
		misuses: []string{gitMisuse + "branch (not there)", gitMisuse + "branch (hostile)", gitMisuse + "branch (beside a commit)",
			gitMisuse + "branch (neither)", "e2e.TestStackWaitsForABranchThatDoesNotExistYet"},
		difference: "One look serves all Stacks of a branch.", why: "Git servers limit who asks often.",
	}, {
		field: "shallow", operator: "Clones one commit only.", uses: []string{gitUse + "shallow", gitUse + "commit"}, misuses: []string{typed},
		difference: "Only that commit is fetched whenever the server can do so, whatever this says.", why: "No program can see the history: it runs from an archive of the commit.",
	}, {
		field: "gitAuthSecret", operator: "Deprecated. A Secret with `sshPrivateKey` (and `password`), or `accessToken`, or `username` and `password`. A missing one stalls the Stack for good.",
		uses:       []string{gitUse + "gitAuthSecret (accessToken)", gitUse + "gitAuthSecret (user name and password)", gitUse + "gitAuthSecret (private key)"},
		misuses:    []string{gitMisuse + "gitAuthSecret (missing)", gitMisuse + "gitAuthSecret (without its keys)"},
		difference: "A missing Secret is `SecretNotFound` and waited for.", why: "In GitOps the order of objects is nobody's.",
	}, {
		field: "gitAuth", operator: "The first of sshAuth, accessToken, githubApp, basicAuth. Only references of type Secret. A missing Secret stalls the Stack for good.",
		uses:       []string{gitUse + "gitAuth.accessToken", "compatibility.TestSecretThatArrivesLaterThanTheStackOfAPrivateRepository", "compatibility.TestTokenThatIsRevokedAndRenewed"},
		misuses:    []string{gitMisuse + "gitAuth (none for a private repository)", "source.TestGitFieldThatCannotBeUsedIsNamed"},
		difference: "A missing Secret is `SecretNotFound`; credentials that are not accepted are `AuthenticationFailed`. Both heal.", why: "As for `gitAuthSecret`.",
	}, {
		field: "gitAuth.accessToken", operator: "A token.", uses: []string{gitUse + "gitAuth.accessToken"},
		misuses: []string{gitMisuse + "gitAuth.accessToken (missing)", gitMisuse + "gitAuth.accessToken (wrong)", gitMisuse + "gitAuth.accessToken (Env)", gitMisuse + "gitAuth.accessToken (another namespace)"},
	}, {
		field: "gitAuth.sshAuth", operator: "A private key. Host keys are taken from the image, or not checked.", uses: []string{gitUse + "gitAuth.sshAuth"},
		misuses:    []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing", gitMisuse + "gitAuth.sshAuth.sshPrivateKey (no key)"},
		difference: "The key of the server has to be known: as `known_hosts` in the Secret, by `knownHostsRef`, or by a flag of the controller.", why: "A key that is sent to anybody is no key.",
	}, {
		field: "gitAuth.sshAuth.sshPrivateKey", operator: "Required.", uses: []string{gitUse + "gitAuth.sshAuth"}, misuses: []string{gitMisuse + "gitAuth.sshAuth.sshPrivateKey (no key)", typed},
	}, {
		field: "gitAuth.sshAuth.password", operator: "That of the private key.", uses: []string{gitUse + "gitAuth.sshAuth"},
		misuses: []string{gitMisuse + "gitAuth.sshAuth.password (wrong)", gitMisuse + "gitAuth.sshAuth.password (absent)"},
	}, {
		field: "gitAuth.basicAuth", operator: "A user name and a password.", uses: []string{gitUse + "gitAuth.basicAuth"}, misuses: []string{gitMisuse + "gitAuth.basicAuth.password (wrong)", typed},
	}, {
		field: "gitAuth.basicAuth.userName", operator: "Required.", uses: []string{gitUse + "gitAuth.basicAuth"},
		misuses: []string{gitMisuse + "gitAuth.basicAuth.userName (absent)", gitMisuse + "gitAuth.basicAuth.userName (missing)"},
	}, {
		field: "gitAuth.basicAuth.password", operator: "Required.", uses: []string{gitUse + "gitAuth.basicAuth"},
		misuses: []string{gitMisuse + "gitAuth.basicAuth.password (missing key)", gitMisuse + "gitAuth.basicAuth.password (wrong)"},
	}, {
		field: "gitAuth.githubApp", operator: "A GitHub App, at github.com only. A token is fetched at each look.",
		uses: []string{"git.TestCredentialsOverHTTP", "source.TestCredentialsAreReadFromWhereTheyAreKept"}, misuses: []string{gitMisuse + "gitAuth.githubApp (incomplete)", "git.TestCredentialsOverHTTP"},
	},
	{
		field: "gitAuth.githubApp.appID", operator: "Required.",
		uses:    []string{"source.TestCredentialsAreReadFromWhereTheyAreKept"},
		misuses: []string{"source.TestWhatIsMissingIsNamed", typed},
	},
	{
		field: "gitAuth.githubApp.installationID", operator: "Required.",
		uses:    []string{"source.TestCredentialsAreReadFromWhereTheyAreKept"},
		misuses: []string{gitMisuse + "gitAuth.githubApp (incomplete)"},
	},
	{
		field: "gitAuth.githubApp.privateKey", operator: "Required.",
		uses:    []string{"source.TestCredentialsAreReadFromWhereTheyAreKept"},
		misuses: []string{"source.TestWhatIsMissingIsNamed", typed},
	},
	{
		field: "programRef", operator: "A Program in the namespace of the Stack.", uses: []string{"compatibility.TestProgramFieldsWork"},
		misuses: []string{"compatibility.TestMisusedProgramRefIsExplainedAndHeals/programRef (missing)", sourceMisuse + "programRef (beside a Flux source)"},
	}, {
		field: "programRef.name", operator: "Required.", uses: []string{"compatibility.TestProgramFieldsWork"},
		misuses: []string{"compatibility.TestMisusedProgramRefIsExplainedAndHeals/programRef.name (absent)", "compatibility.TestMisusedProgramRefIsExplainedAndHeals/programRef.name (another namespace)"},
	},
}
