// Package design_test checks the pages for contributors against the code: the functions named in docs/design.md exist, and AGENTS.md lists
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

// controllers are the packages with a function decide. Those in which something is read for it have a function observe.
var controllers = []string{"internal/controller/stack", "internal/controller/update", "internal/controller/workspace", "internal/controller/approval", "internal/agentruntime/pod"}

// part is a part of a reconcile: the functions of a package that its first functions call, and what none of them may do.
type part struct {
	first []string
	// calls must not appear. A call is identified by the name of the function or method alone, or with the name before the dot.
	calls []string
	// pure functions have no context, and write to nothing but their own variables.
	pure bool
}

var parts = map[string]part{
	"reading": {
		first: []string{"observe", "observeAgent", "observeContent"},
		calls: []string{
			"Create", "Patch", "Apply", "Delete", "DeleteAllOf", "Event", "Eventf", "AnnotatedEventf", // written to the API server
			"MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled", // written to the object
			"Wake", "Awake", "turns.ask", "turns.hold", "turns.leave", "rollout.begin", "rollout.end", "background.ensure", "forgetDelivery", // slots, agents, work in the background
			"decide",
		},
	},
	"deciding": {
		first: []string{"decide"}, pure: true,
		calls: []string{"Now", "Since", "Until", "MarkTrue", "MarkFalse", "MarkUnknown", "MarkReconciling", "MarkStalled"},
	},
}

// exempt are functions that a part may call although they do what it must not.
var exempt = map[string]string{
	"restoreStatus": "reading the source needs the status as it should be, and repairs a copy of it",
}

func TestReadingAndDecidingChangeNothing(t *testing.T) {
	g := NewWithT(t)
	for _, directory := range controllers {
		files, err := filepath.Glob(filepath.Join(inRepository(directory), "*.go"))
		g.Expect(err).NotTo(HaveOccurred())
		var parsed []*ast.File
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			one, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			g.Expect(err).NotTo(HaveOccurred())
			parsed = append(parsed, one)
		}
		for name, rules := range parts {
			found, functions := rules.violations(parsed)
			t.Logf("%s: %s: %d functions", directory, name, functions)
			g.Expect(functions > 0 || name == "reading").To(BeTrue(), "%s has no function for %s", directory, name)
			for _, violation := range found {
				t.Errorf("%s: %s: %s", directory, name, violation)
			}
		}
	}
}

// This test checks that the rules find violations, also in the functions that others call.
func TestPartsThatChangeSomethingAreFound(t *testing.T) {
	g := NewWithT(t)
	for source, wanted := range map[string]string{
		"func (r *R) observe() { r.more() }; func (r *R) more() { r.Status().Patch(nil) }":          "more calls Patch",
		"func observe(o *O) { o.stack.Status.Plan = nil }":                                          "observe writes to a status",
		"func decide(o O) { why(o) }; func why(o O) { o.stack.Status.Plan = nil }":                  "why writes to what it was given",
		"func decide(o *O) { o.now = 0 }":                                                           "decide writes to what it was given",
		"func decide(ctx context.Context) {}":                                                       "decide has a context",
		"func decide(o O) { time.Now() }":                                                           "decide calls Now",
		"func observe(o *O) { o.now = 0 }; func decide(o O) { o.now = 1; p := o.plan; p.name = 1 }": "",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p; "+source, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		var all []string
		for _, rules := range parts {
			found, _ := rules.violations([]*ast.File{parsed})
			all = append(all, found...)
		}
		g.Expect(strings.Join(all, "; ")).To(Equal(wanted), source)
	}
}

// violations returns what the functions of the part do although they must not, and how many functions there are.
func (p part) violations(files []*ast.File) (found []string, functions int) {
	declared := map[string][]*ast.FuncDecl{} // methods of several types may have one name
	for _, file := range files {
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok {
				name := function.Name.Name
				if function.Recv != nil {
					name = "." + name
				}
				declared[name] = append(declared[name], function)
			}
		}
	}
	seen := map[string]bool{}
	next := slices.Clone(p.first)
	for _, name := range p.first {
		next = append(next, "."+name)
	}
	for ; len(next) > 0; next = next[1:] {
		name := next[0]
		if seen[name] || exempt[name] != "" {
			continue
		}
		seen[name] = true
		for _, function := range declared[name] {
			functions++
			called, wrong := p.check(function)
			next = append(next, called...)
			for _, what := range wrong {
				found = append(found, strings.TrimPrefix(name, ".")+" "+what)
			}
		}
	}
	return found, functions
}

// check returns what the function calls, and what it must not do.
func (p part) check(function *ast.FuncDecl) (called, wrong []string) {
	pointers, given := parametersOf(function)
	if p.pure && given["ctx"] {
		wrong = append(wrong, "has a context")
	}
	ast.Inspect(function, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			root, path := selected(node.Fun)
			if len(path) == 0 {
				called = append(called, root)
				path = []string{root}
			} else {
				called = append(called, "."+path[len(path)-1])
			}
			name, of := path[len(path)-1], strings.Join(path[max(0, len(path)-2):], ".")
			if slices.Contains(p.calls, name) || slices.Contains(p.calls, of) {
				wrong = append(wrong, "calls "+name)
			}
		case *ast.AssignStmt:
			for _, target := range node.Lhs {
				root, path := selected(target)
				switch {
				case !p.pure && slices.Contains(path, "Status"):
					wrong = append(wrong, "writes to a status")
				case p.pure && (given[root] && len(path) > 1 || pointers[root] && len(path) > 0):
					wrong = append(wrong, "writes to what it was given")
				}
			}
		}
		return true
	})
	return called, wrong
}

// parametersOf returns the names of the parameters of a function and of its receiver, and of those that are pointers.
func parametersOf(function *ast.FuncDecl) (pointers, all map[string]bool) {
	pointers, all = map[string]bool{}, map[string]bool{}
	fields := slices.Clone(function.Type.Params.List)
	if function.Recv != nil {
		fields = append(fields, function.Recv.List...)
	}
	for _, field := range fields {
		_, pointer := field.Type.(*ast.StarExpr)
		for _, name := range field.Names {
			all[name.Name] = true
			pointers[name.Name] = pointer
		}
	}
	return pointers, all
}

// selected returns the variable of an expression such as o.stack.Status, and the names of the fields: stack, Status.
func selected(expression ast.Expr) (root string, path []string) {
	switch expression := expression.(type) {
	case *ast.Ident:
		return expression.Name, nil
	case *ast.CallExpr:
		return selected(expression.Fun)
	case *ast.SelectorExpr:
		root, path = selected(expression.X)
		return root, append(path, expression.Sel.Name)
	case *ast.IndexExpr:
		return selected(expression.X)
	case *ast.StarExpr:
		root, path = selected(expression.X)
		return root, append(path, "*")
	}
	return "", nil
}
