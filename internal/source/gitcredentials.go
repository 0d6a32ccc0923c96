package source

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/git"
)

// Keys in Secrets.
const (
	knownHostsKey    = "known_hosts"
	usernameKey      = "username"
	passwordKey      = "password"
	proxyAddressKey  = "address"
	sshPrivateKeyKey = "sshPrivateKey"
	accessTokenKey   = "accessToken"

	// These are Flux's.
	identityKey        = "identity"
	bearerTokenKey     = "bearerToken"
	appIDKey           = "githubAppID"
	appInstallationKey = "githubAppInstallationID"
	appPrivateKeyKey   = "githubAppPrivateKey"
)

// Keys of certificates, the usual name first, then the one that Flux had before.
var (
	caKeys          = []string{"ca.crt", "caFile"}
	certificateKeys = []string{"tls.crt", "certFile"}
	privateKeyKeys  = []string{"tls.key", "keyFile"}
)

// readRemote reads the Secrets and ConfigMaps that the repository is reached with, as they are now. Its errors are of type
// *gitTrouble. What it returns is not kept longer than one look or checkout takes.
func readRemote(ctx context.Context, live client.Reader, repo gitRepository) (git.Remote, error) {
	remote := git.Remote{URL: repo.url, RecurseSubmodules: repo.submodules}
	auth := repo.auth
	if auth == nil {
		return remote, nil
	}
	objects := &objectData{live: live, namespace: repo.namespace, known: map[objectReference]map[string][]byte{}}
	for _, read := range []func(context.Context, *objectData, *autov1alpha1.GitAuth, *git.Remote) error{
		readCredentials, readKnownHosts, readCertificates, readProxy,
	} {
		if err := read(ctx, objects, auth, &remote); err != nil {
			return git.Remote{}, err
		}
	}
	return remote, nil
}

// readCredentials takes the first of private key, token, GitHub App, user name and password, and Secret that there is.
func readCredentials(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) error {
	for _, read := range []func(context.Context, *objectData, *autov1alpha1.GitAuth, *git.Remote) (bool, error){
		readPrivateKey, readToken, readGitHubApp, readBasic,
	} {
		if found, err := read(ctx, objects, auth, remote); found || err != nil {
			return err
		}
	}
	if auth.SecretRef == nil {
		return nil
	}
	data, err := objects.get(ctx, secretKind, auth.SecretRef.Name)
	if err != nil {
		return err
	}
	return useSecret(auth.SecretRef.Name, data, remote)
}

func readPrivateKey(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) (found bool, err error) {
	if remote.Auth.PrivateKey, found, err = objects.selected(ctx, auth.SSHPrivateKey); !found || err != nil {
		return false, err
	}
	passphrase, _, err := objects.selected(ctx, auth.Password)
	if err != nil {
		return false, err
	}
	remote.Auth.Passphrase = []byte(line(passphrase))
	remote.KnownHosts, _, err = objects.value(ctx, secretKind, auth.SSHPrivateKey.Name, knownHostsKey)
	return true, err
}

func readToken(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) (bool, error) {
	token, found, err := objects.selected(ctx, auth.Token)
	remote.Auth.Token = word(token)
	return found, err
}

func readGitHubApp(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) (bool, error) {
	if auth.GitHubApp == nil {
		return false, nil
	}
	values := make([][]byte, 3)
	for i, selector := range []*corev1.SecretKeySelector{auth.GitHubApp.AppID, auth.GitHubApp.InstallationID, auth.GitHubApp.PrivateKey} {
		value, found, err := objects.selected(ctx, selector)
		if !found || err != nil {
			return false, err
		}
		values[i] = value
	}
	remote.Auth.GitHubApp = &git.GitHubApp{AppID: word(values[0]), InstallationID: word(values[1]), PrivateKey: values[2]}
	return true, nil
}

func readBasic(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) (bool, error) {
	username, hasUsername, err := objects.selected(ctx, auth.Username)
	if err != nil {
		return false, err
	}
	password, hasPassword, err := objects.selected(ctx, auth.Password)
	if !hasUsername && !hasPassword || err != nil {
		return false, err
	}
	remote.Auth.Username, remote.Auth.Password = word(username), line(password)
	return true, nil
}

// useSecret takes the credentials, known hosts and certificates out of a Secret with the keys of the deprecated gitAuthSecret,
// or with those that Flux gives them. A private key counts for ssh only, so that a Secret may serve URLs of both schemes.
func useSecret(name string, data map[string][]byte, remote *git.Remote) error {
	remote.KnownHosts = data[knownHostsKey]
	useCertificates(data, remote)
	overSSH := false
	if parsed := parseGitURL(remote.URL); parsed != nil {
		overSSH = parsed.Scheme == "ssh"
	}
	privateKey := firstOf(data, sshPrivateKeyKey, identityKey)
	token := firstOf(data, accessTokenKey, bearerTokenKey)
	username, hasUsername := data[usernameKey]
	password, hasPassword := data[passwordKey]
	appID, hasApp := data[appIDKey]
	switch {
	case privateKey != nil && (overSSH || token == nil && !hasApp && !hasUsername):
		remote.Auth.PrivateKey, remote.Auth.Passphrase = privateKey, []byte(line(password))
	case token != nil:
		remote.Auth.Token = word(token)
	case hasApp:
		installation, key := data[appInstallationKey], data[appPrivateKeyKey]
		if installation == nil {
			return missingKey(secretKind, name, appInstallationKey)
		}
		if key == nil {
			return missingKey(secretKind, name, appPrivateKeyKey)
		}
		remote.Auth.GitHubApp = &git.GitHubApp{AppID: word(appID), InstallationID: word(installation), PrivateKey: key}
	case hasUsername && !hasPassword:
		return missingKey(secretKind, name, passwordKey)
	case hasUsername:
		remote.Auth.Username, remote.Auth.Password = word(username), line(password)
	case hasPassword:
		return missingKey(secretKind, name, usernameKey)
	case remote.KnownHosts == nil && remote.CA == nil && remote.ClientCert == nil:
		return missingReference(
			"Secret %q has none of the keys that the git repository is read with: add %s, or %s, or %s and %s",
			name, sshPrivateKeyKey, accessTokenKey, usernameKey, passwordKey)
	}
	return nil
}

func readKnownHosts(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) (err error) {
	ref := auth.KnownHostsRef
	if ref == nil {
		return nil
	}
	key := ref.Key
	if key == "" {
		key = knownHostsKey
	}
	remote.KnownHosts, err = objects.needed(ctx, knownHostsKind(ref), ref.Name, key)
	return err
}

func readCertificates(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) error {
	if auth.CertSecretRef == nil {
		return nil
	}
	name := auth.CertSecretRef.Name
	data, err := objects.get(ctx, secretKind, name)
	if err != nil {
		return err
	}
	remote.CA, remote.ClientCert, remote.ClientKey = nil, nil, nil
	useCertificates(data, remote)
	switch {
	case remote.CA == nil && remote.ClientCert == nil:
		return missingKey(secretKind, name, caKeys[0])
	case remote.ClientCert != nil && remote.ClientKey == nil:
		return missingKey(secretKind, name, privateKeyKeys[0])
	}
	return nil
}

func useCertificates(data map[string][]byte, remote *git.Remote) {
	remote.CA = firstOf(data, caKeys...)
	remote.ClientCert = firstOf(data, certificateKeys...)
	remote.ClientKey = firstOf(data, privateKeyKeys...)
}

func readProxy(ctx context.Context, objects *objectData, auth *autov1alpha1.GitAuth, remote *git.Remote) error {
	if auth.ProxySecretRef == nil {
		return nil
	}
	data, err := objects.get(ctx, secretKind, auth.ProxySecretRef.Name)
	if err != nil {
		return err
	}
	address, ok := data[proxyAddressKey]
	if !ok {
		return missingKey(secretKind, auth.ProxySecretRef.Name, proxyAddressKey)
	}
	remote.Proxy = git.Proxy{Address: word(address), Username: word(data[usernameKey]), Password: line(data[passwordKey])}
	return nil
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

// word is a value that has no blanks; Secrets that were made from files often end with a line break.
func word(value []byte) string { return strings.TrimSpace(string(value)) }

// line is a value without the line break at its end.
func line(value []byte) string { return strings.TrimRight(string(value), "\r\n") }
