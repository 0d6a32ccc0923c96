package events

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// CommitRevision returns the git commit in the form that Flux uses in revisions, for example "sha1:…"; empty when the commit is not known.
func CommitRevision(commit *autov1alpha1.CommitInfo) string {
	switch {
	case commit == nil || commit.SHA == "":
		return ""
	case len(commit.SHA) == hex.EncodedLen(sha256.Size):
		return "sha256:" + commit.SHA
	}
	return "sha1:" + commit.SHA
}

// OriginRevision returns the git commit that the artifact of the revision was made from; empty when the revision names the commit itself,
// as the revisions of git repositories do.
func OriginRevision(revision string, commit *autov1alpha1.CommitInfo) string {
	if origin := CommitRevision(commit); !strings.HasSuffix(revision, origin) {
		return origin
	}
	return ""
}
