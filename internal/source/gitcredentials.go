package source

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// referenceTimeout bounds the reading of one Secret or ConfigMap.
const referenceTimeout = 10 * time.Second

// Keys in Secrets.
const (
	knownHostsKey    = "known_hosts"
	usernameKey      = "username"
	passwordKey      = "password"
	proxyAddressKey  = "address"
	sshPrivateKeyKey = "sshPrivateKey"
	accessTokenKey   = "accessToken"

	// These are the keys that Flux uses.
	identityKey        = "identity"
	bearerTokenKey     = "bearerToken"
	appIDKey           = "githubAppID"
	appClientIDKey     = "githubAppClientID"
	appInstallationKey = "githubAppInstallationID"
	appOwnerKey        = "githubAppInstallationOwner"
	appPrivateKeyKey   = "githubAppPrivateKey"
	appBaseURLKey      = "githubAppBaseURL"
)

// These are the keys of certificates: the usual name first, then the one that earlier versions of Flux used.
var (
	caKeys          = []string{"ca.crt", "caFile"}
	certificateKeys = []string{"tls.crt", "certFile"}
	privateKeyKeys  = []string{"tls.key", "keyFile"}
)

// readRemote reads the Secrets and ConfigMaps with the credentials and settings of the repository, from the API server. Its errors are of
// type *gitFailure. Callers keep the result only for one poll or checkout.
func readRemote(ctx context.Context, live client.Reader, repo gitRepository) (git.Remote, error) {
	remote := git.Remote{URL: repo.url, RecurseSubmodules: repo.submodules}
	if repo.auth == nil {
		return remote, nil
	}
	s := &secrets{ctx: ctx, live: live, namespace: repo.namespace, known: map[references.Key]map[string][]byte{}}
	s.readCredentials(repo.auth, &remote)
	s.readSettings(repo.auth, &remote)
	if s.failure != nil {
		return git.Remote{}, s.failure
	}
	return remote, nil
}

// secrets reads Secrets and ConfigMaps of one namespace, each once. After the first failure it reads nothing more and returns empty values.
type secrets struct {
	ctx       context.Context
	live      client.Reader
	namespace string
	known     map[references.Key]map[string][]byte
	failure   *gitFailure
}

func (s *secrets) fail(failure *gitFailure) {
	s.failure = cmp.Or(s.failure, failure)
}

func (s *secrets) failWithoutKey(kind references.Kind, name, key string) {
	s.fail(missingReference("%s %q has no key %q, which the git repository is read with: add it", kind, name, key))
}

// data returns the content of the object.
func (s *secrets) data(kind references.Kind, name string) map[string][]byte {
	reference := references.Key{Kind: kind, Namespace: s.namespace, Name: name}
	if data, ok := s.known[reference]; ok || s.failure != nil {
		return data
	}
	ctx, cancel := context.WithTimeout(s.ctx, referenceTimeout)
	defer cancel()
	data, err := readData(ctx, s.live, reference)
	switch {
	case err == nil:
		s.known[reference] = data
		return data
	case apierrors.IsNotFound(err):
		s.fail(missingReference("%s %q, which holds what the git repository is read with, does not exist: create it", kind, name))
	case apierrors.IsForbidden(err):
		s.fail(missingReference("the controller is not allowed to read %s %q, which holds what the git repository is read with", kind, name))
		s.failure.Reason = pulumiv1.AccessDeniedReason
	default:
		s.fail(unavailable("%s %q cannot be read from the API server: %s", kind, name, apierrors.ReasonForError(err)))
	}
	return nil
}

func readData(ctx context.Context, live client.Reader, reference references.Key) (map[string][]byte, error) {
	key := types.NamespacedName{Namespace: reference.Namespace, Name: reference.Name}
	if reference.Kind == references.Secret {
		secret := &corev1.Secret{}
		err := live.Get(ctx, key, secret)
		return secret.Data, err
	}
	configMap := &corev1.ConfigMap{}
	err := live.Get(ctx, key, configMap)
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	for name, value := range configMap.Data {
		data[name] = []byte(value)
	}
	maps.Copy(data, configMap.BinaryData)
	return data, err
}

// required returns the value of a key that has to be there.
func (s *secrets) required(kind references.Kind, name, key string) []byte {
	value, ok := s.data(kind, name)[key]
	if !ok {
		s.failWithoutKey(kind, name, key)
	}
	return value
}

// selected returns the value that the selector names. ok is false if there is no selector, or if the value is optional and does not exist.
func (s *secrets) selected(selector *corev1.SecretKeySelector) (value []byte, ok bool) {
	if selector == nil || s.failure != nil {
		return nil, false
	}
	if !ptr.Deref(selector.Optional, false) {
		value = s.required(references.Secret, selector.Name, selector.Key)
		return value, s.failure == nil
	}
	value, ok = s.data(references.Secret, selector.Name)[selector.Key]
	if s.failure != nil && s.failure.Reason == pulumiv1.SecretNotFoundReason {
		s.failure = nil
	}
	return value, ok
}

// readCredentials uses the first of these that is set: private key, token, GitHub App, user name and password, Secret.
func (s *secrets) readCredentials(auth *autov1alpha1.GitAuth, remote *git.Remote) {
	if key, ok := s.selected(auth.SSHPrivateKey); ok {
		passphrase, _ := s.selected(auth.Password)
		remote.Auth.PrivateKey, remote.Auth.Passphrase = key, []byte(line(passphrase))
		remote.KnownHosts = s.data(references.Secret, auth.SSHPrivateKey.Name)[knownHostsKey]
		return
	}
	if token, ok := s.selected(auth.Token); ok {
		remote.Auth.Token = word(token)
		return
	}
	if app := auth.GitHubApp; app != nil {
		id, hasID := s.selected(app.AppID)
		installation, hasInstallation := s.selected(app.InstallationID)
		key, hasKey := s.selected(app.PrivateKey)
		if hasID && hasInstallation && hasKey {
			remote.Auth.GitHubApp = &git.GitHubApp{AppID: word(id), InstallationID: word(installation), PrivateKey: key}
			return
		}
	}
	username, hasUsername := s.selected(auth.Username)
	password, hasPassword := s.selected(auth.Password)
	switch {
	case hasUsername || hasPassword:
		remote.Auth.Username, remote.Auth.Password = word(username), line(password)
	case auth.SecretRef != nil:
		s.readSecret(auth.SecretRef.Name, remote)
	}
}

// readSecret reads the credentials, known hosts and certificates from a Secret with the keys of the deprecated gitAuthSecret, or with the
// keys of Flux. If a Secret also has other credentials, its private key is used for ssh only, so that one Secret works for ssh and https
// URLs.
func (s *secrets) readSecret(name string, remote *git.Remote) {
	data := s.data(references.Secret, name)
	remote.KnownHosts = data[knownHostsKey]
	useCertificates(data, remote)
	parsed := parseGitURL(remote.URL)
	overSSH := parsed != nil && parsed.Scheme == "ssh"
	privateKey := firstOf(data, sshPrivateKeyKey, identityKey)
	token, bearer := firstOf(data, accessTokenKey), firstOf(data, bearerTokenKey)
	username, hasUsername := data[usernameKey]
	password, hasPassword := data[passwordKey]
	appID := firstOf(data, appIDKey, appClientIDKey)
	hasApp := appID != nil
	switch {
	case privateKey != nil && (overSSH || token == nil && bearer == nil && !hasApp && !hasUsername):
		remote.Auth.PrivateKey, remote.Auth.Passphrase = privateKey, []byte(line(password))
	case token != nil:
		remote.Auth.Token = word(token)
	case bearer != nil:
		remote.Auth.BearerToken = word(bearer)
	case len(data[appIDKey]) > 0 && len(data[appClientIDKey]) > 0:
		s.fail(newFailure(pulumiv1.AuthenticationFailedReason, credentialFailure,
			"Secret %q has both %q and %q, of which one identifies the GitHub App: remove the other", name, appIDKey, appClientIDKey))
	case hasApp:
		installation, owner := data[appInstallationKey], data[appOwnerKey]
		if installation == nil && owner == nil {
			s.failWithoutKey(references.Secret, name, appInstallationKey)
		}
		remote.Auth.GitHubApp = &git.GitHubApp{AppID: word(appID), InstallationID: word(installation), InstallationOwner: word(owner),
			BaseURL: word(data[appBaseURLKey]), PrivateKey: s.required(references.Secret, name, appPrivateKeyKey)}
	case hasUsername:
		remote.Auth.Username, remote.Auth.Password = word(username), line(s.required(references.Secret, name, passwordKey))
	case hasPassword:
		s.failWithoutKey(references.Secret, name, usernameKey)
	case len(data[appPrivateKeyKey]) > 0:
		s.fail(missingReference("Secret %q has neither the key %q nor %q, which identifies the GitHub App: add one of them", name, appIDKey, appClientIDKey))
	case remote.KnownHosts == nil && remote.CA == nil && remote.ClientCert == nil:
		s.fail(missingReference("Secret %q has none of the keys that the git repository is read with: add %s, or %s, or %s and %s",
			name, sshPrivateKeyKey, accessTokenKey, usernameKey, passwordKey))
	}
}

// readSettings reads the known hosts, certificates and proxy that have references of their own.
func (s *secrets) readSettings(auth *autov1alpha1.GitAuth, remote *git.Remote) {
	if ref := auth.KnownHostsRef; ref != nil {
		remote.KnownHosts = s.required(knownHostsKind(ref), ref.Name, cmp.Or(ref.Key, knownHostsKey))
	}
	if name := ptr.Deref(auth.CertSecretRef, meta.LocalObjectReference{}).Name; name != "" {
		useCertificates(s.data(references.Secret, name), remote)
		switch {
		case remote.CA == nil && remote.ClientCert == nil:
			s.failWithoutKey(references.Secret, name, caKeys[0])
		case remote.ClientCert != nil && remote.ClientKey == nil:
			s.failWithoutKey(references.Secret, name, privateKeyKeys[0])
		}
	}
	if name := ptr.Deref(auth.ProxySecretRef, meta.LocalObjectReference{}).Name; name != "" {
		data := s.data(references.Secret, name)
		remote.Proxy = git.Proxy{Address: word(s.required(references.Secret, name, proxyAddressKey)),
			Username: word(data[usernameKey]), Password: line(data[passwordKey])}
	}
}

func useCertificates(data map[string][]byte, remote *git.Remote) {
	remote.CA = firstOf(data, caKeys...)
	remote.ClientCert = firstOf(data, certificateKeys...)
	remote.ClientKey = firstOf(data, privateKeyKeys...)
}

// firstOf returns the value of the first key that is there and not empty.
func firstOf(data map[string][]byte, keys ...string) []byte {
	for _, key := range keys {
		if value := data[key]; len(value) > 0 {
			return value
		}
	}
	return nil
}

// word returns a value without blanks around it. The values of Secrets that were made from files often end with a line break.
func word(value []byte) string { return strings.TrimSpace(string(value)) }

// line returns a value without the line break at its end.
func line(value []byte) string { return strings.TrimRight(string(value), "\r\n") }
