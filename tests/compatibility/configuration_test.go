package compatibility_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/suite"
)

func TestConfigurationFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "config", manifest: "configuration", shows: func(s *play, stack *pulumiv1.Stack) {
			ran("aws:region", "us-east-1", "echo:enabled")(s, stack)
			s.Expect(scene.Output(stack, "text")).To(Equal(`"hello"`))
			s.Expect(scene.Output(stack, "count")).To(Equal("3"))
		}},
		{field: "config (half a megabyte)", manifest: "configuration", patch: "{spec: {config: {text: " + strings.Repeat("x", 500_000) + "}}}",
			shows: func(s *play, stack *pulumiv1.Stack) {
				s.Expect(len(stack.Status.Outputs["text"].Raw)).To(BeNumerically("<=", 500_002))
			}},
		{field: "configRef", manifest: "configuration", shows: ran("echo:fromMap", "from the configmap", "echo:fromJSON", "zones", "1234567890123456789")},
		{field: "secrets", manifest: "configuration", shows: isEncrypted("echo:inPlainText", "canary-in-plain-text")},
		{field: "secretsRef.Literal", manifest: "configuration", shows: isEncrypted("echo:literal", "canary-in-a-literal")},
		{field: "secretsRef.Secret", manifest: "configuration", shows: isEncrypted("echo:password", "canary-of-a-password")},
	})
}

// isEncrypted expects that the configuration has the key, and its value only in encrypted form.
func isEncrypted(key, value string) func(*play, *pulumiv1.Stack) {
	return func(s *play, stack *pulumiv1.Stack) {
		calls := pulumi.of(s, stack)
		s.Expect(strings.Contains(calls, key)).To(BeTrue(), "%s is not in the configuration", key)
		s.Expect(strings.Contains(calls, value)).To(BeFalse(), "the value of %s is in clear", key)
	}
}

func TestMisusedConfigurationFieldsAreExplainedAndHeal(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const missing, invalid, failed = pulumiv1.SecretNotFoundReason, pulumiv1.SpecInvalidReason, pulumiv1.RetryingAfterFailureReason
	testMisuses(t, []misuse{
		{field: "config (a type that the program refuses)", manifest: "configuration", patch: "{spec: {config: {count: many}}}", reason: failed, says: "count"},
		{field: "config (a key that is none)", manifest: "configuration", patch: "{spec: {config: {'a:b:c:d': x}}}", reason: failed, says: "a:b:c:d"},
		{field: "config (set twice)", manifest: "configuration", patch: "{spec: {config: {password: x}}}", reason: invalid,
			says: `configuration key "password" is set in spec.config and in spec.secretsRef`},
		{field: "configRef (missing)", manifest: "configuration", patch: "{spec: {configRef: {fromMap: {name: nobody}}}}", reason: missing, says: "nobody",
			heal: "{apiVersion: v1, kind: ConfigMap, metadata: {name: nobody}, data: {plain: found}}"},
		{field: "configRef (missing key)", manifest: "configuration", patch: "{spec: {configRef: {fromMap: {key: nothing}}}}", reason: missing, says: "nothing"},
		{field: "configRef (without a name)", manifest: "configuration", patch: "{spec: {configRef: {fromMap: {name: null}}}}", refused: "spec.configRef.fromMap.name: Required value"},
		{field: "configRef.json (no JSON)", manifest: "configuration", patch: "{spec: {configRef: {fromMap: {json: true}}}}", reason: failed, says: "fromMap"},
		{field: "secrets (set twice)", manifest: "configuration", patch: "{spec: {secrets: {text: canary}}}", reason: invalid,
			says: `configuration key "text" is set in spec.config and in spec.secrets`},
		{field: "secretsRef.Literal (names none)", manifest: "configuration", patch: "{spec: {secretsRef: {literal: {literal: null}}}}", reason: invalid,
			says: "spec.secretsRef[literal]: type Literal needs the field literal"},
		{field: "secretsRef (missing)", manifest: "configuration", patch: "{spec: {secretsRef: {password: {secret: {name: nobody}}}}}", reason: missing, says: "nobody"},
		{field: "secretsRef (another namespace)", manifest: "configuration", patch: "{spec: {secretsRef: {password: {secret: {namespace: kube-system}}}}}", reason: invalid,
			says: "spec.secretsRef[password]: secret kube-system/credentials is in another namespace"},
		{field: "secretsRef.Env", manifest: "configuration", patch: "{spec: {secretsRef: {home: {type: Env, env: {name: HOME}}}}}", reason: invalid,
			says: "spec.secretsRef[home]: type Env is not supported any more"},
		{field: "secretsRef.FS", manifest: "configuration", patch: "{spec: {secretsRef: {file: {type: FS, filesystem: {path: /etc/passwd}}}}}", reason: invalid,
			says: "spec.secretsRef[file]: type FS is not supported any more"},
	})
}
