package source

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
)

// These keys in the metadata of an OCI artifact name the commit and the repository that it was made from.
const (
	originRevisionAnnotation = "org.opencontainers.image.revision"
	originSourceAnnotation   = "org.opencontainers.image.source"
)

// What source-controller says in the condition SourceVerified, by kind. The groups are the hash of a commit, or the digest of an OCI
// artifact. The patterns are anchored, because a message can also contain the name that somebody gave to a tag, and what a registry said.
var (
	refusals = map[string]*regexp.Regexp{
		sourcev1.GitRepositoryKind: regexp.MustCompile(`^signature verification of commit '([0-9a-f]+)' failed`),
		sourcev1.OCIRepositoryKind: regexp.MustCompile(
			`^failed to verify the signature using provider '[a-z ]+': no matching signatures were found for '[^']+@(sha256:[0-9a-f]{64})'$`),
	}
	successes = map[string]*regexp.Regexp{
		// A tag may be named before the commit.
		sourcev1.GitRepositoryKind: regexp.MustCompile(`(?s)^verified signature of\n.*\t- commit '([0-9a-f]+)' with key `),
		sourcev1.OCIRepositoryKind: regexp.MustCompile(`^verified signature of revision (?:.+@)?(sha256:[0-9a-f]{64})$`),
	}
	contentDigest = regexp.MustCompile(`^(?:.+@)?(sha256:[0-9a-f]{64})$`)
)

// commitRevision matches a revision that names a commit, as Flux writes it ("main@sha1:…", "sha1:…") and as earlier versions wrote it
// ("main/…").
var commitRevision = regexp.MustCompile(`^(?:(.+)[@/])?(?:sha1:|sha256:)?([0-9a-f]{40}|[0-9a-f]{64})$`)

// artifactOf reads status.artifact, which has one shape in every Flux source kind.
// It returns nil when the source has no artifact, and an error for the user when the artifact cannot be used.
func artifactOf(object *unstructured.Unstructured) (*Artifact, error) {
	content, found, err := unstructured.NestedMap(object.Object, "status", "artifact")
	var published meta.Artifact
	if err == nil && found {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &published)
	}
	if err != nil {
		return nil, fmt.Errorf("read status.artifact of %s: %w", describe(object), err)
	}
	switch {
	case published.URL == "":
		return nil, nil
	case published.Digest == "":
		return nil, fmt.Errorf("%s publishes an artifact without a digest, as versions of Flux before 0.41 did: let a newer one publish it again", describe(object))
	}
	key := keyOfObject(object)
	return &Artifact{
		URL:       published.URL,
		Source:    key.String(),
		Namespace: key.Namespace,
		Digest:    published.Digest,
		Revision:  published.Revision,
		Size:      published.Size,
		Origin: autov1alpha1.UpdateSource{
			SourceRef: &meta.NamespacedObjectKindReference{
				APIVersion: object.GetAPIVersion(), Kind: key.Kind, Name: key.Name, Namespace: key.Namespace,
			},
			Commit: fluxCommitInfo(object, published.Revision, published.Metadata),
		},
		Verification: verificationOf(object),
		Published:    published.LastUpdateTime.Time,
		Repository:   repositoryOfSource(object),
	}, nil
}

// repositoryOfSource returns spec.url of a GitRepository or an OCIRepository, without a user, a password or a query.
func repositoryOfSource(object *unstructured.Unstructured) string {
	if kind := object.GetKind(); kind != sourcev1.GitRepositoryKind && kind != sourcev1.OCIRepositoryKind {
		return ""
	}
	text, _, _ := unstructured.NestedString(object.Object, "spec", "url")
	parsed, err := url.Parse(text)
	if err != nil {
		return ""
	}
	parsed.User, parsed.RawQuery, parsed.Fragment = nil, "", ""
	return strings.TrimSuffix(strings.TrimSuffix(parsed.String(), "/"), ".git")
}

func keyOfObject(object *unstructured.Unstructured) fluxKey {
	return fluxKey{object.GroupVersionKind().GroupKind(), client.ObjectKeyFromObject(object)}
}

func describe(object *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
}

// fluxChanged reports whether a source offers another artifact than before, or the same of another commit, or offers none for another reason. If the
// cache has only a part of the source, it may.
func fluxChanged(before, after *unstructured.Unstructured) bool {
	was, wasErr := artifactOf(before)
	is, isErr := artifactOf(after)
	switch {
	case wasErr != nil || isErr != nil || (was == nil) != (is == nil), informercache.IsShortened(before), informercache.IsShortened(after):
		return true
	case is == nil:
		return *withoutArtifact(before, true) != *withoutArtifact(after, true)
	}
	return was.Revision != is.Revision || was.Digest != is.Digest || was.URL != is.URL || was.Verification != is.Verification ||
		!equality.Semantic.DeepEqual(was.Origin.Commit, is.Origin.Commit)
}

// withoutArtifact returns the Problem of a source without an artifact. It distinguishes a source that failed from one that has not produced
// an artifact yet.
func withoutArtifact(object *unstructured.Unstructured, watched bool) *Problem {
	problem := waiting(pulumiv1.ArtifactNotFoundReason, "%s has no artifact yet", describe(object))
	status, _ := fluxStatusOf(object)
	if ready := apimeta.FindStatusCondition(status.Conditions, meta.ReadyCondition); ready != nil && ready.Status == metav1.ConditionFalse {
		problem = waiting(pulumiv1.SourceNotReadyReason, "%s is not ready: %s", describe(object), ready.Message)
	}
	problem.Watched = watched
	return problem
}

// fluxStatus has the fields, besides the artifact, that all kinds of sources have in their status.
type fluxStatus struct {
	ObservedGeneration int64              `json:"observedGeneration"`
	Conditions         []metav1.Condition `json:"conditions"`
}

func fluxStatusOf(object *unstructured.Unstructured) (status fluxStatus, err error) {
	content, _, err := unstructured.NestedMap(object.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status)
	}
	return status, err
}

// verificationOf reads from the source whether its artifact is verified.
//
// source-controller sets SourceVerified for a new revision while status.artifact is still the old one, removes it while it looks at a
// revision again, and does not update the observed generation of that condition when nothing changed. So the condition alone proves nothing.
// The artifact is verified only if the same read shows a source that is Ready for its current generation, and the condition names no other
// revision.
func verificationOf(object *unstructured.Unstructured) Verification {
	verifiable := keyOfObject(object).isFlux(sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind)
	verify, found, _ := unstructured.NestedMap(object.Object, "spec", "verify")
	_, hasSecret, _ := unstructured.NestedMap(verify, "secretRef")
	identities, _, _ := unstructured.NestedSlice(verify, "matchOIDCIdentity")
	included, _, notAList := unstructured.NestedSlice(object.Object, "spec", "include")
	problem := func(format string, args ...any) Verification {
		return Verification{Impossible: !verifiable, Revoked: true, Problem: fmt.Sprintf(format, args...)}
	}
	switch kind := object.GetKind(); {
	case !verifiable:
		return problem("%s cannot be verified: use a GitRepository or an OCIRepository with spec.verify", describe(object))
	case !found:
		return problem("%s is not verified: set its spec.verify", describe(object))
	case len(included) > 0 || notAList != nil:
		return problem("%s has files of other sources in its artifact, which are not verified: remove its spec.include", describe(object))
	case kind == sourcev1.GitRepositoryKind && !hasSecret:
		return problem("%s is not verified: set its spec.verify.secretRef", describe(object))
	case kind == sourcev1.OCIRepositoryKind && !hasSecret && len(identities) == 0:
		return problem("%s accepts the signature of anybody: set its spec.verify.secretRef or spec.verify.matchOIDCIdentity", describe(object))
	}
	status, err := fluxStatusOf(object)
	verified := apimeta.FindStatusCondition(status.Conditions, sourcev1.SourceVerifiedCondition)
	switch {
	case err != nil:
		return Verification{Problem: fmt.Sprintf("the status of %s cannot be read", describe(object))}
	case verified == nil:
		return Verification{Lasting: true, Problem: fmt.Sprintf("%s has not been verified yet", describe(object))}
	case verified.Status != metav1.ConditionTrue:
		published, refused := publishedHash(object), firstGroup(refusals[object.GetKind()], verified.Message)
		return Verification{
			Lasting: refused != "" && published != "" && refused != published,
			Revoked: refused != "" && refused == published,
			Problem: fmt.Sprintf("the signature of %s was refused: %s", describe(object), verified.Message),
		}
	case status.ObservedGeneration != object.GetGeneration() || !apimeta.IsStatusConditionTrue(status.Conditions, meta.ReadyCondition):
		return Verification{Lasting: true, Problem: fmt.Sprintf("%s is not ready, so its artifact may be older than its verification", describe(object))}
	}
	published, named := publishedHash(object), firstGroup(successes[object.GetKind()], verified.Message)
	// The message about a tag of git names no commit. With notation, an OCI artifact that is not verified can be published all the same.
	if named != published && (named != "" || object.GetKind() == sourcev1.OCIRepositoryKind) {
		return Verification{Lasting: true, Problem: fmt.Sprintf("the artifact of %s is not what was verified: %s", describe(object), verified.Message)}
	}
	return Verification{Verified: true, Lasting: true}
}

// publishedHash returns the hash of the commit, or the digest of the OCI artifact, that a source publishes; empty if it names none.
func publishedHash(object *unstructured.Unstructured) string {
	revision, _, _ := unstructured.NestedString(object.Object, "status", "artifact", "revision")
	if object.GetKind() == sourcev1.OCIRepositoryKind {
		return firstGroup(contentDigest, revision)
	}
	_, sha := splitRevision(revision)
	return sha
}

// firstGroup returns what the first group of the pattern matches; empty if the text does not match.
func firstGroup(pattern *regexp.Regexp, text string) string {
	if match := pattern.FindStringSubmatch(text); match != nil {
		return match[1]
	}
	return ""
}

// fluxCommitInfo describes the commit that the artifact of a Flux source comes from: the one of a GitRepository, or the one that the
// metadata of another artifact names. It returns nil when the commit is not known.
func fluxCommitInfo(object *unstructured.Unstructured, revision string, metadata map[string]string) *autov1alpha1.CommitInfo {
	// The metadata of other artifacts do not say whether a ref is a branch or a tag.
	address, revisionOf, ref := metadata[originSourceAnnotation], metadata[originRevisionAnnotation], map[string]any(nil)
	if keyOfObject(object).isFlux(sourcev1.GitRepositoryKind) {
		address, _, _ = unstructured.NestedString(object.Object, "spec", "url")
		revisionOf = revision
		var found bool
		if ref, found, _ = unstructured.NestedMap(object.Object, "spec", "ref"); !found {
			ref = map[string]any{"branch": "master"} // the default of Flux
		}
	}
	name, sha := splitRevision(revisionOf)
	if sha == "" {
		return nil
	}
	return &autov1alpha1.CommitInfo{SHA: sha, Ref: fullRef(name, ref), Repository: shownRepository(address)}
}

// splitRevision returns the name and the hash of a revision that names a commit, and empty strings for other revisions.
func splitRevision(revision string) (name, sha string) {
	parts := commitRevision.FindStringSubmatch(revision)
	if parts == nil {
		return "", ""
	}
	return parts[1], parts[2]
}

// fullRef returns the full name of a ref, empty if it is not known whether it is a branch or a tag. In Flux the fields name, semver, tag
// and branch take precedence in this order.
func fullRef(name string, ref map[string]any) string {
	isSet := func(field string) bool {
		value, _ := ref[field].(string)
		return value != ""
	}
	switch {
	case name == "" || strings.HasPrefix(name, "refs/"):
		return name
	case isSet("semver") || isSet("tag"):
		return "refs/tags/" + name
	case isSet("branch"):
		return "refs/heads/" + name
	}
	return ""
}

// shownRepository returns the URL without credentials, or an empty string if the address is not the URL of a repository.
func shownRepository(address string) string {
	if parseGitURL(address) == nil {
		return ""
	}
	return gitRepository{url: address}.shown()
}
