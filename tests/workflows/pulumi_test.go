package workflows

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// newestPulumi runs .ci/newest-pulumi with a go command that knows two versions of the CLI, or fails where it is asked for the newest
// one, and that notes what it is called with besides.
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

func TestAPulumiThatHasNotBeenTriedIsToldAndTried(t *testing.T) {
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
