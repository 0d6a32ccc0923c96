// Package git resolves references of remote git repositories and checks out their commits, for content that tenants name and
// servers that nobody vouches for: everything is bounded in time, bytes and entries, nothing on the machine (files, agents,
// configuration, environment other than the proxy variables) takes part, and errors are typed and free of credentials.
//
// fluxcd/pkg/git has the same purpose, and is not used because it stands on a library that holds each object of a repository in
// memory: to check out one file of 100 MiB took 317 MB there and takes 23 MB here, and a packfile of 2 MB, with one file of
// 2 GiB of zeros, took 8.5 GB there, which would be the end of a controller that all tenants share. That library also has no
// bound on what a server sends, and reads the known hosts and agents of the user. What it does well is taken from it: hashes,
// the decoding of commits and tags, differences between objects.
//
// It imports nothing of Kubernetes.
package git

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Remote is a repository and how to reach it.
type Remote struct {
	// URL is an address with the scheme http, https or ssh, or of the form user@host:path. A user and password in it are
	// used when Auth has none.
	URL string

	// Auth are the credentials.
	Auth Auth

	// KnownHosts are the host keys to accept over ssh, in the format of OpenSSH, in addition to the client's own.
	KnownHosts []byte

	// CA are PEM certificates to trust over https instead of the system's.
	CA []byte

	// ClientCert and ClientKey are the PEM certificate and key to show over https; both or none.
	ClientCert, ClientKey []byte

	// Proxy is the proxy to use instead of what the environment says.
	Proxy Proxy

	// RecurseSubmodules makes a checkout include the submodules.
	RecurseSubmodules bool
}

// Auth are credentials. Of several the first that the URL's scheme can carry counts, in this order: private key (ssh only), token,
// GitHub App (http and https only), basic. When there are some, and the scheme can carry none, that is an error.
type Auth struct {
	// PrivateKey is a key for ssh in the PEM or the OpenSSH format, Passphrase what it is encrypted with.
	PrivateKey, Passphrase []byte

	// Token is a personal, project or installation access token.
	Token string

	// Username and Password are for HTTP basic authentication, or for ssh with a password.
	Username, Password string

	// GitHubApp is exchanged for a token.
	GitHubApp *GitHubApp
}

// GitHubApp identifies an installation of a GitHub App.
type GitHubApp struct { //nolint:revive // the name of the product, not of this package
	// AppID is the App's ID or its client ID. InstallationID is a number.
	AppID, InstallationID string

	// PrivateKey is the App's RSA key, PEM with PKCS#1 or PKCS#8 inside.
	PrivateKey []byte
}

// Proxy is an http, https or socks5 proxy.
type Proxy struct {
	// Address is a URL such as http://proxy:3128. "" is no explicit proxy.
	Address string

	// Username and Password are what the proxy wants; they may be in the address, too.
	Username, Password string
}

// Key identifies the repository together with the credentials and settings: two Remotes with one key can share answers, others
// must not. It is the SHA-256 of everything, in hexadecimal digits, so no value can be read from it. It is for maps, not for people:
// who guesses a short password could check the guess.
func (r Remote) Key() string {
	digest := sha256.New()
	write := func(values ...[]byte) {
		for _, value := range values {
			// With its length, so that no two lists of values look the same.
			var length [8]byte
			binary.BigEndian.PutUint64(length[:], uint64(len(value)))
			digest.Write(length[:])
			digest.Write(value)
		}
	}
	write([]byte("git remote v1"), []byte(r.URL), r.Auth.PrivateKey, r.Auth.Passphrase, []byte(r.Auth.Token),
		[]byte(r.Auth.Username), []byte(r.Auth.Password))
	if app := r.Auth.GitHubApp; app != nil {
		write([]byte("app"), []byte(app.AppID), []byte(app.InstallationID), app.PrivateKey)
	} else {
		write(nil, nil, nil, nil)
	}
	write(r.KnownHosts, r.CA, r.ClientCert, r.ClientKey, []byte(r.Proxy.Address), []byte(r.Proxy.Username), []byte(r.Proxy.Password))
	if r.RecurseSubmodules {
		write([]byte("submodules"))
	}
	return hex.EncodeToString(digest.Sum(nil))
}

// String keeps the credentials out of logs.
func (r Remote) String() string {
	e, err := parseEndpoint(r.URL)
	if err != nil {
		return "git repository"
	}
	return "git repository " + e.display()
}

// GoString is as String.
func (r Remote) GoString() string { return r.String() }

// String keeps the credentials out of logs.
func (a Auth) String() string { return redacted }

// GoString is as String.
func (a Auth) GoString() string { return redacted }
