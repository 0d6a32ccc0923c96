// Package design_test checks what the pages for contributors say about the code: docs/design.md names functions that exist, and AGENTS.md
// every package.
package design_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	design = "docs/design.md"
	agents = "AGENTS.md"
)

// The index stands between these lines.
const (
	indexBegin = "<!-- code index: written by go test ./tests/design -update-docs -->\n"
	indexEnd   = "<!-- end of the code index -->\n"
)

var updateDocs = flag.Bool("update-docs", false, "write the code index into "+design)

var (
	// symbolReference is a function, method, type or constant in a page: `internal/stack.decide`.
	symbolReference = regexp.MustCompile("`((?:internal|cmd|api)/[a-z0-9/]+)\\.([A-Za-z0-9_.]+)`")
	// pathReference is a directory or file in a page: `internal/stack`.
	pathReference = regexp.MustCompile("`((?:internal|cmd|api|config|docs|tests)(?:/[A-Za-z0-9_./-]+)?)`")
)

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(inRepository(name))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

func inRepository(name string) string {
	return filepath.Join(tools.RepositoryRoot(), filepath.FromSlash(name))
}

func TestEveryFunctionInTheDesignExistsAndIsInItsIndex(t *testing.T) {
	g := NewWithT(t)
	before, rest, found := strings.Cut(read(t, design), indexBegin)
	g.Expect(found).To(BeTrue(), "no line %q", indexBegin)
	table, after, found := strings.Cut(rest, indexEnd)
	g.Expect(found).To(BeTrue(), "no line %q", indexEnd)
	wanted := indexOf(t, before+after)
	if *updateDocs && !t.Failed() {
		table = wanted
		g.Expect(os.WriteFile(inRepository(design), []byte(before+indexBegin+table+indexEnd+after), 0o644)).To(Succeed())
	}
	g.Expect(table == wanted).To(BeTrue(), "%s has another index; run: go test ./tests/design -update-docs", design)
}

// indexOf lists the files of all functions that the text names.
func indexOf(t *testing.T, text string) string {
	symbols := map[string][]string{} // by file
	packages := map[string]map[string]string{}
	for _, match := range symbolReference.FindAllStringSubmatch(text, -1) {
		directory, symbol := match[1], match[2]
		if packages[directory] == nil {
			packages[directory] = declarations(t, directory)
		}
		file := packages[directory][symbol]
		if file == "" {
			t.Errorf("%s: there is no %s in %s", design, symbol, directory)
			continue
		}
		symbols[directory+"/"+file] = append(symbols[directory+"/"+file], "`"+symbol+"`")
	}
	table := "\n| package | file | names |\n|---|---|---|\n"
	files := make([]string, 0, len(symbols))
	for file := range symbols {
		files = append(files, file)
	}
	slices.Sort(files)
	for _, file := range files {
		slices.Sort(symbols[file])
		table += fmt.Sprintf("| `%s` | [%s](../%s) | %s |\n", path.Dir(file), path.Base(file), file, strings.Join(slices.Compact(symbols[file]), ", "))
	}
	return table + "\n"
}

// declarations returns the files of a package by what they declare: "decide", "Reconciler" or "Reconciler.observe".
func declarations(t *testing.T, directory string) map[string]string {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob(filepath.Join(inRepository(directory), "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	declared := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		for _, declaration := range parsed.Decls {
			for _, name := range namesOf(declaration) {
				declared[name] = filepath.Base(file)
			}
		}
	}
	return declared
}

func namesOf(declaration ast.Decl) (names []string) {
	switch declaration := declaration.(type) {
	case *ast.FuncDecl:
		name := declaration.Name.Name
		if declaration.Recv != nil {
			name = typeName(declaration.Recv.List[0].Type) + "." + name
		}
		return []string{name}
	case *ast.GenDecl:
		for _, spec := range declaration.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// typeName is the name of a receiver's type, without pointer and type parameters.
func typeName(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.StarExpr:
		return typeName(expression.X)
	case *ast.IndexExpr:
		return typeName(expression.X)
	case *ast.Ident:
		return expression.Name
	}
	return ""
}

func TestEveryPathForContributorsExists(t *testing.T) {
	for _, page := range []string{design, agents} {
		for _, match := range pathReference.FindAllStringSubmatch(symbolReference.ReplaceAllString(read(t, page), ""), -1) {
			if _, err := os.Stat(inRepository(match[1])); err != nil {
				t.Errorf("%s: %s", page, err)
			}
		}
	}
}

func TestMapOfPackagesIsComplete(t *testing.T) {
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, agents), "\n## Packages\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{}
	for _, match := range pathReference.FindAllStringSubmatch(section, -1) {
		listed[match[1]] = true
	}
	for _, top := range []string{"api", "cmd", "internal"} {
		g.Expect(filepath.WalkDir(inRepository(top), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.Contains(file, "/testdata/") {
				return err
			}
			directory, err := filepath.Rel(tools.RepositoryRoot(), filepath.Dir(file))
			if name := filepath.ToSlash(directory); err == nil && !listed[name] {
				listed[name] = true
				t.Errorf("%s: the package %s is not in the map of packages", agents, name)
			}
			return err
		})).To(Succeed())
	}
}
