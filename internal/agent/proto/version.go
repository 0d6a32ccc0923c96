package proto

import (
	"fmt"

	"github.com/blang/semver"
)

// minimumPulumi is the first pulumi CLI that streams its event log, without which nobody learns how an operation went.
// Structured configuration, which is from 3.202.0 on, is part of it.
var minimumPulumi = semver.MustParse("3.206.0")

// PulumiProblem says why no operation can run with a pulumi CLI of the version, which is as in Info; empty when they can.
func PulumiProblem(version string) string {
	parsed, err := semver.ParseTolerant(version)
	if err != nil {
		return fmt.Sprintf("the pulumi CLI has no usable version: %q", version)
	}
	// A development build of a release counts as the release.
	release := semver.Version{Major: parsed.Major, Minor: parsed.Minor, Patch: parsed.Patch}
	if release.LT(minimumPulumi) || release.Major > minimumPulumi.Major {
		return fmt.Sprintf("pulumi CLI v%s is not supported: at least v%s and below v%d is needed", parsed, minimumPulumi, minimumPulumi.Major+1)
	}
	return ""
}
