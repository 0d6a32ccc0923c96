package cli

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/blang/semver"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestVersionsHaveTheFlagsThatTheTableSays(t *testing.T) {
	suite.Long(t, "runs the oldest CLI")
	for _, name := range []string{"pulumi-oldest", "pulumi"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path, err := tools.Path(t.Context(), name, func(progress string) { t.Log(progress) })
			g.Expect(err).NotTo(HaveOccurred())
			run := func(args ...string) string {
				cmd := exec.CommandContext(t.Context(), path, args...)
				cmd.Env = append(cmd.Environ(), "PULUMI_SKIP_UPDATE_CHECK=true", "PULUMI_HOME="+t.TempDir())
				output, err := cmd.Output()
				g.Expect(err).NotTo(HaveOccurred())
				return strings.TrimSpace(string(output))
			}
			version, err := semver.ParseTolerant(run("version"))
			g.Expect(err).NotTo(HaveOccurred())
			t.Log(version)
			help := map[string]string{}
			for _, f := range Features() {
				if f.flag == "" {
					continue
				}
				if help[f.command] == "" {
					help[f.command] = run(append(strings.Fields(f.command), "--help")...)
				}
				g.Expect(slices.Contains(strings.Fields(help[f.command]), f.flag)).To(Equal(f.In(version)), f.Name)
			}
		})
	}
}

func TestTableIsInTheOrderOfTheVersions(t *testing.T) {
	NewWithT(t).Expect(slices.IsSortedFunc(Features(), func(a, b Feature) int { return a.Since.Compare(b.Since) })).To(BeTrue())
}

func TestFlagThatTheVersionDoesNotHaveIsNamed(t *testing.T) {
	for _, test := range []struct {
		version, args string
		problem       string
	}{
		{"3.100.0", "up --yes --stack dev --refresh", ""},
		{"3.113.0", "up --yes --continue-on-error", "pulumi up has no flag --continue-on-error before v3.114.0, and the CLI is v3.113.0"},
		{"3.113.0", "destroy --yes --continue-on-error", ""},
		{"3.159.9", "refresh --yes --run-program=true", "pulumi refresh has no flag --run-program before v3.160.0"},
		{"3.160.0-alpha.1", "refresh --yes --run-program=true", ""},
		{"3.100.0", "up --message=--continue-on-error", ""},
		{"3.100.0", "", ""},
	} {
		t.Run(test.version+" "+test.args, func(t *testing.T) {
			problem := UnknownFlag(semver.MustParse(test.version), strings.Fields(test.args))
			if test.problem == "" {
				NewWithT(t).Expect(problem).To(BeEmpty())
			} else {
				NewWithT(t).Expect(problem).To(HavePrefix(test.problem))
			}
		})
	}
}

func TestVersionIsRefusedOnlyForWhatItCannotDo(t *testing.T) {
	for _, test := range []struct {
		version    string
		structured bool
		problem    string
	}{
		{"v3.2.0", false, ""},
		{"v3.205.0", false, ""},
		{"v3.259.0+dirty", false, ""},
		{"v3.202.0-alpha.1", true, ""},
		{"v3.201.9", true, "at least v3.202.0"},
		{"v3.201.9", false, ""},
		{"v4.0.0", false, "pulumi CLI v4.0.0 is not supported"},
		{"v2.25.2", false, "pulumi CLI v2.25.2 is not supported"},
		{"", false, "no usable version"},
		{"unknown", true, "no usable version"},
	} {
		problem := Problem(test.version, test.structured)
		if test.problem == "" {
			NewWithT(t).Expect(problem).To(BeEmpty(), test.version)
		} else {
			NewWithT(t).Expect(problem).To(ContainSubstring(test.problem), test.version)
		}
	}
}
