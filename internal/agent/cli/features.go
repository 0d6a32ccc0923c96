// Package cli knows what the versions of the pulumi CLI have. All that depends on a version asks here.
package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver"
)

// major is the major version that is supported.
const major = 3

// Feature is something that is used of the pulumi CLI and that its older versions do not have.
type Feature struct {
	// Name is what it is, as users know it.
	Name string
	// Since is the first version that has it.
	Since semver.Version
	// Without is what older versions mean for a user.
	Without string
	// command and flag are set for a flag. An operation that asks for one cannot run without it; only --raw is left out.
	command, flag string
}

var (
	// StateSecretsProvider lets the CLI take the secrets provider of a stack from its state when no configuration names one.
	StateSecretsProvider = Feature{Name: "`PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER`", Since: semver.MustParse("3.134.0"),
		Without: "The agent reads the secrets provider from the state, once for each stack, which starts one more process."}
	// structuredConfiguration is what the Pulumi Kubernetes Operator refuses below this version, so that manifests behave as there. The
	// agent writes the file itself, and could do so for every version.
	structuredConfiguration = Feature{Name: "structured configuration", Since: semver.MustParse("3.202.0"),
		Without: "A Workspace with a value that is not a string, or is parsed as JSON, is Stalled with `IncompatibleConfiguration`, " +
			"and its Stack with `PulumiVersionTooLow`."}
	// exitCodes tell why the CLI failed.
	exitCodes = Feature{Name: "exit codes for the cause of a failure", Since: semver.MustParse("3.227.0"),
		Without: "The agent takes the reason of a failure from the output of Pulumi."}
	// RawConfig reads a value from stdin as it is.
	RawConfig = Feature{Name: "`pulumi config set --raw`", Since: semver.MustParse("3.247.0"), command: "config set", flag: "--raw",
		Without: "A line break at the end of a secret value is lost if a key management service encrypts the value."}
)

// features is what there is, in the order of the versions.
var features = []Feature{
	flag("refresh", "--preview-only", "3.105.0", "`expectNoRefreshChanges` or `previewOnly`"),
	flag("destroy", "--preview-only", "3.105.0", "`previewOnly`"),
	flag("destroy", "--continue-on-error", "3.113.0", "`continueOnError`"),
	flag("up", "--continue-on-error", "3.114.0", "`continueOnError`"),
	StateSecretsProvider,
	flag("refresh", "--target-dependents", "3.158.0", "`targetDependents`"),
	flag("destroy", "--run-program", "3.160.0", "`runProgram`"),
	flag("refresh", "--run-program", "3.160.0", "`runProgram`"),
	structuredConfiguration,
	exitCodes,
	RawConfig,
}

func flag(command, flag, since, field string) Feature {
	return Feature{Name: "`pulumi " + command + " " + flag + "`", Since: semver.MustParse(since), command: command, flag: flag,
		Without: "An Update that asks for it with " + field + " fails. Its message names the flag and the version."}
}

// Features returns what is used of the CLI and that its older versions do not have, in the order of the versions.
func Features() []Feature {
	return slices.Clone(features)
}

// In reports whether the version has the feature. A development build of a release counts as the release.
func (f Feature) In(version semver.Version) bool {
	release := semver.Version{Major: version.Major, Minor: version.Minor, Patch: version.Patch}
	return release.GTE(f.Since)
}

// UnknownFlag says which flag of the command line the version does not have; empty when it has them all.
func UnknownFlag(version semver.Version, args []string) string {
	for _, f := range features {
		isFlag := func(arg string) bool { name, _, _ := strings.Cut(arg, "="); return name == f.flag }
		if f.flag != "" && !f.In(version) && len(args) > 0 && args[0] == f.command && slices.ContainsFunc(args[1:], isFlag) {
			return fmt.Sprintf("pulumi %s has no flag %s before v%s, and the CLI is v%s: use an image with a newer CLI, or remove what needs the flag", f.command, f.flag, f.Since, version)
		}
	}
	return ""
}

// Problem says why no operation can run with a CLI of the version, which is as in the agent's Info, in a Workspace that has structured
// configuration or not; empty when they can.
func Problem(version string, structured bool) string {
	parsed, err := semver.ParseTolerant(version)
	switch {
	case err != nil:
		return fmt.Sprintf("the pulumi CLI has no usable version: %q", version)
	case parsed.Major != major:
		return fmt.Sprintf("pulumi CLI v%s is not supported: version %d is", parsed, major)
	case structured && !structuredConfiguration.In(parsed):
		return fmt.Sprintf("structured configuration is not supported by pulumi CLI v%s: at least v%s is needed for values that are not strings",
			parsed, structuredConfiguration.Since)
	}
	return ""
}
