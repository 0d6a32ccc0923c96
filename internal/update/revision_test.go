package update

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCommitMetadata(t *testing.T) {
	for revision, want := range map[string]map[string]string{
		"":                                nil,
		"main@sha1:5a1f":                  {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/heads/main"},
		"feature/a@b@sha1:5a1f":           {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/heads/feature/a@b"},
		"refs/pull/7/head@sha1:5a1f":      {"PULUMI_GIT_HEAD": "5a1f", "PULUMI_GIT_HEAD_NAME": "refs/pull/7/head"},
		"sha1:5a1f":                       {"PULUMI_GIT_HEAD": "5a1f"},
		"latest@sha256:9f86d081884c7d659": nil, // an OCI artifact
		"sha256:9f86d081884c7d659":        nil, // a Bucket
		"main@sha1:":                      nil,
		"1.2.3":                           nil,
	} {
		t.Run(revision, func(t *testing.T) {
			NewWithT(t).Expect(commitMetadata(revision)).To(Equal(want))
		})
	}
}
