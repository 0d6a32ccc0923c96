// Package cli runs the pulumi CLI, and knows the features of its versions. All code that depends on the version of the CLI uses this
// package.
package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver"
)

// major is the major version that is supported.
const major = 3

// Feature is a feature of the pulumi CLI that the agent uses and that older versions do not have.
type Feature struct {
	// Name is the name of the feature as users know it.
	Name string
	// Since is the first version with the feature.
	Since semver.Version
	// Without describes for users what happens with older versions.
	Without string
	// command and flag are set if the feature is a flag. An operation that needs the flag cannot run without it. Only --raw is left out
	// instead.
	command, flag string
}

var (
	// StateSecretsProvider makes the CLI use the secrets provider in a stack's state if no configuration names one.
	StateSecretsProvider = Feature{Name: "`PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER`", Since: semver.MustParse("3.134.0"),
		Without: "The agent reads the secrets provider from the state, which starts one more process for each operation unless `secretsProvider` is set."}
	// structuredConfiguration has the version below which the Pulumi Kubernetes Operator refuses structured configuration, so that manifests
	// behave as with that operator. The agent writes the configuration file itself, and could do so for every version.
	structuredConfiguration = Feature{Name: "structured configuration", Since: semver.MustParse("3.202.0"),
		Without: "A Workspace with a value that is not a string, or is parsed as JSON, is Stalled with `IncompatibleConfiguration`, " +
			"and its Stack with `PulumiVersionTooLow`."}
	// exitCodes are exit codes that distinguish the causes of a failure.
	exitCodes = Feature{Name: "exit codes for the cause of a failure", Since: semver.MustParse("3.227.0"),
		Without: "The agent takes the reason of a failure from the output of Pulumi."}
	// RawConfig makes the CLI read a value from stdin without changing it.
	RawConfig = Feature{Name: "`pulumi config set --raw`", Since: semver.MustParse("3.247.0"), command: "config set", flag: "--raw",
		Without: "A line break at the end of a secret value is lost if a key management service encrypts the value."}
)

// PlansWithoutInternals is the CLI whose update plans do not bind inputs with names that begin with _. 3.255 binds them, and 3.276 does not; of the
// versions between them, this is not known.
var PlansWithoutInternals = Feature{Name: "update plans without internal inputs", Since: semver.MustParse("3.256.0")}

// features are all features, in the order of their versions.
var features = []Feature{
	flag("refresh", "--preview-only", "3.105.0", "`expectNoRefreshChanges` or `previewOnly`"),
	flag("destroy", "--preview-only", "3.105.0", "`previewOnly`"),
	flag("destroy", "--continue-on-error", "3.113.0", "`continueOnError`"),
	flag("up", "--continue-on-error", "3.114.0", "`continueOnError`"),
	StateSecretsProvider,
	flag("up", "--exclude", "3.158.0", excludeFields),
	flag("preview", "--exclude", "3.158.0", excludeFields),
	flag("refresh", "--exclude", "3.158.0", excludeFields),
	flag("destroy", "--exclude", "3.158.0", excludeFields),
	flag("refresh", "--target-dependents", "3.158.0", "`targetDependents`"),
	flag("destroy", "--run-program", "3.160.0", "`runProgram`"),
	flag("refresh", "--run-program", "3.160.0", "`runProgram`"),
	structuredConfiguration,
	flag("login", "--oidc-token", "3.209.0", "`pulumiCloud.oidc`"),
	exitCodes,
	RawConfig,
}

// excludeFields are the fields that need --exclude.
const excludeFields = "`exclude`"

func flag(command, flag, since, field string) Feature {
	return Feature{Name: "`pulumi " + command + " " + flag + "`", Since: semver.MustParse(since), command: command, flag: flag,
		Without: "An Update that asks for it with " + field + " fails. Its message names the flag and the version."}
}

// Features returns the features of the CLI that the agent uses and that older versions do not have, in the order of their versions.
func Features() []Feature {
	return slices.Clone(features)
}

// In reports whether the version has the feature. A development build of a release counts as the release.
func (f Feature) In(version semver.Version) bool {
	release := semver.Version{Major: version.Major, Minor: version.Minor, Patch: version.Patch}
	return release.GTE(f.Since)
}

// UnknownFlag returns a message about a flag of the command line that the version does not have; empty if it has them all.
func UnknownFlag(version semver.Version, args []string) string {
	for _, f := range features {
		isFlag := func(arg string) bool { name, _, _ := strings.Cut(arg, "="); return name == f.flag }
		if f.flag != "" && !f.In(version) && len(args) > 0 && args[0] == f.command && slices.ContainsFunc(args[1:], isFlag) {
			return fmt.Sprintf("pulumi %s has no flag %s before v%s, and the CLI is v%s: use an image with a newer CLI, or remove what needs the flag", f.command, f.flag, f.Since, version)
		}
	}
	return ""
}

// Problem returns why no operation can run with a CLI of this version, which is given as in the agent's Info; empty if operations can run.
// structured is true if the Workspace has structured configuration.
func Problem(version string, structured bool) string {
	parsed, err := semver.ParseTolerant(version)
	switch {
	case err != nil:
		return fmt.Sprintf("the pulumi CLI has no usable version: %q", version)
	case parsed.Major != major:
		return fmt.Sprintf("pulumi CLI v%s is not supported: only version %d is", parsed, major)
	case structured && !structuredConfiguration.In(parsed):
		return fmt.Sprintf("structured configuration is not supported by pulumi CLI v%s: at least v%s is needed for values that are not strings",
			parsed, structuredConfiguration.Since)
	}
	return ""
}
