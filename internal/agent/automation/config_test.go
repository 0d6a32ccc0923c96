package automation_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// configProgram returns its whole configuration.
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
	f := newFixture(t)
	f.write("Pulumi.yaml", configProgram)
	f.write("Pulumi.dev.yaml", "config:\n  text: overwritten\n  demo:kept: from the source\n  demo:items: {old: {a: 1}}\n")
	f.write("data.json", `{"big": 1152921504606846976, "list": ["x"]}`)
	operation := f.run(up, withEnv("REGION", "eu-1", false), withConfig(
		text("text", "00123"),
		object("demo:number", "1.10"),
		&proto.ConfigItem{Key: "items.old.b[0]", Path: true, Value: &proto.ConfigItem_Text{Text: "42"}},
		&proto.ConfigItem{Key: `items["a.b"]`, Path: true, Value: &proto.ConfigItem_Json{Json: `{"x": [1, 2.50, null, "s"]}`}},
		&proto.ConfigItem{Key: "fromEnv", Value: &proto.ConfigItem_FromEnv{FromEnv: "REGION"}},
		&proto.ConfigItem{Key: "fromFile", ParseJson: true, Value: &proto.ConfigItem_FromFile{FromFile: "data.json"}},
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
		"items":    `{"a.b":{"x":[1,2.5,null,"s"]},"old":{"a":1,"b":[42]}}`,
		"fromEnv":  `"eu-1"`,
		"fromFile": `{"big":1152921504606847000,"list":["x"]}`,
	}))
	written := f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")
	f.Expect(written).To(ContainSubstring(`demo:number: "1.10"`), "numbers keep their digits as far as it is up to us")
	f.Expect(written).To(ContainSubstring("1152921504606846976"))

	// What a request does not say any more is gone.
	operation = f.run(up, withConfig(text("text", "x"), text("number", "1"), object("items", "{}"), text("fromEnv", ""), object("fromFile", "{}")))
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	f.Expect(string(operation.GetOutputs()["items"].GetValue())).To(Equal(`{}`))
}

func TestUnusableConfigurationIsReported(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	f.write("large.txt", strings.Repeat("x", 1<<20+1))
	f.Expect(os.Mkdir(filepath.Join(f.project, "directory"), 0o755)).To(Succeed())
	file := func(name string) *proto.ConfigItem {
		return &proto.ConfigItem{Key: "a", Value: &proto.ConfigItem_FromFile{FromFile: name}}
	}
	for _, test := range []struct {
		name    string
		item    *proto.ConfigItem
		message string
		cli     bool
	}{
		{"too many colons", text("a:b:c:d", "x"), "could not parse a:b:c:d", false},
		{"an open bracket", &proto.ConfigItem{Key: "a[", Path: true}, "config a[", false},
		{"an index out of range", &proto.ConfigItem{Key: "a[100000000]", Path: true}, "[100000000] is out of range", false},
		{"no JSON", object("a", `{"canary-value`), "config a: the value is not valid JSON", false},
		{"what looks encrypted", object("a", `{"secure": "x"}`), "stands for an encrypted value", false},
		{"a missing variable", &proto.ConfigItem{Key: "a", Value: &proto.ConfigItem_FromEnv{FromEnv: "NONE"}}, "config a: there is no environment variable NONE", false},
		{"a missing file", file("none.txt"), "config a: cannot read none.txt: no such file or directory", false},
		{"a large file", file("large.txt"), "config a: cannot read large.txt: the file is too large", false},
		{"a directory", file("directory"), "config a: cannot read directory: not a regular file", false},
		{"a value that has to be secret", text("password", "x"), "must be encrypted as it's secret", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fixture{WithT: NewWithT(t), t: t, runner: f.runner, home: f.home, state: f.state, project: f.project, commands: f.commands, logged: f.logged}
			operation := f.run(up, withConfig(test.item))
			f.Expect(operation.GetState()).To(Equal(failed))
			f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_CONFIG_INVALID), operation.GetMessage())
			f.Expect(operation.GetMessage()).To(ContainSubstring(test.message))
			f.Expect(len(f.processes()) > 0).To(Equal(test.cli))
			f.expectNoCanary(operation)
		})
	}
}

func TestMissingConfigurationIsReported(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", secretProgram)
	operation := f.run(up)
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_CONFIG_INVALID), operation.GetMessage())
	f.Expect(operation.GetMessage()).To(ContainSubstring("password"))
}

func TestEnvironmentsAreRefusedByABackendWithoutThem(t *testing.T) {
	f := newFixture(t)
	f.write("Pulumi.yaml", simpleProgram)
	operation := f.run(up, func(request *proto.StartOperationRequest) { request.Environments = []string{"team/base", "team/prod"} })
	f.Expect(f.readAll(filepath.Join(f.home, ".automation"), "Pulumi.dev.yaml")).To(ContainSubstring("environment:\n  - team/base\n  - team/prod\n"))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetFailure()).To(Equal(proto.FailureReason_FAILURE_REASON_CONFIG_INVALID), operation.GetMessage())
}

func TestSecretObjectIsHiddenInAllItsParts(t *testing.T) {
	f := newFixture(t)
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
	item := &proto.ConfigItem{Key: "login", Secret: true, Value: &proto.ConfigItem_Json{Json: `{"user": "me", "password": "canary-value-9"}`}}
	operation := f.run(up, withConfig(item))
	f.Expect(operation.GetState()).To(Equal(failed))
	f.Expect(operation.GetMessage()).To(ContainSubstring("/nonexistent/[secret]"))
	f.Expect(f.logged.String()).NotTo(ContainSubstring("canary-value"))
}
