package git

import (
	"cmp"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"
)

const (
	// maxURLLength bounds a URL in bytes.
	maxURLLength = 4096
	// maxHost bounds the name or address of a host in bytes, as DNS does.
	maxHost = 253
	// maxElement bounds in bytes an element of a path that is appended to a URL.
	maxElement = 100
)

// scheme is how a repository is reached.
type scheme string

const (
	schemeHTTP  scheme = "http"
	schemeHTTPS scheme = "https"
	schemeSSH   scheme = "ssh"
)

// endpoint is the address of a repository, in its parts.
type endpoint struct {
	scheme   scheme
	user     string
	password string
	host     string // without brackets
	port     string // "" for the default port of the scheme
	path     string // for ssh as it is sent to the server; for http without a slash at the end
	scp      bool   // the URL has the form user@host:path
}

// CheckURL returns an *Error of kind InvalidURL if raw cannot be the URL of a repository. It sends no request.
func CheckURL(raw string) error {
	_, err := parseEndpoint(raw)
	return err
}

// parseEndpoint accepts http, https, ssh and the form user@host:path. Everything else is an InvalidURL: file URLs and paths would let a
// tenant read the controller's disk, and the git protocol authenticates neither the server nor the content.
func parseEndpoint(raw string) (endpoint, error) {
	switch {
	case raw == "":
		return endpoint{}, invalidURL("the URL of the git repository is empty")
	case len(raw) > maxURLLength:
		return endpoint{}, invalidURL("the URL of the git repository has more than " + strconv.Itoa(maxURLLength) + " bytes")
	case strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar }):
		return endpoint{}, invalidURL("the URL of the git repository has a space, a control character or invalid UTF-8 in it")
	}
	var e endpoint
	var err error
	if strings.Contains(raw, "://") {
		e, err = parseURL(raw)
	} else {
		e, err = parseSCP(raw)
	}
	switch {
	case err != nil:
		return endpoint{}, err
	case !validHost(e.host):
		return endpoint{}, invalidURL("the URL of the git repository has no valid host")
	case !validPort(e.port):
		return endpoint{}, invalidURL("the URL of the git repository has no valid port")
	case strings.Trim(e.path, "/") == "":
		return endpoint{}, invalidURL("the URL of the git repository has no path")
	case strings.ContainsFunc(e.path, unicode.IsControl) || strings.HasPrefix(e.path, "-"):
		return endpoint{}, invalidURL("the path in the URL of the git repository is not acceptable")
	}
	return e, nil
}

func parseURL(raw string) (endpoint, error) {
	parsed, err := url.Parse(raw)
	if err != nil {
		// The error of the parser quotes the URL, with the password that may be in it.
		return endpoint{}, invalidURL("the URL of the git repository cannot be parsed")
	}
	e := endpointOf(parsed)
	e.user = parsed.User.Username()
	e.password, _ = parsed.User.Password()
	switch e.scheme {
	case schemeHTTP, schemeHTTPS:
		e.path = strings.TrimRight(e.path, "/")
	case schemeSSH:
	case "file":
		return endpoint{}, invalidURL("file:// is not accepted as the URL of a git repository: use http, https or ssh")
	default:
		return endpoint{}, invalidURL("the URL of the git repository has another scheme than http, https or ssh")
	}
	if parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" {
		return endpoint{}, invalidURL("the URL of the git repository has a query or a fragment")
	}
	return e, nil
}

func endpointOf(u *url.URL) endpoint {
	return endpoint{scheme: scheme(strings.ToLower(u.Scheme)), host: strings.ToLower(u.Hostname()), port: u.Port(), path: u.Path}
}

// parseSCP parses user@host:path. The user may be missing; sshUser has the default.
func parseSCP(raw string) (endpoint, error) {
	e := endpoint{scheme: schemeSSH, scp: true}
	rest := raw
	if user, after, found := strings.Cut(rest, "@"); found && !strings.ContainsAny(user, ":/") {
		e.user, rest = user, after
	}
	host, repository, found := strings.Cut(rest, ":")
	if after, bracketed := strings.CutPrefix(rest, "["); bracketed {
		host, repository, found = strings.Cut(after, "]:")
	} else if len(host) < 2 || strings.ContainsAny(host, `/\`) {
		found = false // one letter is a drive of Windows; with a slash before the colon it is a path
	}
	e.host, e.path = strings.ToLower(host), repository
	switch e.host {
	case "file", "ftp", "git", "http", "https", "ssh":
		found = false // a scheme without its slashes
	}
	if !found || strings.HasPrefix(e.path, ":") { // a transport of git such as ext::command
		return endpoint{}, invalidURL("the URL of the git repository is not one of a remote repository: use http, https, ssh or user@host:path")
	}
	return e, nil
}

// validPort accepts "" and the numbers of ports.
func validPort(port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && number > 0
}

// parseBase parses the address of an API, to which appendPath adds the path of a request. A tenant chooses a server and the beginning of
// the path with it, and nothing else: the result must not be another path. So what servers or proxies do not read as a part of the path, or
// read in several ways, is an error: a query, a fragment, encoded characters, empty elements, "." and "..".
func parseBase(raw string) (endpoint, error) {
	invalid := invalidURL("not a URL such as https://github.example.com/api/v3")
	if len(raw) > maxURLLength || strings.ContainsAny(raw, `?#%\`) {
		return endpoint{}, invalid
	}
	parsed, err := url.Parse(raw)
	if err != nil || parsed.User != nil {
		return endpoint{}, invalid
	}
	e := endpointOf(parsed)
	e.path = strings.TrimSuffix(e.path, "/")
	if e.scheme != schemeHTTP && e.scheme != schemeHTTPS || !validHost(e.host) || !validPort(e.port) ||
		e.path != "" && path.Clean(e.path) != e.path || strings.Trim(e.path, pathCharacters) != "" {
		return endpoint{}, invalid
	}
	return e, nil
}

// pathCharacters are the characters that stand for themselves in every path.
const pathCharacters = "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// appendPath returns the address of something below the base. An element that is not a name is an error.
func (e endpoint) appendPath(elements ...string) (*url.URL, error) {
	for _, element := range elements {
		if element == "" || len(element) > maxElement || strings.Trim(element, ".") == "" || strings.Trim(element, pathCharacters[1:]) != "" {
			return nil, invalidURL("not a name")
		}
	}
	return e.url().JoinPath(elements...), nil
}

// validHost accepts names and addresses.
func validHost(host string) bool {
	address, _, _ := strings.Cut(host, "%")
	switch {
	case host == "" || len(host) > maxHost:
		return false
	case net.ParseIP(address) != nil:
		return true
	}
	return !strings.HasPrefix(host, "-") && !strings.Contains("."+host, "..") &&
		strings.Trim(host, "-._0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// address is host and port to connect to.
func (e endpoint) address() string {
	ports := map[scheme]string{schemeHTTP: "80", schemeHTTPS: "443", schemeSSH: "22", "socks5": "1080", "socks5h": "1080"}
	return net.JoinHostPort(e.host, cmp.Or(e.port, ports[e.scheme]))
}

// hostPort is host and port as they are in a URL.
func (e endpoint) hostPort() string {
	if e.port != "" {
		return net.JoinHostPort(e.host, e.port)
	}
	return bracketed(e.host)
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// display names the repository for people, without credentials.
func (e endpoint) display() string {
	return e.hostPort() + "/" + strings.TrimLeft(e.path, "/")
}

// url is the address for HTTP, without credentials.
func (e endpoint) url() *url.URL {
	return &url.URL{Scheme: string(e.scheme), Host: e.hostPort(), Path: e.path}
}

// sameHost reports whether credentials for e may be used for the other endpoint: it has the same host and port, or it has https instead of
// http, each on its default port.
func (e endpoint) sameHost(other endpoint) bool {
	if e.host != other.host {
		return false
	}
	if e.scheme == other.scheme {
		return e.address() == other.address()
	}
	return e.scheme == schemeHTTP && other.scheme == schemeHTTPS && e.ownPort() && other.ownPort()
}

// sharesCredentials reports whether a submodule may have the credentials of the repository it is in: sameHost is true, or both are on the
// same host, one over ssh and the other over https, each on its default port.
func (e endpoint) sharesCredentials(other endpoint) bool {
	return e.sameHost(other) || e.host == other.host && e.scheme != schemeHTTP && other.scheme != schemeHTTP && e.ownPort() && other.ownPort()
}

// ownPort reports whether the port is the default port of the scheme.
func (e endpoint) ownPort() bool {
	withoutPort := e
	withoutPort.port = ""
	return e.address() == withoutPort.address()
}

// join resolves the relative URL of a submodule, which starts with ./ or ../, as git does.
func (e endpoint) join(relative string) (string, error) {
	rooted := path.Clean("/" + e.path)
	for part := range strings.SplitSeq(relative, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			rooted = path.Join(rooted, part)
		case rooted == "/":
			return "", invalidURL("the relative URL leaves the server")
		default:
			rooted = path.Dir(rooted)
		}
	}
	if e.scp {
		if !strings.HasPrefix(e.path, "/") {
			rooted = strings.TrimPrefix(rooted, "/")
		}
		return strings.TrimPrefix(e.user+"@", "@") + bracketed(e.host) + ":" + rooted, nil
	}
	joined := endpoint{scheme: e.scheme, host: e.host, port: e.port, path: rooted}.url()
	if e.scheme == schemeSSH && e.user != "" {
		joined.User = url.User(e.user)
	}
	return joined.String(), nil
}

func invalidURL(message string) *Error { return &Error{Kind: InvalidURL, Message: message} }
