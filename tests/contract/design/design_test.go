// Package design_test checks the pages for contributors against the code: the functions named in docs/design.md exist, and AGENTS.md lists
// every folder.
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
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	design = "docs/design.md"
	agents = "AGENTS.md"
)

// The index is between these lines.
const (
	indexBegin = "<!-- code index: written by go test ./tests/contract/design -update-docs -->\n"
	indexEnd   = "<!-- end of the code index -->\n"
)

var updateDocs = flag.Bool("update-docs", false, "write the code index into "+design)

var (
	// symbolReference matches a function, method, type or constant in a page: `internal/controller/stack.decide`.
	symbolReference = regexp.MustCompile("`((?:internal|cmd|api)/[a-z0-9/]+)\\.([A-Za-z0-9_.]+)`")
	// pathReference matches a directory or file in a page: `internal/controller/stack`.
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
	g.Expect(table == wanted).To(BeTrue(), "%s has another index; run: go test ./tests/contract/design -update-docs", design)
}

// indexOf returns the code index: the files of all functions that the text names.
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

// declarations returns the file of each declaration in a package. The keys are names such as "decide", "Reconciler" or
// "Reconciler.observe".
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

// typeName returns the name of a receiver's type, without pointer and type parameters.
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

func TestRecipesNameWhatExists(t *testing.T) {
	const page = "CONTRIBUTING.md"
	text := read(t, page)
	for _, match := range symbolReference.FindAllStringSubmatch(text, -1) {
		directory, name := match[1], match[2]
		switch isFile := name == "go" || name == "proto"; {
		case isFile && !strings.Contains(text, match[0]+", new"):
			NewWithT(t).Expect(inRepository(directory + "." + name)).To(BeARegularFile())
		case !isFile && declarations(t, directory)[name] == "":
			t.Errorf("%s: there is no %s in %s", page, name, directory)
		}
	}

	g := NewWithT(t)
	_, recipe, found := strings.Cut(text, "\n## Recipe: a new kind of source\n")
	g.Expect(found).To(BeTrue())
	recipe, _, _ = strings.Cut(recipe, "\n## ")
	var named, methods []string
	for _, match := range regexp.MustCompile("(?m)^   - `([A-Z][A-Za-z]+)`(?: and `([A-Z][A-Za-z]+)`)?").FindAllStringSubmatch(recipe, -1) {
		named = append(named, slices.DeleteFunc(match[1:], func(name string) bool { return name == "" })...)
	}
	for method := range reflect.TypeFor[source.Source]().Methods() {
		methods = append(methods, method.Name)
	}
	g.Expect(named).To(ConsistOf(methods), "the items of the recipe begin with the methods")
}

func TestMapOfFoldersIsComplete(t *testing.T) {
	g := NewWithT(t)
	_, section, found := strings.Cut(read(t, agents), "\n## Folders\n")
	g.Expect(found).To(BeTrue())
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{}
	for _, match := range pathReference.FindAllStringSubmatch(section, -1) {
		listed[match[1]] = true
	}
	for _, top := range []string{"internal", "tests"} {
		entries, err := os.ReadDir(inRepository(top))
		g.Expect(err).NotTo(HaveOccurred())
		for _, entry := range entries {
			if folder := top + "/" + entry.Name(); !listed[folder] {
				t.Errorf("%s: the folder %s is not in the map", agents, folder)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	g := NewWithT(t)
	said, packages := map[string]bool{}, map[string]bool{}
	for _, top := range []string{"api", "cmd", "internal", "tests"} {
		g.Expect(filepath.WalkDir(inRepository(top), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == "testdata" {
				return filepath.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			packages[filepath.Dir(path)] = true
			if parsed.Doc != nil && parsed.Doc.Text() != "" { // a directive alone has no text
				said[filepath.Dir(path)] = true
			}
			return nil
		})).To(Succeed())
	}
	g.Expect(len(packages)).To(BeNumerically(">", 100))
	for directory := range packages {
		if !said[directory] {
			t.Errorf("no file of %s has a comment that says what the package is", directory)
		}
	}
}

func TestEverySpecFieldIsDocumented(t *testing.T) {
	for page, spec := range map[string]reflect.Type{
		"docs/spec/v1/stacks.md":     reflect.TypeFor[pulumiv1.StackSpec](),
		"docs/spec/v1/workspaces.md": reflect.TypeFor[autov1alpha1.WorkspaceSpec](),
		"docs/spec/v1/updates.md":    reflect.TypeFor[autov1alpha1.UpdateSpec](),
	} {
		text := read(t, page)
		for _, field := range reflect.VisibleFields(spec) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && !regexp.MustCompile("`\\.spec\\."+name+"\\b").MatchString(text) {
				t.Errorf("%s: the field .spec.%s is not documented", page, name)
			}
		}
	}
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	htmlID    = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

func TestEveryLinkInTheDocumentationLeadsSomewhere(t *testing.T) {
	g := NewWithT(t)
	root := tools.RepositoryRoot()
	pages := []string{"README.md", "CONTRIBUTING.md", "AGENTS.md"}
	g.Expect(filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "api" {
			return filepath.SkipDir // this page is generated, with links to types that it does not list
		}
		if err == nil && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root, path)
			pages = append(pages, path)
		}
		return err
	})).To(Succeed())
	links, anchors := 0, map[string]map[string]bool{}
	for _, page := range pages {
		for _, match := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: the link to %s: %s", page, match[1], err)
				continue
			}
			if anchor != "" && anchors[target] == nil {
				anchors[target] = anchorsOf(t, target)
			}
			if anchor != "" && !anchors[target][anchor] {
				t.Errorf("%s: the link to %s: there is no such heading", page, match[1])
			}
		}
	}
	g.Expect(links).To(BeNumerically(">", 100))
}

// anchorsOf returns the anchors that GitHub creates for the headings of a page.
func anchorsOf(t *testing.T, page string) map[string]bool {
	t.Helper()
	text := codeBlock.ReplaceAllString(read(t, page), "")
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(linkText.ReplaceAllString(match[1], "$1")), "")
		anchors[strings.ReplaceAll(slug, " ", "-")] = true
	}
	for _, match := range htmlID.FindAllStringSubmatch(text, -1) {
		anchors[match[1]] = true
	}
	return anchors
}
