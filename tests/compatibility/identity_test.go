package compatibility_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// ran expects that pulumi was called for the Stack with all of the texts in its arguments, environment and configuration.
func ran(texts ...string) func(*play, *pulumiv1.Stack) {
	return func(s *play, stack *pulumiv1.Stack) {
		calls := pulumi.of(s, stack)
		for _, text := range texts {
			s.Expect(strings.Contains(calls, text)).To(BeTrue(), "%q is not in what pulumi was called with", text)
		}
	}
}

// state returns what the backend of the scene has for a stack of a project.
func (s *play) state(project, stack string) string {
	dir := strings.TrimPrefix(system.BackendURL, "file://")
	content, err := os.ReadFile(filepath.Join(dir, s.Name, ".pulumi", "stacks", project, stack+".json"))
	s.Succeed(err)
	return string(content)
}

func TestIdentityFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "accessTokenSecret", manifest: "identity", shows: ran("PULUMI_ACCESS_TOKEN=canary-of-a-token")},
		{field: "backend", manifest: "plain", shows: func(s *play, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "dev")).To(ContainSubstring("::echo-dev"))
		}},
		{field: "stack", manifest: "identity", shows: func(s *play, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "identity")).To(ContainSubstring("::echo-identity"))
		}},
		{field: "secretsProvider", manifest: "identity", shows: func(s *play, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "identity")).To(ContainSubstring(`"type":"passphrase"`))
		}},
		{field: "envs", manifest: "identity", shows: ran("FROM_CONFIGMAP=of-the-configmap")},
		{field: "envSecrets", manifest: "identity", shows: ran("FROM_SECRET=canary-of-the-secret")},
		{field: "envRefs.Literal", manifest: "identity", shows: ran("FROM_LITERAL=a = 'b'")},
		{field: "envRefs.Secret", manifest: "identity", shows: ran("FROM_KEY=canary-of-a-key")},
	})
}

func TestMisusedIdentityFieldsAreExplainedAndHeal(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const missing, invalid, failed = pulumiv1.SecretNotFoundReason, pulumiv1.SpecInvalidReason, pulumiv1.RetryingAfterFailureReason
	huge := strings.Repeat("x", 600)
	testMisuses(t, []misuse{
		{field: "accessTokenSecret (missing)", manifest: "identity", patch: "{spec: {accessTokenSecret: nobody}}", reason: missing, says: "nobody",
			heal: "{apiVersion: v1, kind: Secret, metadata: {name: nobody}, stringData: {accessToken: canary}}"},
		{field: "accessTokenSecret (without its key)", manifest: "identity", patch: "{spec: {accessTokenSecret: credentials}}", reason: missing, says: "accessToken"},
		// pulumi takes what it does not know for the address of a Pulumi Cloud.
		{field: "backend (unknown scheme)", manifest: "plain", patch: "{spec: {backend: 'carrier-pigeon://loft'}}", reason: failed, says: "PULUMI_ACCESS_TOKEN must be set for login"},
		{field: "backend (not there)", manifest: "plain", patch: "{spec: {backend: 'file:///no/such/directory'}}", reason: failed, says: "/no/such/directory"},
		{field: "stack (absent)", manifest: "plain", patch: "{spec: {stack: null}}", refused: "spec.stack: Required value"},
		{field: "stack (empty)", manifest: "plain", patch: "{spec: {stack: ''}}", reason: invalid, says: "spec.stack"},
		{field: "stack (hostile)", manifest: "plain", patch: "{spec: {stack: '../../../etc/passwd'}}", reason: failed, says: "../../../etc/passwd"},
		{field: "stack (a flag)", manifest: "plain", patch: "{spec: {stack: '--help'}}", reason: failed, says: "--help"},
		{field: "stack (huge)", manifest: "plain", patch: "{spec: {stack: " + huge + "}}", reason: failed, says: "the name of the stack"},
		{field: "secretsProvider (unknown)", manifest: "plain", patch: "{spec: {secretsProvider: 'nosuch://key'}}", reason: failed, says: "nosuch"},
		{field: "environment (backend without environments)", manifest: "plain", patch: "{spec: {environment: [team/base]}}", reason: failed, says: "environment"},
		{field: "envs (missing)", manifest: "identity", patch: "{spec: {envs: [nobody]}}", reason: missing, says: "nobody"},
		{field: "envSecrets (missing)", manifest: "identity", patch: "{spec: {envSecrets: [nobody]}}", reason: missing, says: "nobody"},
		{field: "envRefs.Secret (missing key)", manifest: "identity", patch: "{spec: {envRefs: {FROM_KEY: {secret: {key: nothing}}}}}", reason: missing, says: "nothing"},
		{field: "envRefs.Secret (another namespace)", manifest: "identity", patch: "{spec: {envRefs: {FROM_KEY: {secret: {namespace: kube-system}}}}}", reason: invalid,
			says: "spec.envRefs[FROM_KEY]: secret kube-system/credentials is in another namespace"},
		{field: "envRefs.Secret (names none)", manifest: "identity", patch: "{spec: {envRefs: {FROM_KEY: {secret: null}}}}", reason: invalid,
			says: "spec.envRefs[FROM_KEY]: type Secret needs the field secret"},
		{field: "envRefs.Literal (names none)", manifest: "identity", patch: "{spec: {envRefs: {FROM_LITERAL: {literal: null}}}}", reason: invalid,
			says: "spec.envRefs[FROM_LITERAL]: type Literal needs the field literal"},
		{field: "envRefs.Env", manifest: "identity", patch: "{spec: {envRefs: {FROM_ENV: {type: Env, env: {name: KUBECONFIG}}}}}", reason: invalid,
			says: "spec.envRefs[FROM_ENV]: type Env is not supported any more"},
		{field: "envRefs.FS", manifest: "identity", patch: "{spec: {envRefs: {FROM_FILE: {type: FS, filesystem: {path: /etc/passwd}}}}}", reason: invalid,
			says: "spec.envRefs[FROM_FILE]: type FS is not supported any more"},
		{field: "envRefs (unknown type)", manifest: "identity", patch: "{spec: {envRefs: {FROM_KEY: {type: Vault}}}}", reason: invalid,
			says: `spec.envRefs[FROM_KEY]: unknown type "Vault"`},
		{field: "envRefs (a name that is none)", manifest: "identity", patch: "{spec: {envRefs: {'A=B': {type: Literal, literal: {value: c}}}}}", reason: failed,
			says: `"A=B" cannot be the name of an environment variable`},
	})
}

// TestEnvironmentsReachPulumi ends where pulumi asks the service for them, which only Pulumi Cloud has.
func TestEnvironmentsReachPulumi(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newPlay(t, "use-environment")
	s.applyPatched("plain", "{spec: {environment: [team/base, team/app]}}")
	stack := s.AwaitStack("plain", notReady(pulumiv1.RetryingAfterFailureReason, "does not support environments"))
	ran("environment:", "team/base", "team/app")(s, stack)
}
