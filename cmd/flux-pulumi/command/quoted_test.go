package command

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/stack-controller/stack-controller/config"
	"github.com/stack-controller/stack-controller/tests/tools"
)

var (
	// codeInPage matches a code block or a code span of a page.
	codeInPage = regexp.MustCompile("(?ms)^ *```.*?^ *```$|`[^`]+`")
	// templateAction matches what a template of Prometheus or Helm replaces by a value.
	templateAction = regexp.MustCompile(`\{\{[^}]*\}\}`)
	// quotedCommand matches a call of the command line. Its group is what follows the name of the program, up to where a sentence or a shell
	// begins another part.
	quotedCommand = regexp.MustCompile("(?:^|[^\\w/.-])(?:flux|kubectl)[ -]pulumi( +[a-z_-][^\\s`'\"|<>;&#(),\\[\\]]*(?: +[^\\s`'\"|<>;&#(),\\[\\]]+)*)")
)

// TestQuotedCommandsExist finds the commands that pages, manifests and messages tell users to run.
func TestQuotedCommandsExist(t *testing.T) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	found := 0
	for _, top := range []string{"docs", "config", "api", "cmd", "internal", "README.md", "CONTRIBUTING.md"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, top), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata") {
				return err
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, text := range quotations(g, file, string(content)) {
				for _, words := range commandsIn(text) {
					found++
					if problem := problemOf(words); problem != "" {
						t.Errorf("%s: %s: %s", strings.TrimPrefix(file, root), strings.Join(words, " "), problem)
					}
				}
			}
			return nil
		})).To(Succeed())
	}
	g.Expect(found).To(BeNumerically(">", 100))
}

func TestCommandThatDoesNotExistIsFound(t *testing.T) {
	g := NewWithT(t)
	text := "See: flux pulumi explain {{ $labels.name }} --namespace apps; or kubectl-pulumi get stacks -A | head, flux pulumi\nhelp"
	g.Expect(commandsIn(text)).To(Equal([][]string{{"explain", "NAME", "--namespace", "apps"}, {"get", "stacks", "-A"}}))
	for command, problem := range map[string]string{
		"explain NAME --namespace apps": `"flux pulumi explain" has no command "NAME"`,
		"explain stack NAME -n apps":    "",
		"explain":                       "",
		"explian stack NAME":            `"flux pulumi" has no command "explian"`,
		"get stacks --all":              "unknown flag: --all",
		"completion bash --help":        "",
	} {
		g.Expect(problemOf(strings.Fields(command))).To(Equal(problem), command)
	}
}

// quotations returns the parts of a file that can have commands: the code of a page, the strings of Go, and everything of another file.
func quotations(g *WithT, file, content string) (texts []string) {
	switch filepath.Ext(file) {
	case ".md":
		for _, code := range codeInPage.FindAllString(content, -1) {
			if !strings.HasPrefix(strings.TrimSpace(code), "```") {
				code = strings.Join(strings.Fields(code), " ") // A span can go on in the next line.
			}
			texts = append(texts, code)
		}
	case ".go":
		parsed, err := parser.ParseFile(token.NewFileSet(), file, content, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(parsed, func(node ast.Node) bool {
			if literal, is := node.(*ast.BasicLit); is && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				g.Expect(err).NotTo(HaveOccurred())
				texts = append(texts, text)
			}
			return true
		})
	default:
		texts = []string{content}
	}
	return texts
}

// commandsIn returns the words after the name of the program, for each command in the text.
func commandsIn(text string) (commands [][]string) {
	text = templateAction.ReplaceAllString(strings.ReplaceAll(text, "\\\n", " "), "NAME")
	for _, match := range quotedCommand.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(match[1])
		last := len(words) - 1
		words[last] = strings.TrimRight(words[last], ".:")
		commands = append(commands, words)
	}
	return commands
}

// problemOf returns why the words after the name of the program are no command with its flags, or nothing. A command that only has
// subcommands can be named without one.
func problemOf(words []string) string {
	if words[0] == cobra.ShellCompRequestCmd {
		return ""
	}
	s := &session{Environment: Environment{Program: "flux-pulumi"}, flags: genericclioptions.NewConfigFlags(true)}
	root := s.root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(words...)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err.Error()
	}
	cmd.InitDefaultHelpFlag()
	if err = cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	if operands := cmd.Flags().Args(); cmd.HasSubCommands() && len(operands) > 0 {
		return fmt.Sprintf("%q has no command %q", cmd.CommandPath(), operands[0])
	}
	return ""
}

func TestPageSaysHowManyObjectsAreInstalled(t *testing.T) {
	g := NewWithT(t)
	objects, err := config.Objects("controller:v1", "agent:v1")
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "cli.md"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(page)).To(ContainSubstring(fmt.Sprintf("\n✔ %d objects are applied\n", len(objects))))
}
