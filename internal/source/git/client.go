// Package git resolves the refs of remote git repositories and checks out commits. Tenants choose the repositories, and the servers are not
// trusted. So everything is bounded in time, bytes and entries. The files, the ssh agent and the git configuration of the machine have no
// influence, and of the environment only the proxy variables have. Errors are typed and free of credentials. The client gives up on a
// server that was slower than throughput.Minimum for two minutes in all, however long the timeouts are.
//
// The package exists because go-git 5, on which fluxcd/pkg/git is built, holds each object of a repository in memory. To check out one file
// of 100 MiB takes 317 MB with go-git and 23 MB with this package. A packfile of 2 MB, with one file of 2 GiB of zeros, took 8.5 GB with
// go-git, which would kill a controller that all tenants share. go-git also has no bound on what a server sends, and reads the known hosts
// and the ssh agent of the user. go-git 6.0.0-beta.1 takes 332 MB for the same file when it stores objects in files, and writes the 2 GiB
// without an error; with objects in memory, it takes 606 MB and 9.5 GB. When go-git 6 is released and bounded, it replaces the protocol, packfiles
// and trees of this package.
//
// This package uses the parts of go-git 5 that are bounded: the scanner of packfiles, the hashes, and the decoders of commits, tags and
// .gitmodules. It does not use
//
//   - pkt-line: it does not know the delimiter packet of version 2 of the protocol;
//   - side-band: it reports messages of the error band, and unknown bands, as errors without a type;
//   - the advertisement of refs: it keeps all refs of a server, in several maps;
//   - the parser of packfiles and PatchDelta: see pack and applyDelta;
//   - the decoding of trees: it treats entries with unknown modes as files, and has no bound on the number of entries;
//   - the ssh and http transports: they read the machine's configuration, and do not report why a host key is refused.
//
// The package does not depend on Kubernetes.
package git

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/utils/lru"

	"github.com/stack-controller/stack-controller/internal/fairqueue"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
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

	// CheckoutTimeout bounds each of these steps: the download of a commit with its submodules, the writing of its files, and the search
	// for an abbreviated SHA. Zero is DefaultCheckoutTimeout.
	CheckoutTimeout time.Duration

	// KnownHosts are the controller's own known hosts, in the format of OpenSSH. The known hosts of a Remote take precedence.
	KnownHosts []byte

	// Limits bound one commit: MaxDownloadSize bounds the bytes that a server sends, MaxUnpackedSize the bytes of the uncompressed tarball,
	// MaxEntries the number of files and directories. Zero fields are the defaults of the archive package.
	Limits archive.Limits

	// Dir is the directory for packfiles while they are needed. The files have no names, so none is left however the process ends. Dir must
	// exist; "" is the system's directory for temporary files.
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
	// searches bounds how many histories are downloaded at the same time.
	searches *fairqueue.Pool
	// searched has the results of searches, by searchKey.
	searched *lru.Cache
	// decryptions lets one private key be decrypted at a time, which takes up to a second of processor time that nothing interrupts.
	decryptions *fairqueue.Pool
	// window and preparation are throughput.Window and preparationTime outside of tests.
	window, preparation time.Duration
	// tokenSettling and tokenWaits are the constant and defaultTokenWaits outside of tests.
	tokenSettling time.Duration
	tokenWaits    []time.Duration
}

// NewClient creates a client. It reads the proxy variables of the environment; later changes have no effect.
func NewClient(options Options) *Client {
	options.Timeout = cmp.Or(max(options.Timeout, 0), DefaultTimeout)
	options.CheckoutTimeout = cmp.Or(max(options.CheckoutTimeout, 0), DefaultCheckoutTimeout)
	options.Limits = options.Limits.WithDefaults()
	proxies := httpproxy.FromEnvironment()
	return &Client{options: options, transport: newTransport(options.AllowLocalAddresses, proxies), proxies: proxies, apps: newAppTokens(),
		memory: newMemory(options.Limits), searches: fairqueue.NewPool(concurrentSearches), searched: lru.New(maxSearches), decryptions: fairqueue.NewPool(1),
		window: throughput.Window, preparation: preparationTime, tokenSettling: tokenSettling, tokenWaits: defaultTokenWaits()}
}

// Remote is a repository and how to reach it.
type Remote struct {
	// URL is an address with the scheme http, https or ssh, or of the form user@host:path. A user and password in it are
	// used when Auth has none.
	URL string

	// Namespace is the namespace for which the repository is read. Namespaces share memory and searches fairly.
	Namespace string

	// Auth are the credentials.
	Auth Auth

	// KnownHosts are the host keys to accept over ssh, in the format of OpenSSH, in addition to the client's own.
	KnownHosts []byte

	// CA are PEM certificates to trust over https instead of the system's, or in addition to them with TrustsSystem.
	CA           []byte
	TrustsSystem bool

	// ClientCert and ClientKey are the PEM certificate and key to show over https; both or none.
	ClientCert, ClientKey []byte

	// Proxy is used instead of the proxy that the environment names.
	Proxy Proxy

	// RecurseSubmodules makes a checkout include the submodules.
	RecurseSubmodules bool
}

// Auth are credentials. If there are several, the first that the URL's scheme supports is used, in this order: private key (ssh only),
// token, bearer token, GitHub App (http and https only), basic authentication. Credentials of which the scheme supports none are an error.
type Auth struct {
	// PrivateKey is a key for ssh in the PEM or the OpenSSH format, Passphrase is the passphrase that it is encrypted with.
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

	// BaseURL is the address of the API, for example https://github.example.com/api/v3. "" is the address that GitHub documents for the
	// host of the repository.
	BaseURL string

	// PrivateKey is the App's RSA key, PEM with PKCS#1 or PKCS#8 inside.
	PrivateKey []byte
}

// Proxy is an http, https or socks5 proxy.
type Proxy struct {
	// Address is a URL such as http://proxy:3128. "" is no explicit proxy.
	Address string

	// Username and Password are the credentials for the proxy. They may also be in the address.
	Username, Password string
}

// Key identifies the repository together with the credentials and settings, but not the namespace. Remotes with the same key can share
// answers; Remotes with different keys must not. The key is the SHA-256 of all these values, in hexadecimal digits, so no value can be read
// from it. It is for maps and must not be shown: with the key, a guess of a short password can be verified.
func (r Remote) Key() string {
	app := []any{}
	if a := r.Auth.GitHubApp; a != nil {
		app = []any{a.AppID, a.InstallationID, a.InstallationOwner, a.BaseURL, a.PrivateKey}
	}
	// With quoted values, two different lists never give the same text.
	digest := sha256.Sum256(fmt.Appendf(nil, "%q", []any{r.URL, r.Auth.PrivateKey, r.Auth.Passphrase, r.Auth.Token, r.Auth.BearerToken, r.Auth.Username,
		r.Auth.Password, app, r.KnownHosts, r.CA, r.TrustsSystem, r.ClientCert, r.ClientKey, r.Proxy.Address, r.Proxy.Username, r.Proxy.Password, r.RecurseSubmodules}))
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

// GoString returns the same text as String.
func (r Remote) GoString() string { return r.String() }

// String keeps the credentials out of logs.
func (a Auth) String() string { return redacted }

// GoString returns the same text as String.
func (a Auth) GoString() string { return redacted }

// repository is the remote repository of one call of Client.
type repository struct {
	client   *Client
	remote   Remote
	endpoint endpoint
	secrets  *secrets
	// tokenIssued is when the token of a GitHub App was obtained that is sent to the server; zero without one.
	tokenIssued time.Time
	// limits are what is left of the client's limits, which a repository and its submodules share.
	limits archive.Limits
}

// open checks the URL, and that the credentials fit its transport. If they do not, the user has made a mistake that no server would
// explain.
func (c *Client) open(remote Remote) (*repository, error) {
	r, err := c.prepare(remote)
	if err != nil {
		return nil, err
	}
	auth, e := remote.Auth, r.endpoint
	if e.scheme != schemeSSH && len(auth.PrivateKey) > 0 && !auth.hasToken() && !auth.hasBasic() && e.password == "" {
		return nil, r.fail(InvalidCredentials, "a private key cannot be used over %s: use an ssh URL, or a token", e.scheme)
	}
	return r, nil
}

// prepare is open for a submodule: if its URL is not one of ssh, it may be public, and the private key is that of the repository around it.
func (c *Client) prepare(remote Remote) (*repository, error) {
	e, err := parseEndpoint(remote.URL)
	if err != nil {
		return nil, err
	}
	r := &repository{client: c, remote: remote, endpoint: e, secrets: secretsOf(remote, e), limits: c.options.Limits}
	if auth := remote.Auth; e.scheme == schemeSSH && auth.hasToken() && len(auth.PrivateKey) == 0 && !auth.hasBasic() {
		return nil, r.fail(InvalidCredentials, "a token cannot be used over ssh: use an https URL, or a private key")
	}
	return r, nil
}

func (a *Auth) hasToken() bool { return a.Token != "" || a.BearerToken != "" || a.GitHubApp != nil }

func (a *Auth) hasBasic() bool { return a.Username != "" || a.Password != "" }
