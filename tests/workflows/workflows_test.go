// Package workflows checks what runs in continuous integration with rights that others would like to have.
package workflows

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// workflow is what the tests read of a file in .github/workflows.
type workflow struct {
	On          any               `json:"on"`
	Permissions map[string]string `json:"permissions"`
	Concurrency map[string]any    `json:"concurrency"`
	Jobs        map[string]job    `json:"jobs"`

	text string
}

type job struct {
	Permissions    map[string]string `json:"permissions"`
	TimeoutMinutes int               `json:"timeout-minutes"`
	Uses           string            `json:"uses"`
	Steps          []step            `json:"steps"`
}

type step struct {
	Uses string         `json:"uses"`
	Run  string         `json:"run"`
	With map[string]any `json:"with"`
}

// granted is all that jobs get beyond reading the repository.
var granted = map[string]map[string]string{
	"release.yaml build":   {"contents": "read", "packages": "write"},
	"release.yaml publish": {"contents": "write", "packages": "write", "id-token": "write", "attestations": "write"},
}

var (
	pinned = regexp.MustCompile(`^\s+(?:- )?uses: (\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/\S+)$`)
	// made and script are what a shell command calls.
	made   = regexp.MustCompile(`\bmake ([a-z-]+)`)
	script = regexp.MustCompile(`\.ci/[a-z-]+`)
)

func inRepository(elements ...string) string {
	return filepath.Join(append([]string{tools.RepositoryRoot()}, elements...)...)
}

// workflows returns the workflows by the names of their files.
func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob(inRepository(".github", "workflows", "*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	found := map[string]workflow{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		// YAML 1.1 takes the key for a boolean.
		text := strings.Replace(string(content), "\non:", "\n\"on\":", 1)
		w := workflow{text: text}
		g.Expect(yaml.Unmarshal([]byte(text), &w)).To(Succeed(), file)
		found[filepath.Base(file)] = w
	}
	return found
}

// steps calls check with each step and the name of its workflow and job.
func steps(t *testing.T, check func(name string, s step)) {
	t.Helper()
	for file, w := range workflows(t) {
		for name, j := range w.Jobs {
			for _, s := range j.Steps {
				check(file+" "+name, s)
			}
		}
	}
}

func TestEachActionIsPinnedToACommit(t *testing.T) {
	for file, w := range workflows(t) {
		for line := range strings.Lines(w.text) {
			line = strings.TrimSuffix(line, "\n")
			if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
				t.Errorf("%s: %q is not pinned to a commit, with its version as a comment", file, line)
			}
		}
	}
}

func TestOnlyTheReleaseMayWriteAndOnlyWhereItHasTo(t *testing.T) {
	g := NewWithT(t)
	for file, w := range workflows(t) {
		g.Expect(w.Permissions).To(Equal(map[string]string{"contents": "read"}), file)
		for name, j := range w.Jobs {
			g.Expect(j.Permissions).To(Equal(granted[file+" "+name]), "%s %s", file, name)
		}
	}
}

func TestNothingOfAPullRequestGetsIntoAScriptOrKeepsATokenOrASecret(t *testing.T) {
	g := NewWithT(t)
	for file, w := range workflows(t) {
		// These run with the rights of the repository on what a stranger has sent.
		g.Expect(w.text).NotTo(MatchRegexp("pull_request_target|workflow_run"), file)
		if triggers := fmt.Sprint(w.On); strings.Contains(triggers, "pull_request") {
			g.Expect(w.text).NotTo(MatchRegexp(`secrets\.|secrets:`), file)
		}
	}
	steps(t, func(name string, s step) {
		g.Expect(s.Run).NotTo(ContainSubstring("${{"), "%s: an expression in a script is code: hand it over in env", name)
		if strings.HasPrefix(s.Uses, "actions/checkout@") {
			g.Expect(s.With).To(HaveKeyWithValue("persist-credentials", false), name)
		}
	})
}

func TestWhatIsReleasedIsBuiltWithoutACacheThatOthersWrite(t *testing.T) {
	g := NewWithT(t)
	steps(t, func(name string, s step) {
		if !strings.HasPrefix(name, "release.yaml ") {
			return
		}
		g.Expect(s.Uses).NotTo(HavePrefix("actions/cache"), name)
		if strings.HasPrefix(s.Uses, "actions/setup-go@") {
			g.Expect(s.With).To(HaveKeyWithValue("cache", false), name)
		}
	})
}

func TestEachJobEnds(t *testing.T) {
	g := NewWithT(t)
	for file, w := range workflows(t) {
		g.Expect(w.Concurrency).To(HaveKey("group"), file)
		for name, j := range w.Jobs {
			if j.Uses == "" {
				g.Expect(j.TimeoutMinutes).To(BeNumerically(">", 0), "%s %s", file, name)
			}
		}
	}
}

func TestWhatWorkflowsCallExists(t *testing.T) {
	g := NewWithT(t)
	makefile, err := os.ReadFile(inRepository("Makefile"))
	g.Expect(err).NotTo(HaveOccurred())
	calls := 0
	steps(t, func(name string, s step) {
		for _, target := range made.FindAllStringSubmatch(s.Run, -1) {
			calls++
			g.Expect(string(makefile)).To(MatchRegexp(`(?m)^`+target[1]+`:`), name)
		}
		for _, path := range script.FindAllString(s.Run, -1) {
			calls++
			info, err := os.Stat(inRepository(path))
			g.Expect(err).NotTo(HaveOccurred(), name)
			g.Expect(info.Mode().Perm()&0o100).NotTo(BeZero(), path)
		}
	})
	g.Expect(calls).To(BeNumerically(">=", 5))
}

func TestEachFuzzTargetIsFuzzed(t *testing.T) {
	g := NewWithT(t)
	output, err := exec.CommandContext(t.Context(), inRepository(".ci", "fuzz"), "list").Output()
	g.Expect(err).NotTo(HaveOccurred())
	listed := strings.Fields(string(output))
	g.Expect(listed).To(ConsistOf(fuzzTargets(t)))
	g.Expect(len(listed)).To(BeNumerically("<=", 256), "a matrix has no more jobs")
	g.Expect(workflows(t)["fuzz.yaml"].text).To(And(ContainSubstring(".ci/fuzz list"), ContainSubstring(`TARGETS="$TARGET"`)))
}

// fuzzTargets finds the fuzz targets of the repository in its syntax trees.
func fuzzTargets(t *testing.T) []string {
	t.Helper()
	g := NewWithT(t)
	var targets []string
	g.Expect(filepath.WalkDir(tools.RepositoryRoot(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(tools.RepositoryRoot(), filepath.Dir(path))
		if dir != "." {
			dir = "./" + filepath.ToSlash(dir)
		}
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil && strings.HasPrefix(function.Name.Name, "Fuzz") {
				targets = append(targets, dir+":"+function.Name.Name)
			}
		}
		return err
	})).To(Succeed())
	return targets
}
