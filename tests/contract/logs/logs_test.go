// Package logs_test has the table of the messages that the controller and the agent log. It generates docs/guides/logs.md from the table,
// and checks that the code logs exactly these messages.
package logs_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/contract/pages"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// document is the page, relative to the root of the repository.
const document = "docs/guides/logs.md"

var updateDocs = flag.Bool("update-docs", false, "write "+document)

const updateCommand = "go test ./tests/contract/logs -update-docs"

// line is a place in the code that logs.
type line struct {
	message, level, file string
	keys                 []string
}

// agentDirectories are the directories of the code whose messages the agent logs. The controller logs all others.
var agentDirectories = []string{"cmd/agent", "internal/agent/auth", "internal/agent/cli", "internal/agent/operation", "internal/agent/server"}

func TestPageListsWhatIsLogged(t *testing.T) {
	g := NewWithT(t)
	lines := findLines(t)
	g.Expect(len(lines)).To(BeNumerically(">", 50))
	written := map[string]bool{}
	for _, l := range lines {
		written[l.message] = true
		if meanings[l.message] == "" {
			t.Errorf("%s logs %q, which has no row", l.file, l.message)
		}
	}
	for message := range meanings {
		if !written[message] {
			t.Errorf("nothing logs %q", message)
		}
	}
	text := intro
	for _, section := range []struct {
		title, words string
		agent        bool
	}{
		{"The controller", controllerIntro, false},
		{"The agent", agentIntro, true},
	} {
		text += "\n## " + section.title + "\n\n" + section.words
		for _, level := range []string{"error", "warn", "info", "debug"} {
			text += table(lines, section.agent, level)
		}
	}
	pages.Keep(t, document, text, updateCommand, *updateDocs)
}

// table returns the part of the page with the messages of a level, in alphabetical order.
func table(lines []line, agent bool, level string) string {
	rows := map[string]bool{}
	for _, l := range lines {
		ofAgent := slices.ContainsFunc(agentDirectories, func(directory string) bool { return filepath.Dir(l.file) == directory })
		if ofAgent != agent || l.level != level {
			continue
		}
		keys := ""
		if len(l.keys) > 0 {
			keys = "`" + strings.Join(l.keys, "`, `") + "`"
		}
		rows[fmt.Sprintf("| `%s` | %s | %s |\n", pages.Cell(l.message), keys, pages.Cell(meanings[l.message]))] = true
	}
	if len(rows) == 0 {
		return ""
	}
	sorted := make([]string, 0, len(rows))
	for row := range rows {
		sorted = append(sorted, row)
	}
	slices.Sort(sorted)
	return "Level `" + level + "`:\n\n| Message | Keys | Meaning, and what to do |\n|---------|------|-------------------------|\n" + strings.Join(sorted, "") + "\n"
}

// findLines returns the calls of loggers in the controller and the agent.
func findLines(t *testing.T) (lines []line) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	for _, directory := range []string{"internal", "cmd/agent"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, directory), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go") {
				return err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files := token.NewFileSet()
			parsed, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(node ast.Node) bool {
				if call, ok := node.(*ast.CallExpr); ok {
					if found, ok := logged(t, files, call); ok && !slices.Contains(forwarders, file) {
						found.file = file
						lines = append(lines, found)
					}
				}
				return true
			})
			return nil
		})).To(Succeed())
	}
	return lines
}

// forwarders are files that log the text of others: a line for each event.
var forwarders = []string{"internal/report/events/log.go"}

// logged returns the line that a call logs, if it is a call of a logger of logr or slog. The syntax tree has no types, so a logger is
// recognized by its name.
func logged(t *testing.T, files *token.FileSet, call *ast.CallExpr) (line, bool) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return line{}, false
	}
	receiver := source(files, selector.X)
	levels := map[string]string{"Info": "info", "Warn": "warn", "Error": "error", "Debug": "debug"}
	level := levels[selector.Sel.Name]
	if base, verbose := strings.CutSuffix(receiver, ".V(1)"); verbose {
		receiver, level = base, "debug"
	}
	last := strings.ToLower(receiver[strings.LastIndex(receiver, ".")+1:])
	if level == "" || !strings.HasSuffix(last, "log") && !strings.HasPrefix(last, "loggerfrom(") && !strings.HasSuffix(last, "logger") && last != "slog" {
		return line{}, false
	}
	arguments := call.Args
	if _, first := text(files, arguments[0]); selector.Sel.Name == "Error" && !first {
		arguments = arguments[1:] // logr takes the error first
	}
	message, _ := text(files, arguments[0])
	found := line{message: message, level: level}
	for i := 1; i < len(arguments); i += 2 {
		if key, constant := text(files, arguments[i]); constant {
			found.keys = append(found.keys, key)
		}
	}
	if message == "" {
		t.Errorf("%s: no message", files.Position(call.Pos()))
	}
	return found, true
}

// text returns the constant text of an expression, with … in place of variable parts.
func text(files *token.FileSet, expression ast.Expr) (result string, constant bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		unquoted, err := strconv.Unquote(e.Value)
		return unquoted, err == nil
	case *ast.BinaryExpr:
		left, leftConstant := text(files, e.X)
		right, rightConstant := text(files, e.Y)
		return left + right, leftConstant || rightConstant
	}
	return "…", false
}

func source(files *token.FileSet, expression ast.Expr) string {
	var buffer bytes.Buffer
	if err := printer.Fprint(&buffer, files, expression); err != nil {
		return ""
	}
	return buffer.String()
}
