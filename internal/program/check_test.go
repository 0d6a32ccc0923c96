package program

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// secretCanary stands for a value that no message may show.
const secretCanary = "canary-3f9a"

func TestTheWholeLanguageIsAccepted(t *testing.T) {
	g := NewWithT(t)
	_, err := Render(programOf(g, "whole", file(t, wholeLanguage)))
	g.Expect(err).NotTo(HaveOccurred())
}

func TestEveryTypeOfConfigurationIsAccepted(t *testing.T) {
	for _, name := range []string{
		"String", "string", "Number", "Integer", "int", "Int", "Boolean", "bool", "Object", "List<Number>", "List<String>", "list<boolean>",
		"List<Object>", "list< int >", "array",
	} {
		g := NewWithT(t)
		body, err := json.Marshal(map[string]any{"configuration": map[string]any{"a": map[string]any{"type": name}}})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = Render(programOf(g, "a", string(body)))
		g.Expect(err).NotTo(HaveOccurred(), name)
	}
}

func TestWhatIsWrongIsToldWithItsPath(t *testing.T) {
	for _, tt := range []struct{ body, says string }{
		{"{variable: {a: 1}}", `program.variable: unknown field, did you mean "variables"?`},
		{"{zebra: 1}", `program.zebra: unknown field`},
		{"{name: other}", "program.name: cannot be set: the name of the project is that of the Program"},
		{"{backend: {url: x}}", "program.backend: cannot be set: the Stack says in spec.backend"},
		{"{sdks: []}", "program.sdks: cannot be set"},
		{"{resources: {a: {type: t, optoins: {}}}}", `program.resources.a.optoins: unknown field, did you mean "options"?`},
		{"{resources: {a: {type: t, options: {Protect: true}}}}", `program.resources.a.options.Protect: unknown field, did you mean "protect"?`},
		{"{resources: {a: {type: t, options: {hooks: {}}}}}", "program.resources.a.options.hooks: cannot be set: Pulumi YAML has no hooks"},
		{"{resources: {index.html: {type: t, propertys: {}}}}", `program.resources["index.html"].propertys: unknown field, did you mean "properties"?`},
		{"{resources: {a: {type: t, options: {customTimeouts: {read: 1m}}}}}", "program.resources.a.options.customTimeouts.read: unknown field"},
		{"{resources: {a: {type: t, options: {aliases: [{names: b}]}}}}", `program.resources.a.options.aliases[0].names: unknown field, did you mean "name"?`},
		{"{resources: {a: {type: t, options: {protect: [1]}}}}", "program.resources.a.options.protect: must be true, false, or an expression"},
		{"{resources: {a: {type: t, get: {id: ''}}}}", "program.resources.a.get.id: must be a string that is not empty"},
		{"{resources: {a: {type: t, get: {id: x}, properties: {b: 1}}}}", "program.resources.a.get: a resource has either properties or get"},
		{"{resources: {a: {type: t, defaultProvider: true}}}", "program.resources.a.defaultProvider: is for providers only"},
		{"{resources: {a: {type: t, properties: [1]}}}", "program.resources.a.properties: must be an object"},
		{"{resources: {pulumi: {type: t}}}", "program.resources.pulumi: the name is reserved"},
		{"{resources: {a: {type: t}}, variables: {a: 1}}", "program.variables.a: program.resources.a has the same name"},
		{"{configuration: {a: {}}}", "program.configuration.a: needs a type or a default value"},
		{"{configuration: {a: {type: String, defaul: 1}}}", `program.configuration.a.defaul: unknown field, did you mean "default"?`},
		{"{config: {a: {type: Number}}}", "program.config.a.type: must be string, integer, boolean, array or object"},
		{"{config: {a: 1.5}}", "program.config.a: must be a string, an integer"},
		{"{config: {a: {default: 1, value: 1}}}", "program.config.a: cannot have both a default and a value"},
		{"{components: {c: {configuration: {}}}}", "program.components.c.configuration: cannot be set: a component has inputs"},
		{"{components: {c: {resources: {a: {type: t, option: {}}}}}}", `program.components.c.resources.a.option: unknown field, did you mean "options"?`},
		{"{components: {c: {template: {}}}}", "program.components.c.template: unknown field"},
		{"{packages: {a: {version: '1'}}}", "program.packages.a.source: is required"},
		{"{plugins: {providers: [{name: a}]}}", "program.plugins.providers[0].path: is required"},
		{"{plugins: {provider: []}}", `program.plugins.provider: unknown field, did you mean "providers"?`},
		{"{outputs: {a: '${b'}}", "program.outputs.a: an expression that begins with ${ has no end"},
		{"{outputs: {a: ['x', '${}']}}", "program.outputs.a[1]: an expression ${} is empty"},
		{"{outputs: {a: '${b[c]}'}}", "program.outputs.a: an expression ${…} has a subscript"},
		{"{outputs: {a: '${b[\"c}'}}", "program.outputs.a: an expression ${…} has a bracket without end"},
		{"{outputs: {a: '${[1]}'}}", "program.outputs.a: an expression ${…} begins with a number"},
		{"{outputs: {a: {'${b': 1}}}", `program.outputs.a["${b"]: in its name, an expression`},
	} {
		t.Run(tt.body, func(t *testing.T) {
			g := NewWithT(t)
			body, err := yaml.YAMLToJSON([]byte(tt.body))
			g.Expect(err).NotTo(HaveOccurred())
			program := programOf(g, "a", "{}")
			program.Program.Verbatim = body
			_, err = Render(program)
			var invalid *InvalidError
			g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
			g.Expect(err).To(MatchError(HavePrefix(tt.says)))
			g.Expect(invalid.Problems).To(HaveLen(1))
		})
	}
}

func TestExpressionsOfTheLanguageAreAccepted(t *testing.T) {
	for _, text := range []string{
		"", "$", "$$", "$${", "$$${a}", "a$", "$a", "${a}", "${a.b}", "${a[0]}", "${a[0][1].b}", `${a["b"]}`, `${a["b \"c\" ]}"].d}`,
		`${["a b"].c}`, "${a}${b}", "${aws:region}", "}", "a ${pulumi.stack} b", "$ {", "${a b}",
	} {
		NewWithT(t).Expect(expressionProblem(text)).To(BeEmpty(), text)
	}
}

func TestNoValueOfTheProgramIsInAMessage(t *testing.T) {
	g := NewWithT(t)
	program := programOf(g, "a", "{}")
	program.Program.Verbatim = []byte(strings.ReplaceAll(`{"unknown": "C", "description": ["C"], "variables": {"a": "${C"},
		"configuration": {"a": {"type": "C", "default": "C"}, "b": "C"}, "config": {"c": {"type": "C"}},
		"resources": {"r": {"type": ["C"], "get": "C", "options": {"protect": ["C"], "C": 1, "version": {"x": "C"}}}, "s": "C"}}`, `"C"`, `"`+secretCanary+`"`))
	_, err := Render(program)
	g.Expect(err).To(HaveOccurred())
	var invalid *InvalidError
	g.Expect(errors.As(err, &invalid)).To(BeTrue())
	g.Expect(len(invalid.Problems)).To(BeNumerically(">", 9))
	for _, problem := range invalid.Problems {
		g.Expect(problem.Message).NotTo(ContainSubstring(secretCanary))
	}
	g.Expect(err.Error()).To(And(ContainSubstring("; and "), ContainSubstring("more")))
}

func TestNameThatIsNoNameOfAProjectIsRefused(t *testing.T) {
	g := NewWithT(t)
	_, err := Render(programOf(g, strings.Repeat("a", 101), "{}"))
	g.Expect(err).To(MatchError(ContainSubstring("metadata.name: must not be longer than 100 characters")))
}
