package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// runs are test packages with the expected results of a run.
var runs = []struct {
	name, test string
	says       string // part of the error; empty if the run is green
	flaky      string
}{
	{name: "passes", test: `func TestPasses(t *testing.T) {}`},
	{name: "fails", test: `func TestFails(t *testing.T) { t.Error("wrong") }`, says: "the group fails failed"},
	{name: "flaky", test: `
		func TestFailsOnce(t *testing.T) {
			t.Run("sub", func(t *testing.T) {
				if os.Mkdir("once", 0o700) == nil {
					t.Error("wrong, this time")
				}
			})
		}`, flaky: "flaky TestFailsOnce/sub failed 1 of 2 times"},
	{name: "races", test: `
		func TestRaces(t *testing.T) {
			if os.Mkdir("once", 0o700) == nil {
				n, done := 0, make(chan bool)
				go func() { n++; close(done) }()
				n++
				<-done
			}
		}`, says: "the group races failed"},
	{name: "panics", test: `
		func TestPanics(t *testing.T) {
			if os.Mkdir("once", 0o700) == nil {
				panic("wrong")
			}
		}`, says: "the group panics failed"},
	{name: "main", test: `
		func TestMain(m *testing.M) {
			if m.Run(); os.Mkdir("once", 0o700) == nil {
				os.Stdout.WriteString("` + suite.Problem + `a secret in a log\n")
				os.Exit(1)
			}
		}
		func TestFailsOnce(t *testing.T) {
			if os.Mkdir("another", 0o700) == nil {
				t.Error("wrong, this time")
			}
		}`, says: "a secret in a log", flaky: "TestFailsOnce failed 1 of 2 times"},
	{name: "outside", test: `
		func TestMain(m *testing.M) {
			if m.Run(); os.Mkdir("once", 0o700) == nil {
				os.Exit(1)
			}
		}
		func TestPasses(t *testing.T) {}`, says: "failed outside of its tests"},
	{name: "killed", test: `
		func TestKillsTheGoCommand(t *testing.T) {
			if os.Mkdir("once", 0o700) == nil {
				if parent, err := os.FindProcess(os.Getppid()); err == nil {
					_ = parent.Kill()
				}
			}
		}`, says: "the group killed failed"},
	{name: "compiles-not", test: `func TestCompilesNot(t *testing.T) { x }`, says: "the group compiles-not failed"},
}

func TestOnlyWhatFailsOnceIsExcused(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the race detector needs a C compiler")
	}
	gotestsum, err := tools.Path(t.Context(), "gotestsum", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, test := range runs {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			dir := t.TempDir()
			source := "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Mkdir\n" + test.test + "\n"
			g.Expect(os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(source), 0o600)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+module+test.name+"\n"), 0o600)).To(Succeed())
			tested := group{name: test.name, dir: dir, packages: []string{"./..."}, flags: []string{"-vet=off"}}
			if test.name == "races" {
				tested.cgo, tested.flags = true, append(tested.flags, "-race")
			}
			output := &bytes.Buffer{}
			// The output does not go to this process: gotestsum would take its lines for a panic or a data race here, and would not run
			// failed tests again.
			whole := newReport(io.MultiWriter(output, t.Output()))
			g.Expect(whole.run(t.Context(), &tested, gotestsum, dir)).To(Succeed())
			flaky := filepath.Join(dir, "flaky.txt")
			err := whole.print(flaky)
			if test.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
			}
			named, err := os.ReadFile(flaky)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(named)).To(ContainSubstring(test.flaky))
			g.Expect(strings.Contains(string(named), "flaky: ")).To(Equal(test.flaky != ""), "%s", named)
			g.Expect(output.String()).To(HaveSuffix(string(named)))
		})
	}
}
