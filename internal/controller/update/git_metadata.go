package update

import (
	"net/url"
	"path"
	"strings"
	"unicode"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// commitMetadata returns what is known of the commit that the operation runs: the commit of the source, and otherwise what its revision
// says; nil when there is neither.
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
	// pulumi reads the commit from these variables when there is no .git directory. The agent omits the message of the commit when the Update
	// has a message of its own.
	values := map[string]string{
		"PULUMI_GIT_HEAD":           commit.SHA,
		"PULUMI_GIT_HEAD_NAME":      commit.Ref,
		"PULUMI_GIT_AUTHOR":         commit.Author,
		"PULUMI_GIT_AUTHOR_EMAIL":   commit.AuthorEmail,
		"PULUMI_GIT_COMMIT_MESSAGE": commit.Message,
	}
	if host, owner, name := repositoryParts(commit.Repository); name != "" {
		values["PULUMI_VCS_REPO_KIND"], values["PULUMI_VCS_REPO_OWNER"], values["PULUMI_VCS_REPO_NAME"] = host, owner, name
		values["PULUMI_VCS_REPO_ROOT"] = source.Dir
	}
	for variable, value := range values {
		if value != "" && !strings.ContainsFunc(value, unicode.IsControl) {
			metadata[variable] = value
		}
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
	// A text with control characters is not a revision of a source that Flux checked, and cannot be the value of a variable either.
	if !isCommit || commit == "" || strings.ContainsFunc(revision, unicode.IsControl) {
		return nil
	}
	metadata := map[string]string{"PULUMI_GIT_HEAD": commit}
	switch {
	case name == "":
	case strings.HasPrefix(name, "refs/"):
		metadata["PULUMI_GIT_HEAD_NAME"] = name
	default:
		metadata["PULUMI_GIT_HEAD_NAME"] = "refs/heads/" + name
	}
	return metadata
}
