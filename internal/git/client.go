// Package git resolves references of remote git repositories and checks out their commits, for content that tenants name and servers
// that nobody vouches for: everything is bounded in time, bytes and entries, nothing on the machine (files, agents, configuration,
// environment other than the proxy variables) takes part, and errors are typed and free of credentials. A server that sends less than
// throughput.Minimum is left after two minutes of that, whatever the timeouts are.
//
// It exists because go-git 5, on which fluxcd/pkg/git stands, holds each object of a repository in memory: to check out one file of
// 100 MiB took 317 MB there and takes 23 MB here, and a packfile of 2 MB, with one file of 2 GiB of zeros, took 8.5 GB there, which would
// be the end of a controller that all tenants share. It also has no bound on what a server sends, and reads the known hosts and agents
// of the user. go-git 6 is an alpha. When it is released and bounded, it replaces the protocol, packfiles and trees of this package.
//
// What is bounded in go-git 5 is used: its scanner of packfiles, hashes, the decoding of commits, tags and .gitmodules. Not used are
//
//   - pkt-line: it does not know the delimiter packet of version 2 of the protocol;
//   - side-band: it reports what the server says in the error band, and unknown bands, as text without a type;
//   - the advertisement of refs: it keeps all that a server has, in several maps;
//   - the parser of packfiles and PatchDelta: see pack and applyDelta;
//   - the decoding of trees: it takes unknown modes for those of files, and has no bound on the number of entries;
//   - the ssh and http transports: they read the machine's configuration, and do not tell why a host key is refused.
//
// It knows nothing of Kubernetes.
package git

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// Defaults of Options.
const (
	// DefaultTimeout bounds one conversation with a server about its refs.
	DefaultTimeout = 30 * time.Second

	// DefaultCheckoutTimeout bounds the download of one commit, and the writing of its files.
	DefaultCheckoutTimeout = 2 * time.Minute
)

// Options configure a Client. The zero value works, except that ssh needs known hosts from somewhere.
type Options struct {
	// Timeout bounds everything that Resolve does. Zero is DefaultTimeout.
	Timeout time.Duration

	// CheckoutTimeout bounds the download of a commit, submodules included, the writing of its files, and the search for an abbreviated
	// SHA, each. Zero is DefaultCheckoutTimeout.
	CheckoutTimeout time.Duration

	// KnownHosts are the controller's own known hosts, in the format of OpenSSH. A Remote's count first.
	KnownHosts []byte

	// Limits bound what one commit may consist of: MaxDownloadSize the bytes that a server sends, MaxUnpackedSize the sum
	// in bytes of the files, MaxEntries the files and directories. Zero fields are the defaults of the archive package.
	Limits archive.Limits

	// Dir is where packfiles are kept while they are needed, without names: what ends the process leaves none. It must exist; "" is the system's directory for temporary files.
	Dir string

	// AllowLocalAddresses allows repositories at addresses that netguard refuses, such as those of this machine.
	AllowLocalAddresses bool
}

// Client talks to git servers. It is safe for concurrent use. Its checkouts share a budget of memory, so a process has one Client.
type Client struct {
	options   Options
	transport *http.Transport
	proxies   *httpproxy.Config
	apps      *appTokens
	memory    *memory
	// searches bounds the downloads of histories at the same time.
	searches *fairqueue.Pool
	// window and preparation are throughput.Window and preparationTime outside of tests.
	window, preparation time.Duration
}

// NewClient creates a client. The proxy variables of the environment are read now.
func NewClient(options Options) *Client {
	options.Timeout = cmp.Or(max(options.Timeout, 0), DefaultTimeout)
	options.CheckoutTimeout = cmp.Or(max(options.CheckoutTimeout, 0), DefaultCheckoutTimeout)
	options.Limits = options.Limits.WithDefaults()
	proxies := httpproxy.FromEnvironment()
	return &Client{options: options, transport: newTransport(options.AllowLocalAddresses, proxies), proxies: proxies, apps: newAppTokens(),
		memory: newMemory(options.Limits), searches: fairqueue.NewPool(concurrentSearches),
		window: throughput.Window, preparation: preparationTime}
}

// Remote is a repository and how to reach it.
type Remote struct {
	// URL is an address with the scheme http, https or ssh, or of the form user@host:path. A user and password in it are
	// used when Auth has none.
	URL string

	// Namespace is on whose behalf the repository is read: those who do so share what there is little of.
	Namespace string

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
// bearer token, GitHub App (http and https only), basic. When there are some, and the scheme can carry none, that is an error.
type Auth struct {
	// PrivateKey is a key for ssh in the PEM or the OpenSSH format, Passphrase what it is encrypted with.
	PrivateKey, Passphrase []byte

	// Token is a personal, project or installation access token.
	Token string

	// BearerToken is sent as it is, in the header "Authorization: Bearer".
	BearerToken string

	// Username and Password are for HTTP basic authentication, or for ssh with a password.
	Username, Password string

	// GitHubApp is exchanged for a token.
	GitHubApp *GitHubApp
}

// GitHubApp identifies an installation of a GitHub App.
type GitHubApp struct { //nolint:revive // the name of the product, not of this package
	// AppID is the App's ID or its client ID. InstallationID is a number; without it the installation of the InstallationOwner, an
	// organization or a user, is looked up.
	AppID, InstallationID, InstallationOwner string

	// BaseURL is the address of the API, for example https://github.example.com/api/v3. "" is where
	// GitHub documents it for the host of the repository.
	BaseURL string

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
	app := []any{}
	if a := r.Auth.GitHubApp; a != nil {
		app = []any{a.AppID, a.InstallationID, a.InstallationOwner, a.BaseURL, a.PrivateKey}
	}
	// In quotes no two lists of values look the same.
	digest := sha256.Sum256(fmt.Appendf(nil, "%q", []any{r.URL, r.Auth.PrivateKey, r.Auth.Passphrase, r.Auth.Token, r.Auth.BearerToken, r.Auth.Username,
		r.Auth.Password, app, r.KnownHosts, r.CA, r.ClientCert, r.ClientKey, r.Proxy.Address, r.Proxy.Username, r.Proxy.Password, r.RecurseSubmodules}))
	return hex.EncodeToString(digest[:])
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

// repository is a remote repository that a call of Client is about.
type repository struct {
	client   *Client
	remote   Remote
	endpoint endpoint
	secrets  *secrets
	// limits are what is left of the client's: a checkout with submodules shares them.
	limits archive.Limits
}

// open checks the URL, and that the credentials are of use: over another transport than that of the URL they are a mistake of the user
// that no server would explain.
func (c *Client) open(remote Remote) (*repository, error) {
	e, err := parseEndpoint(remote.URL)
	if err != nil {
		return nil, err
	}
	r := &repository{client: c, remote: remote, endpoint: e, secrets: secretsOf(remote, e), limits: c.options.Limits}
	auth := remote.Auth
	hasKey, hasToken, hasBasic := len(auth.PrivateKey) > 0, auth.Token != "" || auth.BearerToken != "" || auth.GitHubApp != nil, auth.Username != "" || auth.Password != ""
	switch {
	case e.scheme == schemeSSH && hasToken && !hasKey && !hasBasic:
		return nil, r.fail(InvalidCredentials, "a token cannot be used over ssh: use an https URL, or a private key")
	case e.scheme != schemeSSH && hasKey && !hasToken && !hasBasic && e.password == "":
		return nil, r.fail(InvalidCredentials, "a private key cannot be used over %s: use an ssh URL, or a token", e.scheme)
	}
	return r, nil
}
