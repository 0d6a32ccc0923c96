// Package examples_test runs the Pulumi programs of docs/examples that create a Stack, and compares what they create.
package examples_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	_ "github.com/pulumi/pulumi/sdk/v3/go/pulumi/config" // for the Go program, which is compiled as part of this module
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// examples returns the path of the directory with the examples, or of an element below it.
func examples(elements ...string) string {
	return filepath.Join(append([]string{tools.RepositoryRoot(), "docs", "examples"}, elements...)...)
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// object is a Kubernetes object.
type object = map[string]any

// documented returns the Stack on the page about the examples. tests/contract/api checks that the API server accepts it.
func documented(t *testing.T) (stack object) {
	t.Helper()
	_, block, found := strings.Cut(read(t, examples("README.md")), "\n```yaml\n")
	g := NewWithT(t)
	g.Expect(found).To(BeTrue())
	block, _, _ = strings.Cut(block, "```\n")
	g.Expect(yaml.UnmarshalStrict([]byte(block), &pulumiv1.Stack{})).To(Succeed())
	g.Expect(yaml.Unmarshal([]byte(block), &stack)).To(Succeed())
	return stack
}

// expectDocumented checks that a program created the Secret and the Stack of the page.
func expectDocumented(t *testing.T, created []object) {
	t.Helper()
	g := NewWithT(t)
	// The order of the objects differs between languages.
	slices.SortFunc(created, func(a, b object) int { return strings.Compare(a["kind"].(string), b["kind"].(string)) })
	g.Expect(created).To(HaveLen(2))
	g.Expect(created[0]).To(Equal(object{
		"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "pulumi-api", "namespace": "default"},
		"stringData": object{"accessToken": "[secret]"},
	}))
	g.Expect(created[1]).To(Equal(documented(t)))
}

// run runs a program in a directory and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s%s", &stdout, &stderr)
	return stdout.String()
}

// printed decodes the objects that a program printed, one on each line.
func printed(t *testing.T, output string) (objects []object) {
	t.Helper()
	for line := range strings.Lines(output) {
		var decoded object
		NewWithT(t).Expect(json.Unmarshal([]byte(line), &decoded)).To(Succeed(), line)
		objects = append(objects, decoded)
	}
	return objects
}

// need returns the path of the program, or skips the test on a machine without it.
func need(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// The program declares no types, so it is also valid JavaScript.
func TestTypeScriptCreatesTheDocumentedStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	node := need(t, "node")
	dir := t.TempDir()
	for file, content := range map[string]string{
		"main.mjs":                                     read(t, examples("typescript", "index.ts")),
		"node_modules/@pulumi/pulumi/index.mjs":        read(t, "testdata/typescript/pulumi.mjs"),
		"node_modules/@pulumi/pulumi/package.json":     `{"exports": "./index.mjs"}`,
		"node_modules/@pulumi/kubernetes/index.mjs":    read(t, "testdata/typescript/kubernetes.mjs"),
		"node_modules/@pulumi/kubernetes/package.json": `{"exports": "./index.mjs"}`,
	} {
		path := filepath.Join(dir, file)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	}
	expectDocumented(t, printed(t, run(t, dir, nil, node, "main.mjs")))
}

func TestPythonCreatesTheDocumentedStack(t *testing.T) {
	t.Parallel()
	python := need(t, "python3")
	standIns, err := filepath.Abs(filepath.Join("testdata", "python"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	expectDocumented(t, printed(t, run(t, examples("python"), []string{"PYTHONPATH=" + standIns, "PYTHONDONTWRITEBYTECODE=1"}, python, "__main__.py")))
}

// The test replaces the import of the SDK by this module's stand-in, and compiles the program inside this module.
func TestGoCreatesTheDocumentedStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	dir := t.TempDir()
	const sdk = `"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes`
	content := read(t, examples("go", "main.go"))
	g.Expect(content).To(ContainSubstring(sdk))
	program := filepath.Join(dir, "main.go")
	content = strings.ReplaceAll(content, sdk, `"github.com/stack-controller/stack-controller/tests/e2e/examples/kubernetes`)
	g.Expect(os.WriteFile(program, []byte(content), 0o600)).To(Succeed())
	// testdata/go has a test that records what the program creates.
	there, err := filepath.Abs(filepath.Join("testdata", "go"))
	g.Expect(err).NotTo(HaveOccurred())
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(there, "main.go"): program}})
	g.Expect(err).NotTo(HaveOccurred())
	file, recorded := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "recorded.json")
	g.Expect(os.WriteFile(file, overlay, 0o600)).To(Succeed())
	env := []string{"CGO_ENABLED=0", "RECORDED=" + recorded, `PULUMI_CONFIG={"stacks:pulumiAccessToken":"token"}`}
	run(t, there, env, "go", "test", "-vet=all", "-overlay="+file, ".")
	var created []object
	g.Expect(json.Unmarshal([]byte(read(t, recorded)), &created)).To(Succeed())
	expectDocumented(t, created)
}

var (
	csharpField = regexp.MustCompile(`\[Input\("(\w+)"\)\]\s+(?:public|private) [\w<>]+\? (\w+)`)
	csharpType  = regexp.MustCompile(`new \w+\s*\{`)
	csharpSet   = regexp.MustCompile(`(\w+) = `)
	csharpKey   = regexp.MustCompile(`\["(\w+)"\] = `)
)

// No C# compiler is available here, so the test reads the objects from the text of the program, and the names of their fields from its
// classes.
func TestCSharpHasTheDocumentedStack(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	program, classes, found := strings.Cut(read(t, examples("csharp", "Program.cs")), "\nclass ")
	g.Expect(found).To(BeTrue())
	// Fields of classes of the SDK; those of the program's own classes are added below.
	names := map[string]string{"Metadata": "metadata", "Namespace": "namespace", "StringData": "stringData"}
	for _, field := range csharpField.FindAllStringSubmatch(classes, -1) {
		name := strings.TrimPrefix(field[2], "_")
		names[strings.ToUpper(name[:1])+name[1:]] = field[1]
	}
	// arguments returns the text between the braces after the marker, as an object.
	arguments := func(marker string) (decoded object) {
		_, text, found := strings.Cut(program, marker)
		g.Expect(found).To(BeTrue(), marker)
		text, _, _ = strings.Cut(text, "\n    });\n")
		text = csharpType.ReplaceAllString(text, "{")
		text = strings.ReplaceAll(text, `accessToken.Metadata.Apply(metadata => metadata.Name)`, `"pulumi-api"`)
		text = strings.ReplaceAll(text, `config.RequireSecret("pulumiAccessToken")`, `"[secret]"`)
		text = csharpKey.ReplaceAllString(text, `"$1": `)
		text = csharpSet.ReplaceAllStringFunc(strings.ReplaceAll(text, "=\n", "= \n"), func(set string) string {
			name := strings.TrimSuffix(set, " = ")
			g.Expect(names).To(HaveKey(name))
			return `"` + names[name] + `": `
		})
		g.Expect(yaml.Unmarshal([]byte("{"+text+"}"), &decoded)).To(Succeed(), text)
		return decoded
	}
	secret, stack := arguments("new SecretArgs\n    {"), arguments("new StackArgs\n    {")
	secret["apiVersion"], secret["kind"] = "v1", "Secret"
	_, base, found := strings.Cut(classes, "base(")
	g.Expect(found).To(BeTrue())
	base, _, _ = strings.Cut(base, ")")
	apiVersion, kind, _ := strings.Cut(strings.ReplaceAll(base, `"`, ""), ", ")
	stack["apiVersion"], stack["kind"] = apiVersion, kind
	expectDocumented(t, []object{secret, stack})
}

// renovateSettings has the fields of docs/examples/fleet/renovate.json that the tests read.
type renovateSettings struct {
	CustomManagers []struct{ MatchStrings []string }
	PackageRules   []struct {
		MatchPackageNames []string
		GroupName         string
	}
}

func renovate(t *testing.T) (settings renovateSettings) {
	t.Helper()
	NewWithT(t).Expect(json.Unmarshal([]byte(read(t, examples("fleet", "renovate.json"))), &settings)).To(Succeed())
	return settings
}

// Renovate names the package of an OCIRepository with a tag as its URL, without the scheme, and that of an image as the image.
func TestRenovateGroupsTheChartWithTheImagesOfTheController(t *testing.T) {
	g := NewWithT(t)
	manifests := read(t, filepath.Join(tools.RepositoryRoot(), "config", "flux", "helm_release.yaml"))
	chart := regexp.MustCompile(`(?m)^  url: oci://(\S+)\n  ref:\n    tag: \S+$`).FindStringSubmatch(manifests)
	g.Expect(chart).NotTo(BeNil())
	rule := renovate(t).PackageRules[0]
	g.Expect(rule.GroupName).To(Equal("stack-controller"))
	matches := func(name string) bool {
		return slices.ContainsFunc(rule.MatchPackageNames, func(pattern string) bool {
			return regexp.MustCompile(strings.TrimSuffix(strings.TrimPrefix(pattern, "/"), "/")).MatchString(name)
		})
	}
	for name, want := range map[string]bool{
		chart[1]: true, "registry.example.com/" + chart[1]: true, "stack-controller/stack-controller": true,
		"registry.example.com/stack-controller-agent": true, "stack-controller/manifests": false, "other/charts/nginx": false, "pulumi/pulumi": false,
	} {
		g.Expect(matches(name)).To(Equal(want), name)
	}
}

// Renovate evaluates the pattern with RE2, as Go does.
func TestRenovateFindsTheImagesOfPods(t *testing.T) {
	g := NewWithT(t)
	pattern := regexp.MustCompile(renovate(t).CustomManagers[0].MatchStrings[0])
	const digest = "sha256:ff8f3c92f1bcb433e858c948040c3a3393fe73f5dd72048a4502bfaf0a4c26cd"
	for line, want := range map[string][]string{
		"      image: pulumi/pulumi:3.276.0":                                   {"pulumi/pulumi", "3.276.0", ""},
		`      image: "registry.example.com:5000/team/pulumi:3.276.0-nonroot"`: {"registry.example.com:5000/team/pulumi", "3.276.0-nonroot", ""},
		"    - image: pulumi/pulumi-nodejs:3.276.0@" + digest:                  {"pulumi/pulumi-nodejs", "3.276.0", digest},
		"      image: pulumi":                                                  nil,
		"      imagePullPolicy: Always":                                        nil,
	} {
		found := pattern.FindStringSubmatch("\n" + line + "\n")
		if want == nil {
			g.Expect(found).To(BeNil(), line)
			continue
		}
		g.Expect(found).NotTo(BeNil(), line)
		for i, group := range []string{"depName", "currentValue", "currentDigest"} {
			g.Expect(found[pattern.SubexpIndex(group)]).To(Equal(want[i]), line)
		}
	}
	sample := read(t, filepath.Join(tools.RepositoryRoot(), "config", "samples", "stack_workspace_template.yaml"))
	g.Expect(pattern.FindStringSubmatch(sample)).To(ContainElements("registry.example.com/pulumi", "latest"))
}
