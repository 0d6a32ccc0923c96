package source

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// originSourceAnnotation is the artifact metadata key under which an OCI artifact tells the repository that it was made from.
const originSourceAnnotation = "org.opencontainers.image.source"

// commitRevision matches a revision that names a commit, as Flux writes it ("main@sha1:…", "sha1:…") and wrote it ("main/…").
var commitRevision = regexp.MustCompile(`^(?:(.+)[@/])?(?:sha1:|sha256:)?([0-9a-f]{40}|[0-9a-f]{64})$`)

// fluxCommitInfo describes the commit that the artifact of a Flux source comes from: the one of a GitRepository, or the one that
// the metadata of another artifact names. It returns nil when nothing is known of it.
func fluxCommitInfo(object *unstructured.Unstructured, revision string, metadata map[string]string) *autov1alpha1.CommitInfo {
	info := &autov1alpha1.CommitInfo{}
	if object.GetKind() == sourcev1.GitRepositoryKind && object.GroupVersionKind().Group == sourcev1.GroupVersion.Group {
		address, _, _ := unstructured.NestedString(object.Object, "spec", "url")
		info.Repository = shownRepository(address)
		info.Ref, info.SHA = splitRevision(revision)
		info.Ref = fullRef(info.Ref, gitRepositoryRef(object))
	} else {
		info.Repository = shownRepository(metadata[originSourceAnnotation])
		info.Ref, info.SHA = splitRevision(metadata[originRevisionAnnotation])
		// Whoever pushed the artifact does not tell a branch from a tag.
		info.Ref = fullRef(info.Ref, nil)
	}
	if info.SHA == "" {
		return nil
	}
	return info
}

// shownRepository is the URL without credentials, empty for what is no URL of a repository.
func shownRepository(address string) string {
	if parseGitURL(address) == nil {
		return ""
	}
	return gitRepository{url: address}.shown()
}

// splitRevision returns the name and the hash of a revision that names a commit, and nothing for others.
func splitRevision(revision string) (name, sha string) {
	parts := commitRevision.FindStringSubmatch(revision)
	if parts == nil {
		return "", ""
	}
	return parts[1], parts[2]
}

// gitRepositoryRef returns spec.ref of a GitRepository; without one it follows the branch master.
func gitRepositoryRef(object *unstructured.Unstructured) map[string]any {
	ref, found, err := unstructured.NestedMap(object.Object, "spec", "ref")
	if err != nil || !found {
		return map[string]any{"branch": "master"}
	}
	return ref
}

// fullRef returns the full name of a ref, empty when nothing tells whether it is a branch or a tag. Flux looks at name, semver,
// tag and branch in this order.
func fullRef(name string, ref map[string]any) string {
	switch {
	case name == "" || strings.HasPrefix(name, "refs/"):
		return name
	case isSet(ref, "semver") || isSet(ref, "tag"):
		return "refs/tags/" + name
	case isSet(ref, "branch"):
		return "refs/heads/" + name
	}
	return ""
}

func isSet(ref map[string]any, field string) bool {
	value, _ := ref[field].(string)
	return value != ""
}
