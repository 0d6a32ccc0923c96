package operation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// configProgram is a program whose outputs are its whole configuration.
const configProgram = `
name: demo
runtime: yaml
config:
  text: {type: string}
  number: {type: string}
  items: {type: object}
  kept: {type: string}
  fromEnv: {type: string}
  fromFile: {type: object}
outputs:
  text: ${text}
  number: ${number}
  items: ${items}
  kept: ${kept}
  fromEnv: ${fromEnv}
  fromFile: ${fromFile}
`

func TestConfigurationReachesTheProgram(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", configProgram)
	f.write("Pulumi.dev.yaml", "config:\n  text: overwritten\n  demo:kept: from the source\n  demo:items: {old: {a: 1}}\n")
	f.write("data.json", `{"big": 1152921504606846976, "list": ["x"]}`)
	operation := f.run(up, withEnv("REGION", "eu-1", false), withConfig(
		text("text", "00123"),
		object("demo:number", "1.10"),
		&agentpb.ConfigItem{Key: "items.old.b[0]", Path: true, Value: &agentpb.ConfigItem_Text{Text: "42"}},
		&agentpb.ConfigItem{Key: `items["a.b"].x[0]`, Path: true, Value: &agentpb.ConfigItem_Json{Json: `2.50`}},
		&agentpb.ConfigItem{Key: `items["a.b"].x[1]`, Path: true, Value: &agentpb.ConfigItem_Json{Json: `null`}},
		&agentpb.ConfigItem{Key: "fromEnv", Value: &agentpb.ConfigItem_FromEnv{FromEnv: "REGION"}},
		&agentpb.ConfigItem{Key: "fromFile", ParseJson: true, Value: &agentpb.ConfigItem_FromFile{FromFile: "data.json"}},
	))
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	outputs := map[string]string{}
	for name, output := range operation.GetOutputs() {
		outputs[name] = string(output.GetValue())
	}
	f.Expect(outputs).To(Equal(map[string]string{
		"text":     `"00123"`,
		"number":   `1.1`, // the YAML runtime makes a number of it
		"kept":     `"from the source"`,
		"items":    `{"a.b":{"x":[2.5,null]},"old":{"a":1,"b":[42]}}`,
		"fromEnv":  `"eu-1"`,
		"fromFile": `{"big":1152921504606847000,"list":["x"]}`,
	}))
	written := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	f.Expect(written).To(ContainSubstring(`demo:number: "1.10"`), "at the top a number keeps its digits")
	f.Expect(written).To(ContainSubstring("1152921504606846976"))

	// What the request no longer names is gone.
	operation = f.succeed(up, withConfig(text("text", "x"), text("number", "1"), object("items", "{}"), text("fromEnv", ""), object("fromFile", "{}")))
	f.Expect(string(operation.GetOutputs()["items"].GetValue())).To(Equal(`{}`))
}

func TestUnusableConfigurationIsReported(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", secretProgram)
	f.write("large.txt", strings.Repeat("x", 1<<20+1))
	f.Expect(os.Mkdir(filepath.Join(f.project, "directory"), 0o755)).To(Succeed())
	file := func(name string) *agentpb.ConfigItem {
		return &agentpb.ConfigItem{Key: "a", Value: &agentpb.ConfigItem_FromFile{FromFile: name}}
	}
	for _, test := range []struct {
		name    string
		item    *agentpb.ConfigItem
		message string
		cli     bool
	}{
		{"too many colons", text("a:b:c:d", "x"), "could not parse a:b:c:d", false},
		{"an open bracket", &agentpb.ConfigItem{Key: "a[", Path: true}, "config a[", false},
		{"an index out of range", &agentpb.ConfigItem{Key: "a[100000000]", Path: true}, "[100000000] is out of range", false},
		{"no JSON", object("a", `{"canary-value`), "config a: the value is not valid JSON", false},
		{"an object at a path", &agentpb.ConfigItem{Key: "a.b", Path: true, Value: &agentpb.ConfigItem_Json{Json: `{"c": 1}`}}, "cannot be set at a path", false},
		{"an empty key", text("", "x"), "the key is empty", false},
		{"a key of white space in a path", &agentpb.ConfigItem{Key: "[\"\"]", Path: true}, "does not begin with a name", false},
		{"a number out of range", object("a", `{"b": 1e400}`), "config a: a number in the value is out of range", false},
		{"what looks encrypted", object("a", `{"secure": "x"}`), "stands for an encrypted value", false},
		{"a missing variable", &agentpb.ConfigItem{Key: "a", Value: &agentpb.ConfigItem_FromEnv{FromEnv: "NONE"}}, "config a: there is no environment variable NONE", false},
		{"a missing file", file("none.txt"), "config a: cannot read none.txt: no such file or directory", false},
		{"a large file", file("large.txt"), "config a: cannot read large.txt: too large", false},
		{"a directory", file("directory"), "config a: cannot read directory: not a regular file", false},
		{"a value that has to be secret", text("password", "x"), "must be encrypted as it's secret", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fixture{WithT: NewWithT(t), t: t, runner: f.runner, home: f.home, state: f.state, project: f.project, commands: f.commands, logged: f.logged}
			operation := f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, up, withConfig(test.item))
			f.Expect(operation.GetMessage()).To(ContainSubstring(test.message))
			f.Expect(len(f.processes()) > 0).To(Equal(test.cli))
			f.expectNoCanary(operation)
		})
	}
}

func TestMissingConfigurationIsReported(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", secretProgram)
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, up)
	f.Expect(operation.GetMessage()).To(ContainSubstring("password"))
}

func TestEnvironmentsAreRefusedByABackendWithoutThem(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	operation := f.run(up, func(request *agentpb.StartOperationRequest) {
		request.Environments = []string{"team/base", "team/prod"}
	})
	f.Expect(f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")).To(ContainSubstring("environment:\n  - team/base\n  - team/prod\n"))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID), operation.GetMessage())
}

func TestSecretObjectIsHiddenInAllItsParts(t *testing.T) {
	suite.Long(t, "further forms of secrets; see TestSecretsAreEncryptedAndShownNowhere")
	f := newCreated(t)
	f.write("Pulumi.yaml", `
name: demo
runtime: yaml
config:
  login: {type: string}
outputs:
  login: ${login}
  content:
    fn::readFile: /nonexistent/canary-value-9
`)
	item := &agentpb.ConfigItem{Key: "login", Secret: true, Value: &agentpb.ConfigItem_Json{Json: `{"user": "me", "password": "canary-value-9"}`}}
	operation := f.run(up, withConfig(item))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(ContainSubstring("/nonexistent/[secret]"))
	f.Expect(f.logged.String()).NotTo(ContainSubstring("canary-value"))
}

func TestKeysThatAreTheSameAreRefusedWithBothNamed(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	path := func(key string) *agentpb.ConfigItem {
		return &agentpb.ConfigItem{Key: key, Path: true, Value: &agentpb.ConfigItem_Text{Text: "canary-value"}}
	}
	for _, test := range []struct {
		one, other *agentpb.ConfigItem
		message    string
	}{
		{text("foo", "canary-value"), secret("demo:foo", "canary-value"), "config foo and config demo:foo are the same key, demo:foo: set it once"},
		{text("demo:config:foo", "x"), text("foo", "x"), "config demo:config:foo and config foo are the same key"},
		{path("foo.a"), path(`demo:foo["a"]`), `config foo.a and config demo:foo["a"] are the same key`},
		{path("foo"), text("foo", "x"), "config foo and config foo are the same key"},
	} {
		operation := f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, up, withConfig(test.one, text("other:foo", "fine"), test.other))
		f.Expect(operation.GetMessage()).To(ContainSubstring(test.message))
		f.expectNoCanary(operation)
	}
	f.Expect(f.processes()).To(BeEmpty())
}

// numbersProgram is a program whose output is what the runtime makes of numbers.
const numbersProgram = `
name: demo
runtime: yaml
config:
  nested: {type: object}
outputs:
  nested: ${nested}
`

// At the top level a number is text, which keeps its digits. Inside an object it is what Pulumi makes of it, which has only 64-bit numbers.
func TestNumbersStayAsTheyAreWrittenUntilPulumiReadsThem(t *testing.T) {
	suite.Long(t, "further forms of configuration; see TestConfigurationReachesTheProgram")
	f := newCreated(t)
	f.write("Pulumi.yaml", numbersProgram)
	numbers := withConfig(
		object("nested", `{"big": 12345678901234567890, "one": 1.0, "tenth": 0.1, "minus": -0, "exact": 9007199254740993, "no": null, "yes": true}`),
		object("top", "12345678901234567890"), object("other", "1e400"), object("one", "1.0"), object("flag", "false"),
		secret("token", "x"),
	)
	// With the name of the provider, the file has the key of the encryption. Otherwise the CLI adds the key, and writes the file again.
	named := func(request *agentpb.StartOperationRequest) { request.SecretsProvider = "passphrase" }
	f.succeed(up, numbers, named)
	operation := f.succeed(up, numbers, named)
	written := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	for _, line := range []string{
		"exact: 9007199254740993\n", `"no": null`, `"yes": true`,
		`demo:top: "12345678901234567890"`, "demo:other: 1e400\n", `demo:one: "1.0"`, `demo:flag: "false"`,
	} {
		f.Expect(written).To(ContainSubstring(line))
	}
	f.Expect(string(operation.GetOutputs()["nested"].GetValue())).To(MatchJSON(
		`{"big": 12345678901234567000, "one": 1, "tenth": 0.1, "minus": 0, "exact": 9007199254740992, "yes": true}`))
}

func TestOneValueDoesNotDependOnWhatTheOthersAre(t *testing.T) {
	f := newCreated(t)
	f.write("Pulumi.yaml", simpleProgram)
	plain := []*agentpb.ConfigItem{
		{Key: "a.b", Path: true, Value: &agentpb.ConfigItem_Text{Text: "1"}}, text("c.d", "1"), text("Odd Key/%[0]", "x"), text("aws:region", "eu"), text("ünï", "x"),
	}
	f.succeed(up, withConfig(plain...))
	alone := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	f.Expect(alone).To(And(ContainSubstring("demo:a:\n    b: 1\n"), ContainSubstring("demo:c.d: \"1\"\n"), ContainSubstring("demo:Odd Key/%[0]: x\n")))
	f.succeed(up, withConfig(plain...), withConfig(object("z", `{"x": [1]}`)))
	together := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	for line := range strings.Lines(alone) {
		f.Expect(strings.HasPrefix(line, "encryptionsalt:") || strings.Contains(together, line)).To(BeTrue(), line)
	}
}

func TestConfigurationFileOfTheSourceIsReadWithCare(t *testing.T) {
	suite.Long(t, "further inputs of an operation")
	f := newFixture(t)
	f.write("Pulumi.yaml", "name: demo\nruntime: yaml\nconfig:\n  kept: {type: string, default: none}\noutputs:\n  kept: ${kept}\n")
	f.write("Pulumi.prod.yaml", "config:\n  demo:kept: of another stack\n")
	stackFile := filepath.Join(f.project, "Pulumi.dev.yaml")
	// The file has a secret that is encrypted with the passphrase.
	f.succeed(up, withConfig(secret("kept", "canary-value-1")))
	encrypted := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	f.write("Pulumi.dev.yaml", encrypted)
	operation := f.succeed(up)
	f.Expect(string(operation.GetOutputs()["kept"].GetValue())).To(Equal(`"canary-value-1"`))
	f.Expect(operation.GetOutputs()["kept"].GetSecret()).To(BeTrue())
	f.expectNoCanary(operation)
	f.Expect(os.Remove(stackFile)).To(Succeed())

	f.Expect(string(f.run(up).GetOutputs()["kept"].GetValue())).To(Equal(`"none"`), "the file of another stack does not count")
	f.write("elsewhere.yaml", "config:\n  demo:kept: linked\n")
	f.Expect(os.Symlink("elsewhere.yaml", stackFile)).To(Succeed())
	f.Expect(string(f.run(up).GetOutputs()["kept"].GetValue())).To(Equal(`"linked"`))
	f.Expect(os.Remove(stackFile)).To(Succeed())
	for name, content := range map[string]string{
		"malformed": "config: [", "a list": "- x\n", "config is no mapping": "config: 1\n", "huge": strings.Repeat("# x\n", 5<<20),
	} {
		f.write("Pulumi.dev.yaml", content)
		t.Log(name, f.fail(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, up, withConfig(text("a", "1"))).GetMessage())
	}
}

func TestConfigurationFileThatIsALeftOutLinkStopsTheOperation(t *testing.T) {
	f := newFixture(t)
	for link, project := range map[string]string{
		"Pulumi.dev.yaml": "name: demo\nruntime: yaml\n",
		"config":          "name: demo\nruntime: yaml\nstackConfigDir: config\n",
	} {
		f.write("Pulumi.yaml", project)
		paths := f.paths()
		paths.LeftOut = []string{filepath.Join(f.project, "README.md"), filepath.Join(f.project, link)}
		operation := f.runner.Run(t.Context(), f.request(up), paths, nil)
		f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID), operation.GetMessage())
		f.Expect(operation.GetMessage()).To(ContainSubstring("because \"" + link + "\" is a symbolic link that was left out"))
	}
}
