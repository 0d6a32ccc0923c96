package cluster_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/cluster"
)

// verdict records what Require says.
type verdict struct{ Skipped, Failed string }

func (v *verdict) Helper()           {}
func (v *verdict) Skip(args ...any)  { v.Skipped = fmt.Sprint(args...) }
func (v *verdict) Fatal(args ...any) { v.Failed = fmt.Sprint(args...) }

// requirer prints the verdict; TestMain makes it the program of another user.
func requirer() {
	v := &verdict{}
	cluster.Require(v)
	fmt.Printf("skipped: %s\nfailed: %s\n", v.Skipped, v.Failed)
}

func TestWhatIsMissingSkipsTestsButFailsThemInContinuousIntegration(t *testing.T) {
	g := NewWithT(t)
	v := &verdict{}
	cluster.Require(v)
	g.Expect(v).To(Equal(&verdict{}), "this machine has all that is needed")

	const lacking = "a cluster needs root: unsupported operation"
	asNobody := func(continuousIntegration string) (stdout, stderr string) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "TEST_REQUIRE=1", "CI_RUN="+continuousIntegration)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var out, err bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &err
		g.Expect(cmd.Run()).To(Succeed(), err.String())
		return out.String(), err.String()
	}
	stdout, stderr := asNobody("")
	g.Expect(stdout).To(Equal("skipped: " + lacking + "\nfailed: \n"))
	g.Expect(stderr).To(Equal("SKIPPED: " + lacking + "\n"))
	stdout, _ = asNobody("1")
	g.Expect(stdout).To(Equal("skipped: \nfailed: " + lacking + "\n"))
}

func TestClusterIsNotStartedWhereItsNodeWouldNotSeeItsFiles(t *testing.T) {
	g := NewWithT(t)
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: filepath.Join("/run", "stack-controller-test")})
	g.Expect(err).To(MatchError(ContainSubstring("/run/stack-controller-test is below /run")))
	g.Expect("/run/stack-controller-test").NotTo(BeADirectory())
}
