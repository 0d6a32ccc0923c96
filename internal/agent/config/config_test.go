package config

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/encoding"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
	"github.com/pulumi/pulumi/sdk/v3/go/common/workspace"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// merge sets values in a configuration file of project demo and returns the new file.
func merge(source string, items ...Item) (string, error) {
	file, err := Parse([]byte(source), "demo")
	if err != nil {
		return "", err
	}
	ordered, err := file.Order(items)
	if err != nil {
		return "", err
	}
	for _, item := range ordered {
		if err := file.Set(context.Background(), item, config.Base64Crypter); err != nil {
			return "", err
		}
	}
	content, err := file.Encode()
	return string(content), err
}

func TestMergeKeepsWhatItDoesNotTouch(t *testing.T) {
	const source = `# why
secretsprovider: awskms://key
config:
  aws:region: eu # here
  plain: &anchor {a: 1.50}
  demo:other: *anchor
  demo:config:old: x
environment: [base]
later: {b: 1}
`
	for _, test := range []struct {
		name string
		item Item
		want []string
		gone []string
	}{
		{"a new value", Item{Key: "new", Value: "1"},
			[]string{`demo:new: "1"`, "secretsprovider: awskms://key", "aws:region: eu", "a: 1.5", "environment:\n  - base", "later:\n  b: 1"}, nil},
		{"a value in another namespace", Item{Key: "aws:region", Value: "us"}, []string{"aws:region: us"}, []string{"eu"}},
		{"a value without a namespace", Item{Key: "plain", Value: "x"}, []string{"demo:plain: x", "demo:other:\n    a: 1.5"}, []string{"  plain:"}},
		{"a path into a value without a namespace", Item{Key: "demo:plain.b", Path: true, Value: "true"},
			[]string{"demo:plain:\n    a: 1.5\n    b: true"}, []string{"  plain:"}},
		{"the old spelling of a key", Item{Key: "old", Value: "z"}, []string{"demo:old: z"}, []string{"demo:config:old"}},
		{"text that reads as something else", Item{Key: "t", JSON: true, Value: `["yes", "1", "null", "2020-01-01", "a: b", "\u0000\u2028"]`},
			[]string{`"yes"`, `"1"`, `"null"`, `"2020-01-01"`, `'a: b'`, `"\0\L"`}, nil},
		{"a path through a plain value", Item{Key: "aws:region.name", Path: true, Value: "007"}, []string{`name: "007"`}, nil},
		{"an array", Item{Key: "list[1].a", Path: true, Value: "7"}, []string{"demo:list:\n    - null\n    - a: 7\n"}, nil},
		{"a number", Item{Key: "n", JSON: true, Value: " 1.10 "}, []string{`demo:n: "1.10"`}, nil},
		{"text at a path", Item{Key: "m.t", Path: true, JSON: true, Value: `"1"`}, []string{`t: "1"`}, nil},
		{"a truth value and nothing at a path", Item{Key: "m.t", Path: true, JSON: true, Value: `true`}, []string{"t: true"}, nil},
		{"nothing at a path", Item{Key: "m.t", Path: true, JSON: true, Value: `null`}, []string{"t: null"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			merged, err := merge(source, test.item)
			g.Expect(err).NotTo(HaveOccurred())
			for _, want := range test.want {
				g.Expect(merged).To(ContainSubstring(want))
			}
			for _, gone := range test.gone {
				g.Expect(merged).NotTo(ContainSubstring(gone))
			}
		})
	}
}

func TestWholeValuesComeBeforeThePathsIntoThem(t *testing.T) {
	g := NewWithT(t)
	file, err := Parse(nil, "demo")
	g.Expect(err).NotTo(HaveOccurred())
	ordered, err := file.Order([]Item{
		{Key: "a.c.d", Path: true, Value: "1"}, {Key: "a.b", Path: true, Secret: true, Value: "s"}, {Key: "x", Value: "1"},
		{Key: "a", JSON: true, Value: `{"b": 1, "z": 2}`}, {Key: "demo:y", Path: true, Value: "1"},
	})
	g.Expect(err).NotTo(HaveOccurred())
	for _, item := range ordered {
		g.Expect(file.Set(t.Context(), item, config.Base64Crypter)).To(Succeed())
	}
	content, err := file.Encode()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(And(ContainSubstring("secure:"), ContainSubstring("d: 1"), ContainSubstring("z: 2"), ContainSubstring("demo:x:")))

	for _, items := range [][]Item{
		{{Key: "a.b", Path: true, Value: "1"}, {Key: "a", Secret: true, JSON: true, Value: `{}`}},
		{{Key: "a", Secret: true, Value: "x"}, {Key: `demo:a["b"][0]`, Path: true, Secret: true, Value: "1"}},
	} {
		_, err = file.Order(items)
		g.Expect(err).To(MatchError(ContainSubstring("is inside of config a, which is one secret value")))
	}
	_, err = file.Order([]Item{{Key: "a.b", Path: true, Value: "1"}, {Key: `a["b"]`, Path: true, Value: "1"}})
	g.Expect(err).To(MatchError(ContainSubstring("are the same key")))
}

func TestCommentInPlaceOfAValueHidesNothing(t *testing.T) {
	g := NewWithT(t)
	merged, err := merge("environment: [base] # kept\nconfig: # nothing yet\n", Item{Key: "new", Value: "1"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(merged).To(Equal("environment:\n  - base\nconfig:\n  demo:new: \"1\"\n"))
}

func TestPathsThatDoNotFitAreRefused(t *testing.T) {
	for _, key := range []string{"list.name", "map[0]", "map.a.b", "list[7]", "", ".", "[0]", "secret.key.deep", "empty.secure", "new[-1]", "new[10001]", "deep" + strings.Repeat(".a", 100)} {
		t.Run(key, func(t *testing.T) {
			_, err := merge("config:\n  list: [1]\n  map: {a: x}\n  secret: {key: {secure: abc}}\n  empty: {}\n", Item{Key: key, Path: true, Value: "x"})
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
}

func TestPathIntoAValueThatIsOneSecretIsRefused(t *testing.T) {
	const source = "config:\n  whole: {secure: abc}\n  demo:parts: {url: x, password: {secure: abc}}\n"
	inside := Item{Key: "whole.password", Path: true, Value: "canary"}
	for name, items := range map[string][]Item{
		"plain":        {inside},
		"secret":       {{Key: "demo:whole.password", Path: true, Secret: true, Value: "canary"}},
		"in an array":  {{Key: "whole[0]", Path: true, Value: "canary"}},
		"with another": {{Key: "whole.password.first", Path: true, Value: "canary"}, inside},
	} {
		_, err := merge(source, items...)
		NewWithT(t).Expect(err).To(MatchError(And(
			ContainSubstring("is inside of demo:whole in the stack's configuration file, which is one secret value"), Not(ContainSubstring("canary")))), name)
	}
	g := NewWithT(t)
	g.Expect(merge(source, Item{Key: "parts.password", Path: true, Value: "new"})).To(ContainSubstring("password: new"))
	g.Expect(merge(source, inside, Item{Key: "whole", JSON: true, Value: `{"url": "new"}`})).To(ContainSubstring("demo:whole:\n    password: canary\n    url: new"))
	g.Expect(merge(source, Item{Key: "whole", Path: true, Value: "new"})).To(ContainSubstring("demo:whole: new"))
}

func TestAliasesCannotExplode(t *testing.T) {
	source := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		previous := "*a" + string(rune('0'+i-1))
		source += "a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat(previous+", ", 8) + previous + "]\n"
	}
	_, err := Parse([]byte(source), "demo")
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("excessive aliasing")))
}

func TestEnvironmentsAreAddedToThoseOfTheSource(t *testing.T) {
	for source, want := range map[string]string{
		"":                             "environment:\n  - base\n  - prod\n",
		"environment: [base]\n":        "environment:\n  - base\n  - prod\n",
		"environment:\n  values: {}\n": "environment:\n  imports:\n    - base\n    - prod\n  values: {}\n",
	} {
		g := NewWithT(t)
		file, err := Parse([]byte(source), "demo")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(file.AddEnvironments([]string{"base", "prod"})).To(Succeed())
		content, err := file.Encode()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(Equal(want))
	}
}

// The CLI itself makes timestamps of dates and plain numbers of octal ones, and replaces aliases.
func TestCLIReadsWhatTheSourceSaysAlsoBesideOtherValues(t *testing.T) {
	source := `encryptionsalt: "v1:x"
environment:
  imports: [base, &other prod]
  values:
    pulumiConfig: &all {date: 2012-10-17, time: 2024-01-01 10:00:00, octal: 0644, long: 18446744073709551615, longer: 123456789012345678901234567890}
    again: {<<: *all, binary: !!binary aGVsbG8=, tagged: !mine x, number: 1.50, yes: yes, text: "2012-10-17", also: *other}
config:
  date: 2012-10-17
  octal: 0644
  long: 18446744073709551615
  longer: 123456789012345678901234567890
  number: 1.50
  text: "2012-10-17"
  whole: {secure: abc}
  object: &object {date: 2012-10-17, octal: 0644, long: [18446744073709551615, 9223372036854775808], negative: -9223372036854775808, number: 1.50}
  parts: {<<: *object, password: {secure: abc}, text: ["2012-10-17", "0644", "<<", "\U0001F600\u2028"], nothing: null}
  alias: *object
  strange: {"\x7f\x85": "\x7f\x85\0", exponent: 1e21, small: -1.5e-9}
  longkey: {? ` + strings.Repeat("k", 2000) + `: 1}
`
	read := func(content string) (string, config.Map) {
		stack, err := workspace.LoadProjectStackBytes(nil, &workspace.Project{Name: tokens.PackageName("demo")}, []byte(content), "Pulumi.dev.yaml", encoding.YAML)
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), content)
		return string(stack.Environment.Definition()), stack.Config
	}
	g := NewWithT(t)
	merged, err := merge(source, Item{Key: "new", Value: "1"})
	g.Expect(err).NotTo(HaveOccurred())
	wantEnvironment, want := read(source)
	environment, values := read(merged)
	want[config.MustMakeKey("demo", "new")] = config.NewValue("1")
	g.Expect(values).To(Equal(want))
	g.Expect(environment).To(Equal(wantEnvironment))
}

func TestNumbersInASecretObjectAreHiddenAsTheyAreWritten(t *testing.T) {
	g := NewWithT(t)
	var secrets []string
	_, err := Resolve([]*agentpb.ConfigItem{
		{Key: "a", Secret: true, Value: &agentpb.ConfigItem_Json{Json: `{"x": [1.50, "text", {"y": 12345678901234567890}]}`}},
	}, nil, "", func(values ...string) { secrets = append(secrets, values...) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(secrets).To(ContainElements("1.50", "text", "12345678901234567890"))
}

// FuzzMerge checks that the CLI reads what is merged.
func FuzzMerge(f *testing.F) {
	f.Add("", "b", false, "\x00yes", false)
	f.Add("config: {a: 1}", "b", false, "text", false)
	f.Add("config:\n  demo:list: [1, {x: y}]\n", "list[1].x", true, "true", false)
	f.Add("a: &x {b: c}\nconfig: {d: *x}\n", `["a.b"].c`, true, "0123", false)
	f.Add("", "a", false, `{"x": [1, 1.0, 1e400, null, "yes", {"secure": "x"}]}`, true)
	f.Add("config: {}", "a.b[2]", true, "12345678901234567890", true)
	f.Add("", "a", false, "{\"\\u0000\x7f\u0085\": [\"\x7f\u0085\u2028\"]}", true)
	f.Add("", "aws:config:region", false, "", false)
	f.Fuzz(func(t *testing.T, source, key string, path bool, value string, isJSON bool) {
		if isJSON && !json.Valid([]byte(value)) {
			return
		}
		merged, err := merge(source, Item{Key: key, Path: path, Value: value, JSON: isJSON})
		if err != nil {
			return
		}
		stack, err := workspace.LoadProjectStackBytes(nil, &workspace.Project{Name: tokens.PackageName("demo")}, []byte(merged), "Pulumi.dev.yaml", encoding.YAML)
		if err != nil {
			// The source may be something that the CLI does not accept, but the CLI has to accept what this package writes itself.
			if source == "" {
				t.Fatalf("the CLI cannot read %q: %v", merged, err)
			}
			return
		}
		if path || isJSON {
			return
		}
		written, _, err := (&File{project: "demo"}).place(Item{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := stack.Config[written]; !ok || got != config.NewValue(value) {
			t.Fatalf("set %q to %q, the CLI reads %v in %q", key, value, got, merged)
		}
	})
}

// FuzzFile checks that a file that Parse accepts is written as a file that Parse accepts.
func FuzzFile(f *testing.F) {
	f.Add("config:\n  a: &x {b: 1.50}\n  c: *x\nenvironment: [base]\n")
	f.Add("encryptionsalt: v1:x\nconfig: {a: {secure: abc}}")
	f.Add("\xef\xbb\xbf{\"config\": null}")
	f.Fuzz(func(t *testing.T, content string) {
		file, err := Parse([]byte(content), "demo")
		if err != nil {
			return
		}
		_ = file.AddEnvironments([]string{"team/base"})
		written, err := file.Encode()
		if err != nil {
			return
		}
		if _, err := Parse(written, "demo"); err != nil {
			t.Fatalf("%q became %q: %s", content, written, err)
		}
	})
}
