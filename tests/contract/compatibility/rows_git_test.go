package compatibility_test

const invalidReference = "git.TestURLIsOneOfARemoteRepository"

var gitRows = []row{
	{
		field: "projectRepo", operator: "The URL of a git repository: http, https, ssh, or `user@host:path`.",
		uses: []string{gitUse + "branch", gitUse + "gitAuth.sshAuth", "e2e.TestStackFollowsTheBranchOfARepositoryDirectly", "compatibility.TestRepositoryThatIsRenamed"},
		misuses: []string{gitMisuse + "projectRepo (absent)", gitMisuse + "projectRepo (malformed)", gitMisuse + "projectRepo (a file)", gitMisuse + "projectRepo (a command)",
			gitMisuse + "projectRepo (a flag)", gitMisuse + "projectRepo (not there)", gitMisuse + "projectRepo (no server)", invalidReference},
		difference: "The controller checks out the repository, once for all Stacks. `file://` is rejected.", why: "A commit for a hundred Stacks is fetched once. A `file://` URL would name a directory of the controller.",
	}, {
		field: "repoDir", operator: "The directory of the program.", uses: []string{gitUse + "branch", gitUse + "repoDir (without one)"},
		misuses: []string{gitMisuse + "repoDir (missing)", gitMisuse + "repoDir (outside)"},
	},
	{
		field: "commit", operator: "A hash, which is used as it is, or a name, which is resolved but not followed.",
		uses:       []string{gitUse + "commit", "e2e.TestPinnedCommitStaysWhateverIsPushed"},
		misuses:    []string{gitMisuse + "commit (not there)", gitMisuse + "branch (beside a commit)"},
		difference: "A missing commit is reported with `RevisionNotFound`.", why: "With the operator, the pod finds that the commit is missing and never starts.",
	}, {
		field: "branch", operator: "A branch, a tag or a full reference. Each Stack checks it every `resyncFrequencySeconds`.",
		uses: []string{gitUse + "branch", gitUse + "branch (full reference)", "e2e.TestTagIsDeployed", "compatibility.TestHundredStacksOnABranchPollItOnce",
			"compatibility.TestBranchThatIsForcePushedDeletedAndPushedAgain"},
		misuses: []string{gitMisuse + "branch (not there)", gitMisuse + "branch (hostile)", gitMisuse + "branch (beside a commit)",
			gitMisuse + "branch (neither)", "e2e.TestStackWaitsForABranchThatDoesNotExistYet"},
		difference: "One check serves all Stacks that follow the branch.", why: "Git servers limit the rate of requests.",
	},
	{
		field: "shallow", operator: "Clones only one commit.", uses: []string{gitUse + "shallow", gitUse + "commit"}, misuses: []string{typed},
		difference: "No effect. The controller never fetches history if the server supports that.", why: "A program runs from an archive of the commit and cannot see the history.",
	}, {
		field: "gitAuthSecret", operator: "Deprecated. A Secret with `sshPrivateKey` and `password`, `accessToken`, or `username` and `password`. If it is missing, the Stack is Stalled and not retried.",
		uses:       []string{gitUse + "gitAuthSecret (accessToken)", gitUse + "gitAuthSecret (user name and password)", gitUse + "gitAuthSecret (private key)"},
		misuses:    []string{gitMisuse + "gitAuthSecret (missing)", gitMisuse + "gitAuthSecret (without its keys)"},
		difference: "The Stack waits for a missing Secret with the reason `SecretNotFound`.", why: "With GitOps, objects are created in any order.",
	},
	{
		field: "gitAuth", operator: "Uses the first one of `sshAuth`, `accessToken`, `githubApp` and `basicAuth`. Only references of the type `Secret` are allowed. If a Secret is missing, the Stack is Stalled and not retried.",
		uses:       []string{gitUse + "gitAuth.accessToken", "compatibility.TestSecretThatArrivesLaterThanTheStackOfAPrivateRepository", "compatibility.TestTokenThatIsRevokedAndRenewed"},
		misuses:    []string{gitMisuse + "gitAuth (none for a private repository)", "source.TestGitFieldThatCannotBeUsedIsNamed"},
		difference: "A missing Secret is reported with `SecretNotFound`, and rejected credentials with `AuthenticationFailed`. The Stack continues when you correct them.", why: "See `gitAuthSecret`.",
	}, {
		field: "gitAuth.accessToken", operator: "A token.", uses: []string{gitUse + "gitAuth.accessToken"},
		misuses: []string{gitMisuse + "gitAuth.accessToken (missing)", gitMisuse + "gitAuth.accessToken (wrong)", gitMisuse + "gitAuth.accessToken (Env)", gitMisuse + "gitAuth.accessToken (another namespace)"},
	},
	{
		field: "gitAuth.sshAuth", operator: "A private key. Host keys come from the image or are not verified.", uses: []string{gitUse + "gitAuth.sshAuth"},
		misuses:    []string{"compatibility.TestServerWhoseKeyIsNotKnownGetsNothing", gitMisuse + "gitAuth.sshAuth.sshPrivateKey (no key)"},
		difference: "The host key of the server must be known: from `known_hosts` in the Secret, from `knownHostsRef`, or from the controller flag `--git-known-hosts-file`.", why: "Without a known host key, any server could pretend to be the repository.",
	}, {
		field: "gitAuth.sshAuth.sshPrivateKey", operator: "Required.", uses: []string{gitUse + "gitAuth.sshAuth"}, misuses: []string{gitMisuse + "gitAuth.sshAuth.sshPrivateKey (no key)", typed},
	},
	same("gitAuth.sshAuth.password", "The passphrase of the private key.", gitUse+"gitAuth.sshAuth",
		gitMisuse+"gitAuth.sshAuth.password (wrong)", gitMisuse+"gitAuth.sshAuth.password (absent)"),
	{
		field: "gitAuth.basicAuth", operator: "A user name and a password.", uses: []string{gitUse + "gitAuth.basicAuth"}, misuses: []string{gitMisuse + "gitAuth.basicAuth.password (wrong)", typed},
	},
	same("gitAuth.basicAuth.userName", "Required.", gitUse+"gitAuth.basicAuth", gitMisuse+"gitAuth.basicAuth.userName (absent)",
		gitMisuse+"gitAuth.basicAuth.userName (missing)"),
	{
		field: "gitAuth.basicAuth.password", operator: "Required.", uses: []string{gitUse + "gitAuth.basicAuth"},
		misuses: []string{gitMisuse + "gitAuth.basicAuth.password (missing key)", gitMisuse + "gitAuth.basicAuth.password (wrong)"},
	},
	{
		field: "gitAuth.githubApp", operator: "A GitHub App on github.com. A token is requested for each check.",
		uses: []string{"git.TestCredentialsOverHTTP", "source.TestCredentialsAreReadFromWhereTheyAreKept"}, misuses: []string{gitMisuse + "gitAuth.githubApp (incomplete)", "git.TestCredentialsOverHTTP"},
	},
	same("gitAuth.githubApp.appID", "Required.", "source.TestCredentialsAreReadFromWhereTheyAreKept", "source.TestWhatIsMissingIsNamed",
		typed),
	same("gitAuth.githubApp.installationID", "Required.", "source.TestCredentialsAreReadFromWhereTheyAreKept",
		gitMisuse+"gitAuth.githubApp (incomplete)"),
	same("gitAuth.githubApp.privateKey", "Required.", "source.TestCredentialsAreReadFromWhereTheyAreKept",
		"source.TestWhatIsMissingIsNamed", typed),
	same("programRef", "A Program in the namespace of the Stack.", "compatibility.TestProgramFieldsWork",
		"compatibility.TestMisusedProgramRefIsExplainedAndRecovers/programRef (missing)", sourceUse+"programRef (below a Flux source)"),
	{
		field: "programRef.name", operator: "Required.", uses: []string{"compatibility.TestProgramFieldsWork"},
		misuses: []string{"compatibility.TestMisusedProgramRefIsExplainedAndRecovers/programRef.name (absent)", "compatibility.TestMisusedProgramRefIsExplainedAndRecovers/programRef.name (another namespace)"},
	},
}
