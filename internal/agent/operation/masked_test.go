package operation_test

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// What Pulumi reports while it runs has [secret] in place of any text that is equal to a secret, also in values that are not secret.
func TestValuesThatAreUsedLaterAreNotMasked(t *testing.T) {
	suite.Long(t, "further forms of secrets; see TestSecretInWhatAProgramPrintedIsRedacted")
	f := newCreated(t)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	f.write("Pulumi.yaml", `
name: demo
runtime: yaml
resources:
  production:
    type: test:index:Sleep
    properties: {echo: a}
    options: {version: 0.1.0}
outputs:
  roleArn: "arn:aws:iam::123456789012:role/app"
  image: app:latest-production
  page: {fn::stringAsset: hello}
  number: 1
`)
	secrets := withConfig(secret("accountId", "123456789012"), secret("env", "prod"), secret("home", "pulumi"))
	operation := f.succeed(up, secrets)
	outputs := map[string]string{}
	for name, output := range operation.GetOutputs() {
		f.Expect(output.GetSecret()).To(BeFalse())
		outputs[name] = string(output.GetValue())
	}
	f.Expect(outputs).To(HaveKeyWithValue("roleArn", `"arn:aws:iam::123456789012:role/app"`))
	f.Expect(outputs).To(HaveKeyWithValue("image", `"app:latest-production"`))
	f.Expect(outputs).To(HaveKeyWithValue("page", ContainSubstring("hello")))
	f.Expect(outputs).To(HaveKeyWithValue("number", "1"))
	f.Expect(string(operation.GetOutputs()["roleArn"].GetShown())).To(Equal(`"arn:aws:iam::[secret]:role/app"`))
	f.Expect(operation.GetOutputs()["number"].GetShown()).To(BeNil())

	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\n")
	operation = f.succeed(preview, secrets)
	f.Expect(operation.GetChanges()).To(ConsistOf(HaveField("Urn", "urn:pulumi:dev::demo::test:index:Sleep::production")))
}
