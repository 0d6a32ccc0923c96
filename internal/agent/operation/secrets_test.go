package operation_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const secretProgram = `
name: demo
runtime: yaml
config:
  password: {type: string, secret: true}
outputs:
  password: ${password}
  plain: visible
`

const canary = "canary-value-51c9\"quoted\""

// expectNoCanary searches everything that the Runner wrote, reported and started for secrets. It does not look at the values of outputs.
func (f *fixture) expectNoCanary(operations ...*agentpb.Operation) {
	f.t.Helper()
	places := map[string]string{"log": f.logged.String(), "files": f.readAll(filepath.Dir(f.home), "")}
	for _, operation := range operations {
		encoded, err := json.Marshal(map[string]any{"message": operation.GetMessage(), "permalink": operation.GetPermalink(), "project": operation.GetProject()})
		f.Expect(err).NotTo(HaveOccurred())
		places["operation"] += string(encoded)
	}
	for place, content := range places {
		for _, secret := range []string{"canary-value", "canary-file", passphrase} {
			if at := strings.Index(content, secret); at >= 0 {
				f.t.Errorf("%q is visible in %s: …%s…", secret, place, content[max(0, at-200):min(len(content), at+100)])
			}
		}
	}
}

func TestSecretsAreEncryptedAndShownNowhere(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	var reported []*agentpb.Operation
	operation := f.runner.Run(t.Context(), f.request(up, withConfig(secret("password", canary))), f.paths(),
		func(progress *agentpb.Operation) { reported = append(reported, progress) })

	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(operation.GetOutputs()["password"].GetSecret()).To(BeTrue())
	f.Expect(json.Unmarshal(operation.GetOutputs()["password"].GetValue(), new(string))).To(Succeed())
	f.Expect(string(operation.GetOutputs()["password"].GetValue())).To(Equal(`"canary-value-51c9\"quoted\""`))
	f.Expect(operation.GetOutputs()["plain"].GetSecret()).To(BeFalse())
	f.Expect(f.processes()).To(HaveExactElements(
		HavePrefix("stack export "), HavePrefix("whoami"), HavePrefix("stack init "), HavePrefix("up "), HavePrefix("stack output ")))
	f.expectNoCanary(append(reported, operation)...)

	// The state keeps the key that the configuration was encrypted with, so the next update finds nothing to encrypt again.
	operation = f.succeed(up, withConfig(secret("password", canary)))
	f.Expect(operation.GetResourceChanges()).To(Equal(map[string]int64{"same": 1}))
	f.Expect(f.processesWithState()).To(HaveExactElements(HavePrefix("up "), HavePrefix("stack output ")))
	f.expectNoCanary(operation)
}

func TestKeyOfAnExistingStackIsTakenFromItsState(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	f.succeed(up, withConfig(secret("password", canary)))
	salt := f.salt()
	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.restart()

	f.succeed(up, withConfig(secret("password", canary)))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("stack export "), HavePrefix("up "), HavePrefix("stack output ")))
	f.Expect(f.salt()).To(Equal(salt))
}

// salt returns the encryption salt in the stack's state.
func (f *fixture) salt() string {
	f.t.Helper()
	var state struct {
		Checkpoint struct {
			Latest struct {
				SecretsProviders struct{ State struct{ Salt string } } `json:"secrets_providers"`
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(f.state, ".pulumi", "stacks", "demo", "dev.json"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(json.Unmarshal(content, &state)).To(Succeed())
	f.Expect(state.Checkpoint.Latest.SecretsProviders.State.Salt).NotTo(BeEmpty())
	return state.Checkpoint.Latest.SecretsProviders.State.Salt
}

func TestSaltThatCameWithTheSourceIsUsed(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	f.succeed(up, withConfig(secret("password", canary)))
	f.write("Pulumi.dev.yaml", "encryptionsalt: "+f.salt()+"\n")
	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.restart()

	f.succeed(up, withConfig(secret("password", canary)))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("up "), HavePrefix("stack output ")))
}

func TestErrorThatQuotesASecretIsRedacted(t *testing.T) {
	suite.Long(t, "TestSecretInWhatAProgramPrintedIsRedacted proves that known secrets are masked")
	f := newCreated(t)
	f.write("Pulumi.yaml", `
name: demo
runtime: yaml
config:
  password: {type: string, secret: true}
outputs:
  content:
    fn::readFile: /nonexistent/${password}
`)
	for _, item := range []*agentpb.ConfigItem{secret("password", "canary-value-51c9"), {Key: "password", Secret: true, Value: &agentpb.ConfigItem_FromFile{FromFile: "canary.txt"}}} {
		f.write("canary.txt", "canary-file-63\n")
		operation := f.run(up, withConfig(item))
		f.Expect(os.Remove(filepath.Join(f.project, "canary.txt"))).To(Succeed())
		f.Expect(operation.GetMessage()).To(ContainSubstring("/nonexistent/[secret]"))
		f.expectNoCanary(operation)
	}
}

func TestPassphraseProblemsAreReportedAsSuch(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	withSecret := withConfig(secret("password", canary))
	noPassphrase, wrongPassphrase := withoutEnv("PULUMI_CONFIG_PASSPHRASE"), withEnv("PULUMI_CONFIG_PASSPHRASE", "something else", true)
	expectProblem := func(operation *agentpb.Operation, message string) {
		t.Helper()
		f.Expect(operation.GetState()).To(Equal(failed))
		f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER), operation.GetMessage())
		f.Expect(operation.GetMessage()).To(ContainSubstring(message))
	}
	// Before there is a stack.
	expectProblem(f.run(up, noPassphrase, withSecret), "passphrase must be set with PULUMI_CONFIG_PASSPHRASE")
	expectProblem(f.run(up, noPassphrase), "passphrase must be set with PULUMI_CONFIG_PASSPHRASE")
	// The agent knows the stack's key in the first round, and does not know it in the second.
	f.succeed(up, withSecret)
	for range 2 {
		expectProblem(f.run(up, noPassphrase, withSecret), "passphrase must be set with PULUMI_CONFIG_PASSPHRASE")
		expectProblem(f.run(up, wrongPassphrase, withSecret), "incorrect passphrase")
		// The CLI finds this out.
		expectProblem(f.run(destroy, wrongPassphrase), "incorrect passphrase")
		f.Expect(os.RemoveAll(f.home)).To(Succeed())
		f.restart()
	}
	expectProblem(f.run(up, noPassphrase, withSecret, withEnv("PULUMI_CONFIG_PASSPHRASE_FILE", "missing.txt", false)), "passphrase")
	f.write("phrase.txt", passphrase+"\n")
	f.succeed(up, noPassphrase, withSecret, withEnv("PULUMI_CONFIG_PASSPHRASE_FILE", "phrase.txt", false))
}

func TestOtherSecretsProvidersEncryptThroughTheCLI(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	// There is no key management service here. The CLI gets so far as to ask one, with the value on its stdin.
	f.write("Pulumi.dev.yaml", "secretsprovider: awskms://alias/none?region=local&endpoint=http://127.0.0.1:9\nencryptedkey: AAAA\n")
	f.Expect(f.run(up).GetState()).To(Equal(failed))
	f.processes()
	operation := f.run(up, withConfig(secret("password", canary)))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(f.processes()).To(ContainElement(And(HavePrefix("config set --secret "), HaveSuffix("-- password"))))
	f.expectNoCanary(operation)
}

func TestSecretsOfTheAgentItselfAreShownNowhere(t *testing.T) {
	const secret = "canary-runtime"
	f := newFixture(t, func(options *runner.Options) { options.Secrets = []string{secret} })
	f.write("Pulumi.yaml", "name: demo\nruntime: "+secret+"\n")

	operation := f.run(up)

	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(And(ContainSubstring("[secret]"), Not(ContainSubstring(secret))))
	f.Expect(f.logged.String()).NotTo(ContainSubstring(secret))
}

func TestSecretInWhatAProgramPrintedIsRedacted(t *testing.T) {
	f := newCreated(t)
	const planted = "planted-value-8d20"
	// The YAML plugin prints the wrong line of the program, in colours, and nothing else says why the program failed.
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig: {password: {type: string, secret: true}}\nvariables: {a: '${nobody} "+planted+"'}\n")
	operation := f.run(up, withConfig(secret("password", planted)))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(And(ContainSubstring(`config value "nobody" not found`), Not(ContainSubstring(planted))))
	f.Expect(f.logged.String()).To(And(ContainSubstring("Pulumi.yaml line 4"), ContainSubstring("[secret]"), Not(ContainSubstring(planted))))
}

func TestPasswordOfABackendThatCannotBeReachedIsShownNowhere(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	url := withEnv("PULUMI_BACKEND_URL", "postgres://pulumi:canary-value@127.0.0.1:1/state?sslmode=disable", true)
	operation := f.run(up, url, func(request *agentpb.StartOperationRequest) { request.NewStack = true })
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(f.logged.String()).To(ContainSubstring("the stack was not created"))
	f.expectNoCanary(operation)
}
