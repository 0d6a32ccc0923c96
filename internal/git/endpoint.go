package git

import (
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"
)

// maxURLLength bounds a URL in bytes.
const maxURLLength = 4096

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
	port     string // "" for the scheme's own
	path     string // for ssh as the server shall see it; for http without a slash at the end
	scp      bool   // the URL has the form user@host:path
}

// CheckURL returns an *Error of kind InvalidURL for what cannot be the URL of a repository. It asks nobody.
func CheckURL(raw string) error {
	_, err := parseEndpoint(raw)
	return err
}

// parseEndpoint accepts http, https, ssh and the form user@host:path. Everything else is an InvalidURL: file URLs and paths
// would let a tenant read the controller's disk, and the git protocol proves neither the server nor the content.
func parseEndpoint(raw string) (endpoint, error) {
	switch {
	case raw == "":
		return endpoint{}, invalidURL("the URL of the git repository is empty")
	case len(raw) > maxURLLength:
		return endpoint{}, invalidURL("the URL of the git repository has more than " + strconv.Itoa(maxURLLength) + " bytes")
	case strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar }):
		return endpoint{}, invalidURL("the URL of the git repository has a space, a control character or invalid UTF-8 in it")
	case strings.Contains(raw, "://"):
		return parseURL(raw)
	default:
		return parseSCP(raw)
	}
}

func parseURL(raw string) (endpoint, error) {
	parsed, err := url.Parse(raw)
	if err != nil {
		// The error of the parser quotes the URL, with the password that may be in it.
		return endpoint{}, invalidURL("the URL of the git repository cannot be parsed")
	}
	e := endpoint{scheme: scheme(strings.ToLower(parsed.Scheme)), host: strings.ToLower(parsed.Hostname()), port: parsed.Port(), path: parsed.Path}
	switch e.scheme {
	case schemeHTTP, schemeHTTPS, schemeSSH:
	case "file":
		return endpoint{}, invalidURL("file:// is not accepted as the URL of a git repository: use http, https or ssh")
	default:
		return endpoint{}, invalidURL("the URL of the git repository has another scheme than http, https or ssh")
	}
	if parsed.User != nil {
		e.user = parsed.User.Username()
		e.password, _ = parsed.User.Password()
	}
	if parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" {
		return endpoint{}, invalidURL("the URL of the git repository has a query or a fragment")
	}
	if e.scheme != schemeSSH {
		e.path = strings.TrimRight(e.path, "/")
	}
	return e.validated()
}

// parseSCP parses user@host:path. Without a user it is what the server calls git.
func parseSCP(raw string) (endpoint, error) {
	e := endpoint{scheme: schemeSSH, scp: true}
	rest := raw
	if user, after, found := strings.Cut(rest, "@"); found && !strings.ContainsAny(user, ":/") {
		e.user, rest = user, after
	}
	if after, bracketed := strings.CutPrefix(rest, "["); bracketed {
		host, after, found := strings.Cut(after, "]:")
		if !found {
			return endpoint{}, notRemote()
		}
		e.host, e.path = host, after
	} else {
		host, after, found := strings.Cut(rest, ":")
		// One letter is a drive of Windows, a slash before the colon is a path.
		if !found || len(host) < 2 || strings.ContainsAny(host, `/\`) {
			return endpoint{}, notRemote()
		}
		e.host, e.path = host, after
	}
	e.host = strings.ToLower(e.host)
	if strings.HasPrefix(e.path, ":") {
		return endpoint{}, notRemote() // a transport of git such as ext::command
	}
	switch e.host {
	case "file", "ftp", "git", "http", "https", "ssh":
		return endpoint{}, notRemote() // a scheme without its slashes
	}
	return e.validated()
}

func (e endpoint) validated() (endpoint, error) {
	if !validHost(e.host) {
		return endpoint{}, invalidURL("the URL of the git repository has no valid host")
	}
	if e.port != "" {
		if number, err := strconv.ParseUint(e.port, 10, 16); err != nil || number == 0 {
			return endpoint{}, invalidURL("the URL of the git repository has no valid port")
		}
	}
	if strings.Trim(e.path, "/") == "" {
		return endpoint{}, invalidURL("the URL of the git repository has no path")
	}
	if strings.ContainsFunc(e.path, unicode.IsControl) || strings.HasPrefix(e.path, "-") {
		return endpoint{}, invalidURL("the path in the URL of the git repository is not acceptable")
	}
	return e, nil
}

// validHost accepts names and addresses.
func validHost(host string) bool {
	if net.ParseIP(strings.SplitN(host, "%", 2)[0]) != nil {
		return true
	}
	if host == "" || len(host) > 253 || strings.HasPrefix(host, "-") || strings.Contains(host, "..") || strings.HasPrefix(host, ".") {
		return false
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// address is host and port to connect to.
func (e endpoint) address() string {
	port := e.port
	if port == "" {
		port = map[scheme]string{schemeHTTP: "80", schemeHTTPS: "443", schemeSSH: "22"}[e.scheme]
	}
	return net.JoinHostPort(e.host, port)
}

// hostPort is host and port as they are in a URL.
func (e endpoint) hostPort() string {
	switch {
	case e.port != "":
		return net.JoinHostPort(e.host, e.port)
	case strings.Contains(e.host, ":"):
		return "[" + e.host + "]"
	default:
		return e.host
	}
}

// display names the repository for people, without credentials.
func (e endpoint) display() string {
	return e.hostPort() + "/" + strings.TrimLeft(e.path, "/")
}

// url is the address for HTTP, without credentials.
func (e endpoint) url() *url.URL {
	return &url.URL{Scheme: string(e.scheme), Host: e.hostPort(), Path: e.path}
}

// sameHost says whether credentials for e may be used for the other: the same host over a transport that is no worse.
func (e endpoint) sameHost(other endpoint) bool {
	if e.host != other.host {
		return false
	}
	if e.scheme == other.scheme {
		return e.address() == other.address()
	}
	return e.scheme == schemeHTTP && other.scheme == schemeHTTPS && (e.port == "" || e.port == "80") &&
		(other.port == "" || other.port == "443")
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
		return scpUser(e.user) + bracketed(e.host) + ":" + rooted, nil
	}
	joined := endpoint{scheme: e.scheme, host: e.host, port: e.port, path: rooted}.url()
	if e.scheme == schemeSSH && e.user != "" {
		joined.User = url.User(e.user)
	}
	return joined.String(), nil
}

func scpUser(user string) string {
	if user == "" {
		return ""
	}
	return user + "@"
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

func invalidURL(message string) *Error { return &Error{Kind: InvalidURL, Message: message} }

func notRemote() *Error {
	return invalidURL("the URL of the git repository is not one of a remote repository: use http, https, ssh or user@host:path")
}
