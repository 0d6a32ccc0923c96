package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/opencontainers/go-digest"
	"gopkg.in/yaml.v3"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// programOf returns a Program with the JSON of a program, as a client decodes it.
func programOf(g Gomega, name, body string) *pulumiv1.Program {
	program := &pulumiv1.Program{Namespace: "default", Name: name}
	g.Expect(json.Unmarshal([]byte(body), &program.Program)).To(Succeed())
	return program
}

// unpacked returns the one file of a tarball.
func unpacked(g Gomega, tarball []byte) string {
	zip, err := gzip.NewReader(bytes.NewReader(tarball))
	g.Expect(err).NotTo(HaveOccurred())
	archive := tar.NewReader(zip)
	header, err := archive.Next()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(header.Name).To(Equal("Pulumi.yaml"))
	content, err := io.ReadAll(archive)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(archive.Next()).Error().To(MatchError(io.EOF))
	return string(content)
}

const wholeLanguage = "testdata/whole_language.json"

// Another digest causes an update of every Stack with a Program. Change these digests only if that is intended, and mention it in the
// changelog.
func TestRenderedProgramsKeepTheirDigests(t *testing.T) {
	for _, golden := range []struct{ body, want string }{
		{`{}`, "sha256:24b09728de17bfc3450dbf1aaaba9482ce40c483640db24e10c019e499c04922"},
		{`{"variables":{"a":1.50,"b":"1.50","c":[[],{},null,true,[1,{"x":-1e-7}]],"ü\u2028":"\u0000\"\\\n\t🙂"}}`, "sha256:32aac00af889c455032a8b3c6bff827dff78fec88c44195fadd72867197be74d"},
		{file(t, wholeLanguage), "sha256:c4e60a90f7b9ad262398a3d92739c314bf1d9076a1cb6bd8b9e16892dacf74f5"},
	} {
		g := NewWithT(t)
		tarball, err := Program(programOf(g, "golden", golden.body))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(digest.FromBytes(tarball).String()).To(Equal(golden.want), unpacked(g, tarball))
	}
}

func file(t *testing.T, name string) string {
	content, err := os.ReadFile(name)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func TestRenderedProgramIsReadAsItWasWritten(t *testing.T) {
	g := NewWithT(t)
	tarball, err := Program(programOf(g, "web.site-1", `{
		"resources": {"index.html": {"type": "a:b:C", "options": {"protect": false, "deleteBeforeReplace": false, "version": ""},
			"properties": {"big": 12345678901234567890123, "exact": 1.50, "date": "2024-01-01", "yes": "yes", "octal": "010", "null": null}}},
		"outputs": {"on": "${x[\"on\"]}", "list": [{"a": [1, "1"]}, []]}
	}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(unpacked(g, tarball)).To(Equal(`name: "web.site-1"
runtime: "yaml"
outputs:
  list:
    - a:
        - 1
        - "1"
    - []
  "on": "${x[\"on\"]}"
resources:
  "index.html":
    options:
      deleteBeforeReplace: false
      protect: false
      version: ""
    properties:
      big: 12345678901234567890123
      date: "2024-01-01"
      exact: 1.50
      "null": null
      octal: "010"
      "yes": "yes"
    type: "a:b:C"
`))
}

func TestOnlyTheContentDecidesTheTarball(t *testing.T) {
	g := NewWithT(t)
	first := programOf(g, "a", `{"variables": {"x": 1, "y": 2}}`)
	second := programOf(g, "a", `{ "variables" : {"y":2,"x":1} }`)
	second.Generation, second.Labels, second.Namespace = 7, map[string]string{"a": "b"}, "elsewhere"
	one, err := Program(first)
	g.Expect(err).NotTo(HaveOccurred())
	other, err := Program(second)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one).To(Equal(other))

	other, err = Program(programOf(g, "b", `{"variables": {"x": 1, "y": 2}}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(one).NotTo(Equal(other), "the name is that of the project")
}

func TestProgramMadeInGoIsRendered(t *testing.T) {
	g := NewWithT(t)
	program := &pulumiv1.Program{Name: "made"}
	program.Program.Resources = map[string]pulumiv1.Resource{"a": {Type: "test:index:Sleep"}}
	tarball, err := Program(program)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(unpacked(g, tarball)).To(ContainSubstring(`type: "test:index:Sleep"`))
}

func TestFieldsThatTheControllerDoesNotKnowReachPulumi(t *testing.T) {
	g := NewWithT(t)
	tarball, err := Program(programOf(g, "a", `{"zebra": {"x": 1}, "resources": {"r": {"type": "t", "options": {"newOption": true}}}, "outputs": {"o": "${no end"}}`))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(unpacked(g, tarball)).To(And(ContainSubstring("zebra:\n  x: 1\n"), ContainSubstring("newOption: true"), ContainSubstring(`o: "${no end"`)))
}

func TestWhatCannotBeRenderedIsReportedWithItsPathAndWithoutItsValue(t *testing.T) {
	const secret = "canary-3f9a"
	for _, test := range []struct{ name, body, says string }{
		{"a", `{"name": "` + secret + `"}`, "program.name: cannot be set: the name of the project is that of the Program"},
		{"a", `{"runtime": {"name": "` + secret + `"}}`, "program.runtime: cannot be set: the runtime of a Program is yaml"},
		{"a", `["` + secret + `"]`, "program: must be an object"},
		{strings.Repeat("a", 101), `{}`, "metadata.name: must not be longer than 100 characters: it is the name of the Pulumi project"},
		{"a", `{"variables": {"a": ` + strings.Repeat(`{"`+secret+`":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}}`,
			"program: is nested more than 100 levels deep"},
		{"a", `{"variables": {"a": ` + strings.Repeat(`[`, 5000) + `1` + strings.Repeat(`]`, 5000) + `}}`, "program: is nested more than 100 levels deep"},
		{"a", `{"variables": {"a": ` + strings.Repeat(`[`, 90) + strings.Repeat(`1,`, 30_000) + `1` + strings.Repeat(`]`, 90) + `}}`,
			"program: is larger than 4194304 bytes as a Pulumi.yaml"},
	} {
		t.Run(test.says, func(t *testing.T) {
			g := NewWithT(t)
			program := programOf(g, test.name, "{}")
			program.Program.Verbatim = []byte(test.body)
			_, err := Program(program)
			var invalid *InvalidError
			g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
			g.Expect(err).To(MatchError(test.says))
		})
	}
}

// FuzzProgram checks that a YAML parser reads the JSON that was rendered, whatever keys and strings it has.
func FuzzProgram(f *testing.F) {
	for _, seed := range []string{
		`{"a": "b"}`, `{"<<": {"<<": "&a", "*a": "!!str"}}`, `{"": [null, [], {}, "", " ", "\t", "\r\n", "~", "-", "? ", ": ", "#"]}`,
		`{"\u0085\u2028\u2029\ufeff\ue000\uffff\u007f\u00ad": "\ud83d\ude00\ud800\udbff\udfff"}`, `[1e400, -0, 0.10, 1E+2, 18446744073709551616]`,
		`{"` + strings.Repeat("k", 2000) + `": {"` + strings.Repeat("ü", 600) + `": [{"` + strings.Repeat("k", 2000) + `": [1]}]}}`,
		`["0x1f", "0o7", "1_000", "12:30:45", "2001-12-14t21:59:43.10-05:00", ".inf", ".NaN", "=", "---", "..."]`, `"$${x}"`, `"%YAML"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		g := NewWithT(t)
		var want any
		if json.Unmarshal([]byte(value), &want) != nil {
			t.Skip()
		}
		program := &pulumiv1.Program{Name: "fuzz"}
		if program.Program.UnmarshalJSON([]byte(`{"variables": {"v": `+value+`}}`)) != nil {
			t.Skip()
		}
		tarball, err := Program(program)
		if _, ok := errors.AsType[*InvalidError](err); ok {
			t.Skip()
		}
		g.Expect(err).NotTo(HaveOccurred())
		var read struct {
			Name, Runtime string
			Variables     map[string]any
		}
		content := unpacked(g, tarball)
		g.Expect(yaml.Unmarshal([]byte(content), &read)).To(Succeed(), content)
		g.Expect(read.Name).To(Equal("fuzz"))
		encoded, err := json.Marshal(numbersAsFloats(read.Variables["v"]))
		g.Expect(err).NotTo(HaveOccurred())
		var got any
		g.Expect(json.Unmarshal(encoded, &got)).To(Succeed())
		if want == nil {
			g.Expect(got).To(BeNil())
			return
		}
		g.Expect(got).To(Equal(want), content)
	})
}

// numbersAsFloats converts the numbers of a YAML value to the type that numbers of a JSON value have.
func numbersAsFloats(value any) any {
	switch value := value.(type) {
	case int:
		return float64(value)
	case int64:
		return float64(value)
	case uint64:
		return float64(value)
	case []any:
		for i := range value {
			value[i] = numbersAsFloats(value[i])
		}
	case map[string]any:
		for key := range value {
			value[key] = numbersAsFloats(value[key])
		}
	}
	return value
}
