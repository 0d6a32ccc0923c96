package update

import "strings"

// Variables from which pulumi takes the commit when there is no .git directory.
const (
	gitHeadVariable     = "PULUMI_GIT_HEAD"
	gitHeadNameVariable = "PULUMI_GIT_HEAD_NAME"
)

// commitMetadata returns what a Flux revision tells about a commit: "main@sha1:<hash>", "refs/tags/v1@sha1:<hash>" or
// "sha1:<hash>". Revisions of other sources (an OCI artifact has a sha256) name no commit, so nil is returned. A short name
// may be that of a branch or of a tag; it counts as a branch, which is the usual case.
func commitMetadata(revision string) map[string]string {
	name, hash := "", revision
	// A reference may contain "@", the hash does not.
	if at := strings.LastIndex(revision, "@"); at >= 0 {
		name, hash = revision[:at], revision[at+1:]
	}
	commit, isCommit := strings.CutPrefix(hash, "sha1:")
	if !isCommit || commit == "" {
		return nil
	}
	metadata := map[string]string{gitHeadVariable: commit}
	switch {
	case name == "":
	case strings.HasPrefix(name, "refs/"):
		metadata[gitHeadNameVariable] = name
	default:
		metadata[gitHeadNameVariable] = "refs/heads/" + name
	}
	return metadata
}
