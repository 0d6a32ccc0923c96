package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// group is a set of packages that run with the same flags.
type group struct {
	name     string
	dir      string // directory of the module
	packages []string
	cgo      bool
	flags    []string
	env      []string // further environment variables, as NAME=value
}

// allGroups returns the groups of the suite. Within a group, the packages that are expected to take longest come first.
func allGroups(ctx context.Context, short, race bool) ([]group, error) {
	flags := []string{"-count=1", "-vet=off", "-ldflags=-w"}
	if short {
		// On a new machine, a package first compiles what its tests run, beside others that do the same.
		flags = append(flags, "-short", "-timeout=30m")
	} else {
		flags = append(flags, "-timeout=60m")
	}
	// How many packages run at a time keeps the processors busy: those with the race detector wait for half of their time.
	raced := append([]string{"-p=" + strconv.Itoa(runtime.NumCPU()+2)}, flags...)
	if race {
		raced = append(append(raced, "-race"), uninstrumented()...)
	}
	plain := append([]string{"-p=" + strconv.Itoa(runtime.NumCPU()+1)}, flags...)
	root := tools.RepositoryRoot()
	internal, err := testPackages(ctx, ".", "./cmd/...", "./internal/...")
	if err != nil {
		return nil, err
	}
	product := group{name: "internal", dir: root, cgo: race, flags: raced}
	for _, pkg := range internal {
		product.packages = append(product.packages, pkg.name)
	}
	groups := []group{{name: "api", dir: filepath.Join(root, "api"), packages: []string{"./..."}, cgo: race, flags: raced}, product}
	if race {
		alone, err := withoutRaceDetector(root)
		if err != nil {
			return nil, err
		}
		alone.flags = append(alone.flags, plain...)
		groups = append(groups, alone)
	}
	tests, err := testPackages(ctx, "./config/...", "./tests/...") // without goroutines of ours
	if err != nil {
		return nil, err
	}
	if short {
		tests = slices.DeleteFunc(tests, func(pkg testPackage) bool { return pkg.long })
	}
	system, nodes := group{name: "system", dir: root, flags: plain}, group{name: "nodes", dir: root, flags: append([]string{"-p=1"}, flags...)}
	for _, pkg := range tests {
		if pkg.nodes && !short {
			nodes.packages = append(nodes.packages, pkg.name)
		} else {
			system.packages = append(system.packages, pkg.name)
		}
	}
	if short {
		return append(groups, system), nil
	}
	return append(groups, system, nodes, onOldestKubernetes(root, flags)), nil
}

// oldest is the name of the group that runs with the oldest version of Kubernetes.
const oldest = "oldest"

// onOldestKubernetes returns the group of the short tests of what depends most on the API server: definitions, admission policies, and the
// promises of the main job. They run with the oldest version of Kubernetes, which tests/framework/controlplane verifies.
func onOldestKubernetes(root string, flags []string) group {
	g := group{name: oldest, dir: root, flags: append([]string{"-short"}, flags...)}
	for _, name := range []string{"e2e", "contract/api", "e2e/admission", "framework/controlplane"} {
		g.packages = append(g.packages, module+"tests/"+name)
	}
	return g
}

// useOldestKubernetes makes the tests of the group use the oldest version of Kubernetes, which it builds if necessary.
func (g *group) useOldestKubernetes(ctx context.Context) error {
	for _, server := range []string{"kube-apiserver", "kube-controller-manager"} {
		path, err := tools.Path(ctx, server+"-oldest", nil)
		if err != nil {
			return err
		}
		g.env = append(g.env, tools.AssetVariable(server)+"="+path)
	}
	version, err := tools.Version("kube-apiserver-oldest")
	g.env = append(g.env, suite.KubernetesVariable+"="+version)
	return err
}

// uninstrumented returns the flags that leave the race detector out of packages that only compute. In them, a key that is derived from a
// passphrase takes five times as long with it. These packages share only objects of more than 80 bytes with others: the compiler of Go 1.27
// allocates smaller ones in a way that the detector does not see, and their memory may have belonged to another goroutine before.
func uninstrumented() (flags []string) {
	for _, pkg := range []string{
		"crypto/internal/fips140/hmac", "crypto/internal/fips140/pbkdf2", "crypto/internal/fips140/sha256", "crypto/internal/fips140/sha512",
		"golang.org/x/crypto/blowfish", "golang.org/x/crypto/ssh/internal/bcrypt_pbkdf",
	} {
		flags = append(flags, "-gcflags="+pkg+"=-race=false")
	}
	return flags
}

// withNodes is the package that starts nodes. A package whose tests depend on it may start a cluster with a node.
const withNodes = module + "tests/framework/cluster"

// unraced matches the tests that call WithoutRaceDetector.
var unraced = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tsuite\.WithoutRaceDetector\(t\)$`)

// withoutRaceDetector returns the group of the tests below internal that must not run under the race detector. The packages with most of
// these tests come first, because they take longest.
func withoutRaceDetector(root string) (group, error) {
	g := group{name: "unraced", dir: root}
	var tests []string
	in := map[string]int{} // tests by package
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range unraced.FindAllSubmatch(content, -1) {
			tests = append(tests, string(match[1]))
			in[strings.Replace(filepath.Dir(path), root, ".", 1)]++
		}
		return err
	})
	g.packages = slices.SortedFunc(maps.Keys(in), func(a, b string) int { return cmp.Or(cmp.Compare(in[b], in[a]), cmp.Compare(a, b)) })
	g.flags = []string{"-run=^(" + strings.Join(tests, "|") + ")$"}
	return g, err
}

// testPackage is a package with tests.
type testPackage struct {
	name string
	// files is the number of its test files.
	files int
	// nodes reports whether its tests can start a cluster with a node.
	nodes bool
	// long reports whether it has only long tests. The short suite does not even compile it.
	long bool
}

// longPackage matches the call with which a package declares itself as long.
var longPackage = regexp.MustCompile(`(?m)^\t+suite\.LongPackage\(`)

// testPackages returns the packages that match the patterns. Those with the most test files come first, because they take longest.
func testPackages(ctx context.Context, patterns ...string) (found []testPackage, err error) {
	format := `{{.ImportPath}} {{.Dir}} {{join .Deps " "}}`
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-test", "-f", format}, patterns...)...)
	cmd.Dir = tools.RepositoryRoot()
	cmd.Stderr = os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages with tests: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		name, isTest := strings.CutSuffix(fields[0], ".test")
		if !isTest {
			continue
		}
		files, err := filepath.Glob(filepath.Join(fields[1], "*_test.go"))
		if err != nil {
			return nil, err
		}
		pkg := testPackage{name: name, files: len(files), nodes: slices.Contains(fields[2:], withNodes)}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			pkg.long = pkg.long || longPackage.Match(content)
		}
		found = append(found, pkg)
	}
	slices.SortStableFunc(found, func(a, b testPackage) int { return cmp.Compare(b.files, a.files) })
	return found, nil
}

const (
	// endGrace is how long the supervisors of the tests may take to end their processes. They need about a second.
	endGrace = 15 * time.Second
	endPoll  = 20 * time.Millisecond
)

// endDescendants ends every remaining process that this program or its descendants started, and waits for its end. When the parent of a
// process ends, the process becomes a child of this program, which is a subreaper. The processes get SIGTERM first, so that a supervisor
// can clean up, and SIGKILL after endGrace.
func endDescendants() error {
	asked := map[int]bool{}
	for deadline := time.Now().Add(endGrace); ; time.Sleep(endPoll) {
		left, err := descendants()
		if err != nil || len(left) == 0 {
			return err
		}
		late := time.Now().After(deadline)
		if late && time.Now().After(deadline.Add(endGrace)) {
			return fmt.Errorf("processes that do not end: %v", left)
		}
		for _, pid := range left {
			switch {
			case late:
				_ = syscall.Kill(pid, syscall.SIGKILL)
			case !asked[pid]:
				asked[pid] = true
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}
}

// descendants returns the IDs of the descendants of this process that have not ended.
func descendants() ([]int, error) {
	pids, err := procfs.IDs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, pid := range pids {
		if stat, err := procfs.ReadStat(pid); err == nil && !stat.Ended() {
			children[stat.Parent] = append(children[stat.Parent], pid)
		}
	}
	var found []int
	for next := []int{os.Getpid()}; len(next) > 0; {
		below := children[next[0]]
		found, next = append(found, below...), append(next[1:], below...)
	}
	return found, nil
}
