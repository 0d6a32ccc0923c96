package update

import (
	"net/url"
	"path"
	"strings"
	"unicode"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// Variables from which pulumi takes the commit when there is no .git directory.
const (
	gitHeadVariable        = "PULUMI_GIT_HEAD"
	gitHeadNameVariable    = "PULUMI_GIT_HEAD_NAME"
	gitAuthorVariable      = "PULUMI_GIT_AUTHOR"
	gitAuthorEmailVariable = "PULUMI_GIT_AUTHOR_EMAIL"
	// gitMessageVariable would replace the message of the Update. The agent leaves it out when there is one.
	gitMessageVariable = "PULUMI_GIT_COMMIT_MESSAGE"
	vcsOwnerVariable   = "PULUMI_VCS_REPO_OWNER"
	vcsNameVariable    = "PULUMI_VCS_REPO_NAME"
	vcsKindVariable    = "PULUMI_VCS_REPO_KIND"
	vcsRootVariable    = "PULUMI_VCS_REPO_ROOT"
)

// commitMetadata returns what is known of the commit that the operation runs: what the source tells of it, else what its
// revision does. Nil when there is none.
func commitMetadata(source *autov1alpha1.UpdateSource) map[string]string {
	if source == nil {
		return nil
	}
	metadata := revisionMetadata(source.Revision)
	commit := source.Commit
	if commit == nil {
		return metadata
	}
	if metadata == nil {
		metadata = map[string]string{}
	}
	set := func(variable, value string) {
		if value != "" && !strings.ContainsFunc(value, unicode.IsControl) {
			metadata[variable] = value
		}
	}
	set(gitHeadVariable, commit.SHA)
	set(gitHeadNameVariable, commit.Ref)
	set(gitAuthorVariable, commit.Author)
	set(gitAuthorEmailVariable, commit.AuthorEmail)
	set(gitMessageVariable, commit.Message)
	if host, owner, name := repositoryParts(commit.Repository); name != "" {
		set(vcsKindVariable, host)
		set(vcsOwnerVariable, owner)
		set(vcsNameVariable, name)
		set(vcsRootVariable, source.Dir)
	}
	return metadata
}

// repositoryParts takes the URL of a repository apart as pulumi does: "github.com", "owner" and "name". It understands the short form
// user@host:path too. The parts are empty for anything else.
func repositoryParts(repository string) (host, owner, name string) {
	if !strings.Contains(repository, "://") {
		repository = "ssh://" + strings.Replace(repository, ":", "/", 1)
	}
	parsed, err := url.Parse(repository)
	if err != nil || parsed.Host == "" {
		return "", "", ""
	}
	owner, name = path.Split(strings.TrimSuffix(strings.Trim(parsed.Path, "/"), ".git"))
	return parsed.Hostname(), strings.Trim(owner, "/"), name
}

// revisionMetadata returns what a Flux revision tells about a commit: "main@sha1:<hash>", "refs/tags/v1@sha1:<hash>" or
// "sha1:<hash>". Revisions of other sources (an OCI artifact has a sha256) name no commit, so nil is returned. A short name
// may be that of a branch or of a tag; it counts as a branch, which is the usual case.
func revisionMetadata(revision string) map[string]string {
	name, hash := "", revision
	// A reference may contain "@", the hash does not.
	if at := strings.LastIndex(revision, "@"); at >= 0 {
		name, hash = revision[:at], revision[at+1:]
	}
	commit, isCommit := strings.CutPrefix(hash, "sha1:")
	// What has control characters is no revision of a source that Flux checked, and no value of a variable either.
	if !isCommit || commit == "" || strings.ContainsFunc(revision, unicode.IsControl) {
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
