package compatibility_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// use is a manifest with a field that is used as intended.
type use struct {
	// field is the path below spec, and the name of the subtest.
	field string
	// manifest is the name of the file below testdata/manifests, and of its Stack.
	manifest string
	// patch changes that Stack, as kubectl patch --type=merge does.
	patch string
	// shows checks the effect of the field once the Stack is ready; nil if there is nothing else to check.
	shows func(s *fixture, stack *pulumiv1.Stack)
}

func testUses(t *testing.T, uses []use) {
	t.Parallel()
	for _, u := range uses {
		t.Run(u.field, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, namespaceFor("use", u.field))
			s.Expect(s.applyAll(s.manifest("manifests/"+u.manifest, u.patch))).To(Succeed())
			if stack := s.awaitReady(u.manifest); u.shows != nil {
				u.shows(s, stack)
			}
		})
	}
}

// misuse is a manifest with a field that cannot work.
type misuse struct {
	// field is the path below spec, optionally followed by what is wrong, in parentheses. It is the name of the subtest.
	field string
	// manifest and patch are as in use. Without the patch, the manifest heals the Stack.
	manifest, patch string
	// refused is a part of the error of the API server; empty if it admits the manifest.
	refused string
	// reason is the reason of the condition Ready, and says a part of its message. The reason is empty for a Stack that becomes ready
	// nevertheless.
	reason, says string
	// heal, if not empty, is applied to heal the Stack, instead of the manifest without the patch.
	heal string
}

func testMisuses(t *testing.T, misuses []misuse) {
	t.Parallel()
	for _, m := range misuses {
		t.Run(m.field, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, namespaceFor("misuse", m.field))
			err := s.applyAll(s.manifest("manifests/"+m.manifest, m.patch))
			if m.refused != "" {
				s.Expect(err).To(MatchError(ContainSubstring(m.refused)))
				return
			}
			s.Succeed(err)
			stack := s.AwaitStack(m.manifest, notReady(m.reason, m.says))
			s.Expect(len(statuscheck.Message(stack))).To(BeNumerically("<", 5000))
			s.Expect(stack.Status.LastAppliedRevision).To(BeEmpty(), "nothing may be deployed from a spec that is wrong")
			if m.heal != "" {
				s.Expect(s.applyAll(s.parse(m.heal))).To(Succeed())
			} else {
				s.replace("manifests/" + m.manifest)
			}
			s.awaitReady(m.manifest)
		})
	}
}

// notReady returns a function that reports whether a Stack has the condition Ready=False with the reason and a message that contains the
// text.
func notReady(reason, says string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.NotReady(reason)(stack) && strings.Contains(statuscheck.Message(stack), says)
	}
}

// namespaceFor returns a name for a namespace, made from the name of a test.
func namespaceFor(kind, test string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, kind+"-"+test)
	return strings.Trim(name[:min(len(name), 63)], "-")
}

// staysSo expects that a Stack stays in a state for longer than the controller needs to reconcile it again.
func (s *fixture) staysSo(name string, is func(*pulumiv1.Stack) bool) {
	stack := &pulumiv1.Stack{}
	s.Consistently(func(g Gomega) {
		g.Expect(system.Client.Get(s.Context(), s.Key(name), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v\nlast update: %+v", stack.Status.Conditions, stack.Status.LastUpdate)
	}).WithTimeout(2 * time.Second).Should(Succeed())
}

func TestConfigurationFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "config", manifest: "configuration", shows: func(s *fixture, stack *pulumiv1.Stack) {
			ran("aws:region", "us-east-1", "echo:enabled")(s, stack)
			s.Expect(systemtest.Output(stack, "text")).To(Equal(`"hello"`))
			s.Expect(systemtest.Output(stack, "count")).To(Equal("3"))
		}},
		{field: "config (half a megabyte)", manifest: "configuration", patch: "{spec: {config: {text: " + strings.Repeat("x", 500_000) + "}}}",
			shows: func(s *fixture, stack *pulumiv1.Stack) {
				s.Expect(len(stack.Status.Outputs["text"].Raw)).To(BeNumerically("<=", 500_002))
			}},
		{field: "configRef", manifest: "configuration", shows: ran("echo:fromMap", "from the configmap", "echo:fromJSON", "zones", "1234567890123456789")},
		{field: "secrets", manifest: "configuration", shows: isEncrypted("echo:inPlainText", "canary-in-plain-text")},
		{field: "secretsRef.Literal", manifest: "configuration", shows: isEncrypted("echo:literal", "canary-in-a-literal")},
		{field: "secretsRef.Secret", manifest: "configuration", shows: isEncrypted("echo:password", "canary-of-a-password")},
	})
}

// isEncrypted expects that the configuration has the key, and its value only in encrypted form.
func isEncrypted(key, value string) func(*fixture, *pulumiv1.Stack) {
	return func(s *fixture, stack *pulumiv1.Stack) {
		calls := pulumi.of(s, stack)
		s.Expect(strings.Contains(calls, key)).To(BeTrue(), "%s is not in the configuration", key)
		s.Expect(strings.Contains(calls, value)).To(BeFalse(), "the value of %s is in clear", key)
	}
}

func TestMisusedConfigurationFieldsAreExplainedAndRecover(t *testing.T) {
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
			says: "spec.secretsRef[home]: type Env is no longer supported"},
		{field: "secretsRef.FS", manifest: "configuration", patch: "{spec: {secretsRef: {file: {type: FS, filesystem: {path: /etc/passwd}}}}}", reason: invalid,
			says: "spec.secretsRef[file]: type FS is no longer supported"},
	})
}

// ran expects that pulumi was called for the Stack with all of the texts in its arguments, environment or configuration.
func ran(texts ...string) func(*fixture, *pulumiv1.Stack) {
	return func(s *fixture, stack *pulumiv1.Stack) {
		calls := pulumi.of(s, stack)
		for _, text := range texts {
			s.Expect(strings.Contains(calls, text)).To(BeTrue(), "%q is not in what pulumi was called with", text)
		}
	}
}

// state returns the state of a stack in the play's backend.
func (s *fixture) state(project, stack string) string {
	dir := strings.TrimPrefix(system.BackendURL, "file://")
	content, err := os.ReadFile(filepath.Join(dir, s.Name, ".pulumi", "stacks", project, stack+".json"))
	s.Succeed(err)
	return string(content)
}

func TestIdentityFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "accessTokenSecret", manifest: "identity", shows: ran("PULUMI_ACCESS_TOKEN=canary-of-a-token")},
		{field: "backend", manifest: "plain", shows: func(s *fixture, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "dev")).To(ContainSubstring("::echo-dev"))
		}},
		{field: "stack", manifest: "identity", shows: func(s *fixture, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "identity")).To(ContainSubstring("::echo-identity"))
		}},
		{field: "secretsProvider", manifest: "identity", shows: func(s *fixture, _ *pulumiv1.Stack) {
			s.Expect(s.state("echo", "identity")).To(ContainSubstring(`"type":"passphrase"`))
		}},
		{field: "envs", manifest: "identity", shows: ran("FROM_CONFIGMAP=of-the-configmap")},
		{field: "envSecrets", manifest: "identity", shows: ran("FROM_SECRET=canary-of-the-secret")},
		{field: "envRefs.Literal", manifest: "identity", shows: ran("FROM_LITERAL=a = 'b'")},
		{field: "envRefs.Secret", manifest: "identity", shows: ran("FROM_KEY=canary-of-a-key")},
	})
}

func TestMisusedIdentityFieldsAreExplainedAndRecover(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const missing, invalid, failed = pulumiv1.SecretNotFoundReason, pulumiv1.SpecInvalidReason, pulumiv1.RetryingAfterFailureReason
	huge := strings.Repeat("x", 600)
	testMisuses(t, []misuse{
		{field: "accessTokenSecret (missing)", manifest: "identity", patch: "{spec: {accessTokenSecret: nobody}}", reason: missing, says: "nobody",
			heal: "{apiVersion: v1, kind: Secret, metadata: {name: nobody}, stringData: {accessToken: canary}}"},
		{field: "accessTokenSecret (without its key)", manifest: "identity", patch: "{spec: {accessTokenSecret: credentials}}", reason: missing, says: "accessToken"},
		// pulumi takes an unknown scheme for the address of a Pulumi Cloud.
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
			says: "spec.envRefs[FROM_ENV]: type Env is no longer supported"},
		{field: "envRefs.FS", manifest: "identity", patch: "{spec: {envRefs: {FROM_FILE: {type: FS, filesystem: {path: /etc/passwd}}}}}", reason: invalid,
			says: "spec.envRefs[FROM_FILE]: type FS is no longer supported"},
		{field: "envRefs (unknown type)", manifest: "identity", patch: "{spec: {envRefs: {FROM_KEY: {type: Vault}}}}", reason: invalid,
			says: `spec.envRefs[FROM_KEY]: unknown type "Vault"`},
		{field: "envRefs (a name that is none)", manifest: "identity", patch: "{spec: {envRefs: {'A=B': {type: Literal, literal: {value: c}}}}}", reason: failed,
			says: `"A=B" cannot be the name of an environment variable`},
	})
}

// TestEnvironmentsReachPulumi ends with pulumi's error that the backend has no environments: only Pulumi Cloud supports them.
func TestEnvironmentsReachPulumi(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-environment")
	s.applyPatched("plain", "{spec: {environment: [team/base, team/app]}}")
	stack := s.AwaitStack("plain", notReady(pulumiv1.RetryingAfterFailureReason, "does not support environments"))
	ran("environment:", "team/base", "team/app")(s, stack)
}

func TestSourceFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "fluxSource", manifest: "plain", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(HavePrefix("sha256:"))
			s.Expect(stack.Status.LastAppliedRevision).To(HavePrefix("main@sha1:"))
		}},
		{field: "fluxSource.dir", manifest: "files", shows: wrote("first", "second")},
		{field: "fluxSource.dir (with a leading slash)", manifest: "plain", patch: "{spec: {fluxSource: {dir: /echo}}}"},
		{field: "fluxSource.sourceRef.apiVersion (retired)", manifest: "plain",
			patch: "{spec: {fluxSource: {sourceRef: {apiVersion: source.toolkit.fluxcd.io/v1beta2}}}}"},
		{field: "fluxSource.sourceRef.apiVersion (left out)", manifest: "plain",
			patch: "{spec: {fluxSource: {sourceRef: {apiVersion: null}}}}"},
		{field: "fluxSource (below a git repository)", manifest: "git-branch",
			patch: "{spec: {fluxSource: {dir: broken, sourceRef: {kind: GitRepository, name: programs}}}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
				s.Expect(stack.Status.LastUpdate.LastSuccessfulCommit).To(Equal(programsCommit))
			}},
		{field: "programRef (below a Flux source)", manifest: "plain", patch: "{spec: {programRef: {name: nobody}}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.Expect(stack.Status.LastAppliedRevision).To(HavePrefix("main@sha1:"))
		}},
	})
}

func TestMisusedSourceFieldsAreExplainedAndRecover(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const failed = pulumiv1.RetryingAfterFailureReason
	testMisuses(t, []misuse{
		{field: "fluxSource.sourceRef.name (missing)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: nobody}}}}", reason: pulumiv1.SourceNotFoundReason, says: "nobody"},
		{field: "fluxSource.sourceRef.name (absent)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: null}}}}", refused: "spec.fluxSource.sourceRef.name: Required value"},
		{field: "fluxSource.sourceRef.kind (unknown)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {kind: Mystery}}}}", reason: pulumiv1.SourceKindNotInstalledReason, says: "Mystery"},
		{field: "fluxSource.sourceRef.kind (no source)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: v1, kind: Secret, name: passphrase}}}}",
			reason: pulumiv1.SpecInvalidReason, says: `spec.fluxSource.sourceRef: Secret of "v1" publishes no artifact`},
		{field: "fluxSource.sourceRef.kind (a Program)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: pulumi.com/v1, kind: Program}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "name it in spec.programRef"},
		{field: "fluxSource.sourceRef.apiVersion (malformed)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {apiVersion: a/b/c}}}}",
			reason: pulumiv1.SpecInvalidReason, says: `spec.fluxSource.sourceRef.apiVersion: "a/b/c"`},
		{field: "fluxSource.dir (missing)", manifest: "plain", patch: "{spec: {fluxSource: {dir: nowhere}}}", reason: failed, says: "nowhere"},
		{field: "fluxSource.dir (outside)", manifest: "plain", patch: "{spec: {fluxSource: {dir: ../../../etc}}}", reason: failed, says: "../../../etc"},
		{field: "fluxSource.dir (without a program)", manifest: "plain", patch: "{spec: {fluxSource: {dir: empty}}}", reason: failed, says: "no Pulumi.yaml there"},
		{field: "fluxSource.sourceRef.kind (empty)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {kind: ''}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.kind is empty"},
		{field: "fluxSource.sourceRef.name (empty)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: ''}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.name"},
		{field: "fluxSource.sourceRef.name (huge)", manifest: "plain", patch: "{spec: {fluxSource: {sourceRef: {name: " + strings.Repeat("a", 100_000) + "}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.fluxSource.sourceRef.name"},
		{field: "fluxSource (beside a git repository)", manifest: "plain", patch: "{spec: {projectRepo: 'https://git.example.com/acmecorp/programs'}}",
			reason: pulumiv1.SpecInvalidReason, says: "neither spec.branch nor spec.commit is set"},
	})
}

// TestPublishedManifestsGoAsFarAsTheyCan applies the manifests in the documentation and the announcements of the Pulumi Kubernetes
// Operator. The repositories, Secrets and clouds that they refer to do not exist here, so each Stack ends with a condition that names what
// is missing. No manifest is refused, and only the manifest that was published without its branch has to be edited.
func TestPublishedManifestsGoAsFarAsTheyCan(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	for _, test := range []struct {
		manifest, stack, reason, says string
	}{
		{"access-token-secret", "nginx", pulumiv1.RepositoryNotFoundReason, "metral/pulumi-nginx"},
		{"env-refs", "my-stack", pulumiv1.RepositoryNotFoundReason, "pulumi/examples"},
		{"flux-source", "random-yaml", pulumiv1.SourceNotReadyReason, "pulumi/examples"},
		{"flux-source-v1beta2", "my-stack", pulumiv1.SourceNotFoundReason, "nginx-repo"},
		{"git-branch", "nginx-k8s-stack-production", pulumiv1.RepositoryNotFoundReason, "acmecorp/pulumi-nginx"},
		{"git-commit", "nginx-k8s-stack-production", pulumiv1.RepositoryNotFoundReason, "acmecorp/pulumi-nginx"},
		{"program", "staticwebsite", pulumiv1.RetryingAfterFailureReason, "does not consist of letters"},
		{"resync-frequency", "prod-api-gateway", pulumiv1.SpecInvalidReason, "neither spec.branch nor spec.commit is set"},
		{"s3-backend", "s3-bucket-stack", pulumiv1.RepositoryNotFoundReason, "acmecorp/pytest1"},
		{"workspace-template", "my-stack", pulumiv1.RetryingAfterFailureReason, `neither the update nor workspace "my-stack" has a source`},
	} {
		t.Run(test.manifest, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t, namespaceFor("published", test.manifest))
			s.onlyGitIsHere()
			s.apply("../../api/testdata/manifests/" + test.manifest)
			s.AwaitStack(test.stack, notReady(test.reason, test.says))
		})
	}
}
