package git

import (
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"github.com/stack-controller/stack-controller/internal/artifact/archive"
)

// Defaults of Options.
const (
	// DefaultTimeout bounds one conversation with a server about its refs.
	DefaultTimeout = 30 * time.Second

	// DefaultCheckoutTimeout bounds the download of one commit and the writing of its work tree.
	DefaultCheckoutTimeout = 2 * time.Minute
)

// Options configure a Client. The zero value works, except that ssh needs known hosts from somewhere.
type Options struct {
	// Timeout bounds everything that Resolve does. Zero is DefaultTimeout.
	Timeout time.Duration

	// CheckoutTimeout bounds everything that Checkout does, submodules included, and the look for an abbreviated SHA.
	// Zero is DefaultCheckoutTimeout.
	CheckoutTimeout time.Duration

	// KnownHosts are the controller's own known hosts, in the format of OpenSSH. A Remote's are looked at first.
	KnownHosts []byte

	// Limits bound what one commit may consist of: MaxDownloadSize the bytes that a server sends, MaxUnpackedSize the sum
	// in bytes of the files, MaxEntries the files and directories. Zero fields are the defaults of the archive package.
	Limits archive.Limits

	// Dir is where checkouts are kept until they are closed. It must exist; "" is the system's directory for temporary files.
	Dir string

	// UserAgent is sent to servers over HTTP, to tell their operators who asks. "" is "stack-controller".
	UserAgent string

	// GitHubAPI gives the address of the API of the GitHub that serves repositories on the host. Nil is what GitHub
	// documents: https://api.github.com for github.com, https://HOST/api/v3 for others.
	GitHubAPI func(host string) string

	// Log receives details that help a developer; never a credential.
	Log logr.Logger
}

// Client talks to git servers. It is safe for concurrent use.
type Client struct {
	options   Options
	transport *http.Transport
	apps      *appTokens
}

// NewClient creates a client. The proxy variables of the environment are read now.
func NewClient(options Options) *Client {
	if options.Timeout <= 0 {
		options.Timeout = DefaultTimeout
	}
	if options.CheckoutTimeout <= 0 {
		options.CheckoutTimeout = DefaultCheckoutTimeout
	}
	if options.UserAgent == "" {
		options.UserAgent = "stack-controller"
	}
	if options.GitHubAPI == nil {
		options.GitHubAPI = gitHubAPI
	}
	options.Limits = options.Limits.WithDefaults()
	transport := newTransport()
	transport.Proxy = environmentProxy()
	return &Client{options: options, transport: transport, apps: newAppTokens()}
}
