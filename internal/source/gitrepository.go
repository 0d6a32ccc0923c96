package source

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/references"
)

// fullHash matches the full name of a commit, of either hash function that git has.
var fullHash = regexp.MustCompile(`^(?:[0-9a-fA-F]{40}|[0-9a-fA-F]{64})$`)

// gitRepository is a git repository as the objects of a namespace see it. Objects with equal values have the same rights in the repository,
// whatever their Secrets contain.
type gitRepository struct {
	// namespace is the namespace of the Secrets. It is empty when none is needed, so that all namespaces share the polls of public
	// repositories.
	namespace  string
	url        string
	auth       *autov1alpha1.GitAuth
	submodules bool
}

func repositoryOf(namespace string, source *autov1alpha1.GitSource) gitRepository {
	r := gitRepository{url: strings.TrimSpace(source.URL), submodules: source.RecurseSubmodules}
	if len(referencesOf(namespace, source.Auth)) > 0 {
		r.namespace, r.auth = namespace, source.Auth
	}
	return r
}

// repositoryKey identifies something in a repository. It is a digest, because a URL can contain credentials.
type repositoryKey [sha256.Size]byte

// key identifies the ref, or the commit, in the repository.
func (r gitRepository) key(purpose, ref string) repositoryKey {
	// Marshalling strings, booleans and pointers to structs of them does not fail.
	parts, _ := json.Marshal([]any{purpose, ref, r.namespace, r.url, r.auth, r.submodules})
	return sha256.Sum256(parts)
}

// host returns what may be slow for the requests: the server, in lower case, and the proxy that the namespace has put before it, which nobody else
// uses. The server is empty if the URL cannot be parsed.
func (r gitRepository) host() string {
	server := ""
	if parsed := parseGitURL(r.url); parsed != nil {
		server = strings.ToLower(parsed.Host)
	}
	if proxy := ptr.Deref(ptr.Deref(r.auth, autov1alpha1.GitAuth{}).ProxySecretRef, meta.LocalObjectReference{}).Name; proxy != "" {
		return server + " through " + r.namespace + "/" + proxy
	}
	return server
}

// shown returns the URL without anything that may be secret: user and password (except the user of ssh), and the query.
func (r gitRepository) shown() string {
	parsed := parseGitURL(r.url)
	if parsed == nil {
		return "the git repository"
	}
	shown := url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: parsed.Path, RawPath: parsed.RawPath}
	if parsed.Scheme == "ssh" && parsed.User != nil {
		shown.User = url.User(parsed.User.Username())
	}
	return shown.String()
}

// parseGitURL parses a URL, or the short form user@host:path of one for ssh. It returns nil for any other text.
func parseGitURL(raw string) *url.URL {
	if !strings.Contains(raw, "://") {
		address, path, ok := strings.Cut(raw, ":")
		if !ok || strings.Contains(address, "/") {
			return nil
		}
		raw = "ssh://" + address + "/" + strings.TrimPrefix(path, "/")
	}
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Host == "" {
		return nil
	}
	return parsed
}

// maxGitURL, maxGitRef and maxGitAuth bound what is held of each git source that is polled, in bytes. maxGitAuth is about the names of
// Secrets and their keys.
const maxGitURL, maxGitRef, maxGitAuth = 4096, 1024, 8192

// checkGitSource returns the problems that can be found without a request.
func checkGitSource(source *autov1alpha1.GitSource) error {
	switch {
	case source == nil || source.URL == "":
		return invalidSource("the git source has no URL")
	case source.Ref == "":
		return invalidSource("the git source names no branch, tag or commit")
	case len(source.URL) > maxGitURL:
		return invalidSource("the URL of the git source has more than %d bytes", maxGitURL)
	case len(source.Ref) > maxGitRef:
		return invalidSource("the name of the branch, tag or commit of the git source has more than %d bytes", maxGitRef)
	}
	// Marshalling strings, booleans and pointers to structs of them does not fail.
	if auth, _ := json.Marshal(source.Auth); len(auth) > maxGitAuth {
		return invalidSource("the references of the git source to Secrets have more than %d bytes", maxGitAuth)
	}
	return nil
}

// referencesOf returns the Secrets and ConfigMaps that may have to be read for the repository, each once, those with credentials first.
func referencesOf(namespace string, auth *autov1alpha1.GitAuth) []references.Key {
	if auth == nil {
		return nil
	}
	var found []references.Key
	add := func(kind references.Kind, name string) {
		if reference := (references.Key{Kind: kind, Namespace: namespace, Name: name}); !slices.Contains(found, reference) {
			found = append(found, reference)
		}
	}
	selectors := []*corev1.SecretKeySelector{auth.SSHPrivateKey, auth.Token, auth.Username, auth.Password}
	if app := auth.GitHubApp; app != nil {
		selectors = append(selectors, app.AppID, app.InstallationID, app.PrivateKey)
	}
	for _, selector := range selectors {
		if selector != nil {
			add(references.Secret, selector.Name)
		}
	}
	if auth.SecretRef != nil {
		add(references.Secret, auth.SecretRef.Name)
	}
	if ref := auth.KnownHostsRef; ref != nil {
		add(knownHostsKind(ref), ref.Name)
	}
	if auth.CertSecretRef != nil {
		add(references.Secret, auth.CertSecretRef.Name)
	}
	if auth.ProxySecretRef != nil {
		add(references.Secret, auth.ProxySecretRef.Name)
	}
	return found
}

func knownHostsKind(ref *autov1alpha1.KnownHostsReference) references.Kind {
	return references.Kind(cmp.Or(ref.Kind, string(references.ConfigMap)))
}
