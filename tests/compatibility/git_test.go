package compatibility_test

import (
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// isCommit expects that the Stack was deployed from the only commit of the repositories.
func isCommit(s *play, stack *pulumiv1.Stack) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(programsCommit))
	s.Expect(scene.Output(stack, "text")).To(Equal(`"none"`))
}

func isPrivateCommit(s *play, stack *pulumiv1.Stack) {
	s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(privateCommit))
}

func TestGitFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "branch", manifest: "git-branch", shows: isCommit},
		{field: "branch (full reference)", manifest: "git-branch", patch: "{spec: {branch: refs/heads/main}}", shows: isCommit},
		{field: "commit", manifest: "git-commit", shows: isCommit},
		{field: "repoDir (without one)", manifest: "git-branch", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/flat', repoDir: null}}",
			shows: func(s *play, stack *pulumiv1.Stack) { s.Expect(stack.Status.ProjectInfo.Name).To(Equal("flat")) }},
		{field: "shallow", manifest: "git-branch", patch: "{spec: {shallow: true}}", shows: isCommit},
		{field: "gitAuth.accessToken", manifest: "git-token", shows: isPrivateCommit},
		{field: "gitAuth.basicAuth", manifest: "git-basic", shows: isPrivateCommit},
		{field: "gitAuth.sshAuth", manifest: "git-ssh", shows: isPrivateCommit},
		{field: "gitAuthSecret (accessToken)", manifest: "git-secret", shows: isPrivateCommit},
		{field: "gitAuthSecret (user name and password)", manifest: "git-basic", patch: "{spec: {gitAuth: null, gitAuthSecret: git}}", shows: isPrivateCommit},
		{field: "gitAuthSecret (private key)", manifest: "git-ssh", patch: "{spec: {gitAuth: null, gitAuthSecret: git}}", shows: isPrivateCommit},
	})
}

func TestMisusedGitFieldsAreExplainedAndHeal(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const (
		invalid, failed = pulumiv1.SpecInvalidReason, pulumiv1.RetryingAfterFailureReason
		missing, denied = pulumiv1.SecretNotFoundReason, pulumiv1.AuthenticationFailedReason
		noRevision      = pulumiv1.RevisionNotFoundReason
		nobody          = "{secret: {name: nobody}}"
	)
	testMisuses(t, []misuse{
		{field: "projectRepo (absent)", manifest: "git-branch", patch: "{spec: {projectRepo: null}}", reason: invalid, says: "spec.projectRepo is missing"},
		{field: "projectRepo (malformed)", manifest: "git-branch", patch: "{spec: {projectRepo: 'this is no URL'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (a file)", manifest: "git-branch", patch: "{spec: {projectRepo: 'file:///etc'}}", reason: invalid, says: "spec.projectRepo: file:// is not accepted"},
		{field: "projectRepo (a command)", manifest: "git-branch", patch: "{spec: {projectRepo: 'ext::sh -c touch% /tmp/pwned'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (a flag)", manifest: "git-branch", patch: "{spec: {projectRepo: '--upload-pack=/bin/false'}}", reason: invalid, says: "spec.projectRepo: the URL of the git repository"},
		{field: "projectRepo (not there)", manifest: "git-branch", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/nobody'}}",
			reason: pulumiv1.RepositoryNotFoundReason, says: "acmecorp/nobody"},
		{field: "projectRepo (no server)", manifest: "git-branch", patch: "{spec: {projectRepo: 'http://127.0.0.1:1/acmecorp/nobody'}}",
			reason: pulumiv1.SourceUnavailableReason, says: "127.0.0.1:1"},
		{field: "branch (not there)", manifest: "git-branch", patch: "{spec: {branch: nowhere}}", reason: noRevision, says: "nowhere"},
		{field: "branch (hostile)", manifest: "git-branch", patch: "{spec: {branch: '--upload-pack=touch /tmp/pwned'}}", reason: noRevision, says: "cannot be the name of a branch"},
		{field: "branch (beside a commit)", manifest: "git-branch", patch: "{spec: {commit: abc}}", reason: invalid, says: "spec.branch and spec.commit are both set"},
		{field: "branch (neither)", manifest: "git-branch", patch: "{spec: {branch: null}}", reason: invalid, says: "spec.branch"},
		{field: "commit (not there)", manifest: "git-commit", patch: "{spec: {commit: '0123456789012345678901234567890123456789'}}", reason: noRevision, says: "0123456789012345678901234567890123456789"},
		{field: "repoDir (missing)", manifest: "git-branch", patch: "{spec: {repoDir: nowhere}}", reason: failed, says: "nowhere"},
		{field: "repoDir (outside)", manifest: "git-branch", patch: "{spec: {repoDir: ../../../etc}}", reason: failed, says: "../../../etc"},
		{field: "gitAuthSecret (missing)", manifest: "git-secret", patch: "{spec: {gitAuthSecret: nobody}}", reason: missing, says: "nobody"},
		{field: "gitAuthSecret (without its keys)", manifest: "git-secret", patch: "{spec: {gitAuthSecret: passphrase}}", reason: missing, says: "passphrase"},
		{field: "gitAuth (none for a private repository)", manifest: "git-token", patch: "{spec: {gitAuth: null}}", reason: denied, says: "set gitAuth"},
		{field: "gitAuth.accessToken (missing)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: " + nobody + "}}}", reason: missing, says: "nobody"},
		{field: "gitAuth.accessToken (wrong)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {secret: {name: passphrase, key: value}}}}}", reason: denied, says: "passphrase"},
		{field: "gitAuth.accessToken (Env)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {type: Env, env: {name: HOME}, secret: null}}}}",
			reason: invalid, says: "spec.gitAuth.accessToken"},
		{field: "gitAuth.accessToken (another namespace)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: {secret: {namespace: kube-system}}}}}",
			reason: invalid, says: "spec.gitAuth.accessToken"},
		{field: "gitAuth.basicAuth.userName (absent)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {userName: null}}}}", refused: "spec.gitAuth.basicAuth.userName: Required value"},
		{field: "gitAuth.basicAuth.userName (missing)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {userName: " + nobody + "}}}}", reason: missing, says: "nobody"},
		{field: "gitAuth.basicAuth.password (missing key)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {password: {secret: {key: nothing}}}}}}", reason: missing, says: "nothing"},
		{field: "gitAuth.basicAuth.password (wrong)", manifest: "git-basic", patch: "{spec: {gitAuth: {basicAuth: {password: {secret: {key: username}}}}}}", reason: denied, says: "git"},
		{field: "gitAuth.sshAuth.sshPrivateKey (no key)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {sshPrivateKey: {secret: {key: password}}}}}}", reason: denied, says: "private key"},
		{field: "gitAuth.sshAuth.password (wrong)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {password: {secret: {key: known_hosts}}}}}}", reason: denied, says: "git"},
		{field: "gitAuth.sshAuth.password (absent)", manifest: "git-ssh", patch: "{spec: {gitAuth: {sshAuth: {password: null}}}}", reason: denied, says: "git"},
		{field: "gitAuth.githubApp (incomplete)", manifest: "git-token", patch: "{spec: {gitAuth: {accessToken: null, githubApp: {appID: {type: Literal, literal: {value: '1'}}}}}}",
			refused: "spec.gitAuth.githubApp.installationID: Required value"},
	})
}

func TestServerWhoseKeyIsNotKnownGetsNothing(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "misuse-known-hosts")
	objects := s.manifest("manifests/git-ssh", "")
	delete(objects[0].Object["data"].(map[string]any), "known_hosts")
	s.Expect(s.applyAll(objects)).To(Succeed())
	s.AwaitStack("git-ssh", notReady(pulumiv1.HostKeyUnknownReason, "known hosts"))
	s.apply("manifests/git-ssh")
	s.RequestStack("git-ssh")
	s.awaitReady("git-ssh")
}
