// Package workflows checks the workflows of continuous integration, whose rights an attacker would like to have.
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

// workflow has the fields of a file in .github/workflows that the tests read.
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
	Needs          string            `json:"needs"`
	Uses           string            `json:"uses"`
	Steps          []step            `json:"steps"`
}

type step struct {
	Uses string         `json:"uses"`
	Run  string         `json:"run"`
	With map[string]any `json:"with"`
}

// granted lists all permissions that jobs get in addition to reading the repository.
var granted = map[string]map[string]string{
	"release.yaml build":   {"contents": "read", "packages": "write"},
	"release.yaml publish": {"contents": "write", "packages": "write", "id-token": "write", "attestations": "write"},
	"site.yaml publish":    {"contents": "write"},
}

var (
	pinned = regexp.MustCompile(`^\s+(?:- )?uses: (\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/\S+)$`)
	// made and script match what a shell command calls.
	made   = regexp.MustCompile(`\bmake ([a-z-]+)`)
	script = regexp.MustCompile(`\.ci/[a-z-]+`)
	// builds matches what writes to the caches of the user who runs it.
	builds = regexp.MustCompile(`\bmake [a-z-]+|\.ci/[a-z-]+|\bgo (run|build|test)\b`)
)

func inRepository(elements ...string) string {
	return filepath.Join(append([]string{tools.RepositoryRoot()}, elements...)...)
}

// workflows returns the workflows by file name.
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
		// YAML 1.1 reads the key as a boolean.
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
		// These triggers run with the rights of the repository on content that anybody can send.
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

// A cache is written once per key. With the key of another job, what only this job needs would be built in each of its runs.
func TestJobsThatShareACacheHaveAKeyEach(t *testing.T) {
	keys := map[any]string{}
	steps(t, func(name string, s step) {
		if !strings.HasPrefix(s.Uses, "actions/cache@") {
			return
		}
		if other, ok := keys[s.With["key"]]; ok {
			t.Errorf("%s and %s have the same key, %v", name, other, s.With["key"])
		}
		keys[s.With["key"]] = name
	})
	NewWithT(t).Expect(len(keys)).To(BeNumerically(">=", 4))
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

// packageOfNpx matches a package that npx installs, which no lock file pins.
var packageOfNpx = regexp.MustCompile(`--package[= ](\S+)`)

func TestWhatNpxRunsIsPinned(t *testing.T) {
	g := NewWithT(t)
	calls := 0
	steps(t, func(name string, s step) {
		if !strings.Contains(s.Run, "npx ") {
			return
		}
		packages := packageOfNpx.FindAllStringSubmatch(s.Run, -1)
		g.Expect(packages).NotTo(BeEmpty(), name)
		for _, found := range packages {
			g.Expect(found[1]).To(MatchRegexp(`^\S+@\d+\.\d+\.\d+$`), name)
		}
		for _, path := range regexp.MustCompile(`\bdocs/\S+`).FindAllString(s.Run, -1) {
			calls++
			g.Expect(inRepository(path)).To(BeARegularFile(), name)
		}
	})
	g.Expect(calls).To(Equal(1))
}

// What root has written to the caches and to bin, another user cannot write to.
func TestAfterRootNoOtherUserBuilds(t *testing.T) {
	for file, w := range workflows(t) {
		for name, j := range w.Jobs {
			byRoot := false
			for _, s := range j.Steps {
				for line := range strings.Lines(s.Run) {
					if !builds.MatchString(line) {
						continue
					}
					isRoot := strings.Contains(line, `sudo env "PATH=$PATH" "HOME=$HOME" `)
					if byRoot && !isRoot {
						t.Errorf("%s %s: %q is not run as root, as a step before it is", file, name, strings.TrimSpace(line))
					}
					byRoot = byRoot || isRoot
				}
			}
		}
	}
}

// Each release of Debian has another version, and one package that is not there keeps all others from being installed.
func TestNoPackageThatIsInstalledHasAVersionInItsName(t *testing.T) {
	g := NewWithT(t)
	content, err := os.ReadFile(inRepository(".ci", "run"))
	g.Expect(err).NotTo(HaveOccurred())
	packages := regexp.MustCompile(`missing\+=\(([^)]+)\)`).FindAllSubmatch(content, -1)
	g.Expect(len(packages)).To(BeNumerically(">=", 9))
	for _, named := range packages {
		g.Expect(string(named[1])).NotTo(MatchRegexp(`-\d+\b`))
	}
}

// An image that someone else moves would decide whether a security release can be made.
func TestNoReleaseWaitsForTheNewestImageOfOthers(t *testing.T) {
	g := NewWithT(t)
	all := workflows(t)
	gates := []string{"release.yaml"}
	for _, j := range all["release.yaml"].Jobs {
		if j.Uses != "" {
			gates = append(gates, filepath.Base(j.Uses))
		}
	}
	g.Expect(gates).To(ContainElement("long.yaml"))
	for _, gate := range gates {
		g.Expect(all[gate].text).NotTo(MatchRegexp(`:latest\b|--pull\b`), gate)
	}
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

// fuzzTargets returns the fuzz targets of the repository, which it finds in the syntax trees.
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

// newestPulumi runs .ci/newest-pulumi with a stub of the go command. The stub returns the given versions for the tried and the newest CLI,
// fails if newest is empty and the newest one is requested, and records all other calls.
func newestPulumi(t *testing.T, tried, newest string) (output, calls string, err error) {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	script := `#!/bin/sh
case "$*" in
"list "*@latest) [ -n "` + newest + `" ] && echo "` + newest + `";;
"list "*) echo "` + tried + `";;
"mod init "*) ;;
*) echo "$* [${TEST_ASSET_PULUMI##*/}]" >>"` + dir + `/calls";;
esac
`
	g.Expect(os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "calls"), nil, 0o600)).To(Succeed())
	cmd := exec.CommandContext(t.Context(), inRepository(".ci", "newest-pulumi"))
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TEST_ASSET_PULUMI=")
	printed, err := cmd.CombinedOutput()
	noted, readErr := os.ReadFile(filepath.Join(dir, "calls"))
	g.Expect(readErr).NotTo(HaveOccurred())
	return string(printed), string(noted), err
}

func TestAPulumiThatHasNotBeenTriedIsReportedAndTried(t *testing.T) {
	g := NewWithT(t)
	output, calls, err := newestPulumi(t, "v3.250.0", "v3.260.1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(output).To(ContainSubstring("::warning title=pulumi CLI::pulumi v3.260.1 has not been tried, tests/tools/pulumi has v3.250.0"))
	g.Expect(calls).To(And(ContainSubstring("-tool github.com/pulumi/pulumi/pkg/v3/cmd/pulumi@v3.260.1"), ContainSubstring("version.Version=v3.260.1"),
		ContainSubstring("test ./internal/agent/... [pulumi]")))
}

func TestAPulumiThatIsTriedAlreadyIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	output, calls, err := newestPulumi(t, "v3.250.0", "v3.250.0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(output).NotTo(ContainSubstring("::warning"))
	g.Expect(calls).To(BeEmpty())
}

func TestThatNobodyKnowsTheNewestPulumiIsAFailure(t *testing.T) {
	_, _, err := newestPulumi(t, "v3.250.0", "")
	NewWithT(t).Expect(err).To(HaveOccurred())
}

const (
	image    = "registry.example.com/flux/stack-controller"
	identity = "--certificate-identity=https://github.com/stack-controller/stack-controller/.github/workflows/release.yaml@refs/tags/v1.2.3" +
		" --certificate-oidc-issuer=https://token.actions.githubusercontent.com"
)

// digest returns a digest made of one repeated digit.
func digest(n int) string { return "sha256:" + strings.Repeat(fmt.Sprint(n), 64) }

// sign runs .ci/sign on a release of one image for two platforms and a chart. Signing needs an identity provider on the Internet, so a stub
// replaces cosign. The stub records its calls, and fails for the command that the test names. Like a registry, it fails if it has no login,
// except to verify what is public, and, unlike a registry, if it has a login for that. sign returns the calls and the outputs of the step.
func sign(t *testing.T, failing string) (calls, outputs []string, err error) {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	release := filepath.Join(dir, "release")
	g.Expect(os.Mkdir(release, 0o700)).To(Succeed())
	write := func(path, content string) {
		g.Expect(os.WriteFile(filepath.Join(dir, path), []byte(content), 0o700)).To(Succeed())
	}
	write("cosign", `#!/bin/sh
echo "$@" >>`+dir+`/calls
case "$1" in
verify | verify-attestation) [ -d "$DOCKER_CONFIG" ] && [ ! -e "$DOCKER_CONFIG/config.json" ] || exit 1;;
*) [ -e "$DOCKER_CONFIG/config.json" ] || exit 1;;
esac
[ "$1" != '`+failing+`' ]
`)
	write("config.json", "{}")
	write("calls", "")
	write("outputs", "")
	write("release/checksums.txt", "")
	write("release/images.txt", image+":v1.2.3@"+digest(1)+"\nregistry.example.com/flux/charts/stack-controller:1.2.3@"+digest(4)+"\n")
	for n, platform := range []string{"linux-amd64", "linux-arm64"} {
		write("release/stack-controller."+platform+".spdx.json", `{"packages": [{"name": "`+digest(n+2)+`"}, {"name": "example.com/module"}]}`)
	}
	cmd := exec.CommandContext(t.Context(), inRepository(".ci", "sign"), release)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "IMAGE_REGISTRY=registry.example.com/flux", "GITHUB_OUTPUT="+filepath.Join(dir, "outputs"),
		"DOCKER_CONFIG="+dir, "GITHUB_SERVER_URL=https://github.com", "GITHUB_WORKFLOW_REF=stack-controller/stack-controller/.github/workflows/release.yaml@refs/tags/v1.2.3")
	_, err = cmd.Output()
	lines := func(name string) []string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		text := strings.ReplaceAll(string(content), release+"/", "")
		return strings.Split(strings.TrimSpace(text), "\n")
	}
	return lines("calls"), lines("outputs"), err
}

func TestAReleaseIsSignedByDigestAndVerifiedAsUsersDoWithoutALogin(t *testing.T) {
	g := NewWithT(t)
	calls, outputs, err := sign(t, "")
	g.Expect(err).NotTo(HaveOccurred())
	var want []string
	signed := func(reference string) {
		want = append(want, "sign --yes "+reference, "verify "+identity+" "+reference)
	}
	signed(image + "@" + digest(1))
	for n, platform := range []string{"linux-amd64", "linux-arm64"} {
		described := image + "@" + digest(n+2)
		want = append(want, "attest --yes --type=spdxjson --predicate=stack-controller."+platform+".spdx.json "+described,
			"verify-attestation --type=spdxjson "+identity+" "+described)
	}
	signed("registry.example.com/flux/charts/stack-controller@" + digest(4))
	want = append(want, "sign-blob --yes --bundle=checksums.txt.sigstore.json checksums.txt",
		"verify-blob "+identity+" --bundle=checksums.txt.sigstore.json checksums.txt")
	g.Expect(calls).To(Equal(want))
	g.Expect(outputs).To(Equal([]string{"stack-controller=" + digest(1), "charts-stack-controller=" + digest(4)}))
}

func TestAReleaseThatCannotBeVerifiedIsNotPublished(t *testing.T) {
	for _, failing := range []string{"sign", "verify", "attest", "verify-attestation", "sign-blob", "verify-blob"} {
		t.Run(failing, func(t *testing.T) {
			calls, _, err := sign(t, failing)
			g := NewWithT(t)
			g.Expect(err).To(HaveOccurred())
			if strings.HasPrefix(failing, "verify") && failing != "verify-blob" {
				// It says of everything what cannot be verified, and signs no checksums.
				last := calls[len(calls)-1]
				g.Expect(last).To(And(HavePrefix("verify "), HaveSuffix(digest(4))))
				return
			}
			g.Expect(calls[len(calls)-1]).To(HavePrefix(failing + " "))
		})
	}
}

func TestPagesAndFilesInstallTheVersionThatIsReleased(t *testing.T) {
	g := NewWithT(t)
	file, err := os.ReadFile(inRepository("config", "pulumi", "Pulumi.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	named := regexp.MustCompile(`/releases/download/(v[0-9.]+)/`).FindSubmatch(file)
	g.Expect(named).To(HaveLen(2))
	compare := func(version string) (string, error) {
		output, err := exec.CommandContext(t.Context(), inRepository(".ci", "versions"), version).CombinedOutput()
		return string(output), err
	}
	output, err := compare(string(named[1]))
	g.Expect(err).NotTo(HaveOccurred(), output)
	output, err = compare("v99.0.0")
	g.Expect(err).To(HaveOccurred())
	for _, want := range []string{"config/pulumi/Pulumi.yaml:", "config/flux/helm_release.yaml:", "docs/guides/installation.md:", "docs/cli.md:"} {
		g.Expect(output).To(ContainSubstring(want))
	}
	output, err = compare("v99.0.0-rc.1")
	g.Expect(err).NotTo(HaveOccurred(), output)

	jobs := workflows(t)["release.yaml"].Jobs
	g.Expect(jobs["test"].Needs).To(Equal("versions"))
	g.Expect(jobs["versions"].Steps[1].Run).To(Equal(`.ci/versions "$GITHUB_REF_NAME"`))
}

func TestAReleaseGetsItsNamesAfterItIsSigned(t *testing.T) {
	g := NewWithT(t)
	var order []string
	steps(t, func(name string, s step) {
		switch {
		case name == "release.yaml build" && strings.HasPrefix(s.Run, "make release "):
			g.Expect(s.Run).To(HaveSuffix(" CANDIDATE=1"))
		case name == "release.yaml publish" && script.MatchString(s.Run):
			order = append(order, script.FindString(s.Run))
		case name == "release.yaml publish" && strings.HasPrefix(s.Uses, "actions/attest@"):
			order = append(order, "attest")
		case name == "release.yaml publish" && strings.Contains(s.Run, "gh release create"):
			order = append(order, "create")
		}
	})
	g.Expect(order).To(Equal([]string{".ci/sign", "attest", "attest", "attest", ".ci/name", "create"}))
}

func TestEverythingThatWasPushedGetsItsNameByItsDigest(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	write := func(name, content string) {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700)).To(Succeed())
	}
	write("go", "#!/bin/sh\necho \"$@\"\n")
	chart := "127.0.0.1:5000/flux/charts/stack-controller"
	write("images.txt", image+":v1.2.3@"+digest(1)+"\n"+chart+":1.2.3@"+digest(4)+"\n")
	cmd := exec.CommandContext(t.Context(), inRepository(".ci", "name"), dir)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	output, err := cmd.Output()
	g.Expect(err).NotTo(HaveOccurred())
	const crane = "-C tests/tools/crane tool crane tag "
	g.Expect(string(output)).To(Equal(crane + image + "@" + digest(1) + " v1.2.3\n" + crane + chart + "@" + digest(4) + " 1.2.3\n"))
}
