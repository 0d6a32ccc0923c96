package compatibility_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/gittestserver"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// gitHost serves the repositories of the fixture's git server as a hosting service does: over HTTP, for private repositories only to clients
// with credentials, and over ssh.
type gitHost struct {
	http *httptest.Server
	ssh  *gittestserver.GitServer

	// knownHosts is the known_hosts line with the key of the ssh server.
	knownHosts string
	// privateKey is accepted by the ssh server. It is encrypted with keyPassphrase.
	privateKey string

	mu sync.Mutex
	// passwords has the passwords of private repositories, by path. The user name does not matter.
	passwords map[string]string
	// requests has the admitted requests by repository. held has the repositories that do not answer until their channel is closed.
	requests map[string][]gitRequest
	held     map[string]chan struct{}
}

// gitRequest is a request over HTTP.
type gitRequest struct {
	at time.Time
	// gaveUp reports whether the client did not wait for the answer. Such a client comes again sooner than otherwise.
	gaveUp bool
	// request identifies the request; it is only compared.
	request *http.Request
	// wants are the commits that the client asks for. It is nil for the list of references, with which every conversation begins.
	wants []string
}

// failureKey is the context key of the bool in which the proxy records a failed request.
type failureKey struct{}

// maxGitRequest is larger than any request of a client that asks for a commit, in bytes.
const maxGitRequest = 64 << 10

// keyPassphrase is the passphrase of the private key.
const keyPassphrase = "canary-of-a-passphrase"

func newGitHost(dir, backend, repositories string) (*gitHost, error) {
	h := &gitHost{passwords: map[string]string{}, requests: map[string][]gitRequest{}, held: map[string]chan struct{}{}}
	target, err := url.Parse(backend)
	if err != nil {
		return nil, err
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(response http.ResponseWriter, request *http.Request, _ error) {
		*request.Context().Value(failureKey{}).(*bool) = true
		response.WriteHeader(http.StatusBadGateway)
	}
	h.http = httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if h.admit(request) {
			failed := false
			proxy.ServeHTTP(response, request.WithContext(context.WithValue(request.Context(), failureKey{}, &failed)))
			if failed {
				h.abandon(request)
			}
			return
		}
		response.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(response, "who are you?", http.StatusUnauthorized)
	}))
	if err := h.createKey(); err != nil {
		return nil, err
	}
	return h, h.startSSH(filepath.Join(dir, "ssh"), repositories)
}

// createKey generates the encrypted private key.
func (h *gitHost) createKey() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte(keyPassphrase))
	if err != nil {
		return err
	}
	h.privateKey = string(pem.EncodeToMemory(block))
	return nil
}

func (h *gitHost) startSSH(dir, repositories string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	h.ssh = gittestserver.NewGitServer(repositories).KeyDir(dir)
	if err := h.ssh.ListenSSH(); err != nil {
		return fmt.Errorf("start the ssh server: %w", err)
	}
	go func() { _ = h.ssh.StartSSH() }() // it serves until it is stopped
	public, err := filepath.Glob(filepath.Join(dir, "*.pub"))
	if err != nil {
		return err
	}
	if len(public) == 0 {
		return errors.New("the ssh server has no public key")
	}
	content, err := os.ReadFile(public[0])
	if err != nil {
		return err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(content)
	if err != nil {
		return err
	}
	address, err := url.Parse(h.ssh.SSHAddress())
	if err != nil {
		return err
	}
	h.knownHosts = knownhosts.Line([]string{address.Host}, key)
	return nil
}

func (h *gitHost) stop() {
	h.http.Close()
	_ = h.ssh.StopSSH()
}

// admit records the request and reports whether it is allowed. A request for a held repository waits here.
func (h *gitHost) admit(request *http.Request) bool {
	repository, isRefs := strings.CutSuffix(request.URL.Path, "/info/refs")
	repository, isPack := strings.CutSuffix(repository, "/git-upload-pack")
	repository = strings.TrimPrefix(repository, "/")
	wants, err := wantsOf(request)
	if err != nil {
		return false
	}
	h.mu.Lock()
	if password, private := h.passwords[repository]; private {
		if _, given, _ := request.BasicAuth(); given != password && request.Header.Get("Authorization") != "Bearer "+password {
			h.mu.Unlock()
			return false
		}
	}
	if isRefs || isPack {
		h.requests[repository] = append(h.requests[repository], gitRequest{at: time.Now(), wants: wants, request: request})
	}
	held := h.held[repository]
	h.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-request.Context().Done():
		}
	}
	return true
}

// abandon records that the client did not wait for the answer. A client that disconnects in the middle of the answer does not count: it has
// read what it needs.
func (h *gitHost) abandon(request *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, requests := range h.requests {
		for i := range requests {
			if requests[i].request == request {
				requests[i].gaveUp = true
			}
		}
	}
}

// wantsOf returns the commits that a request asks for. The body can be read again afterwards.
func wantsOf(request *http.Request) ([]string, error) {
	if request.Method != http.MethodPost {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, maxGitRequest))
	if err != nil {
		return nil, err
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	var wants []string
	for line := range strings.Lines(string(body)) {
		if _, want, ok := strings.Cut(line, "want "); ok {
			wants = append(wants, strings.Fields(want)[0])
		}
	}
	return wants, nil
}

// protect makes the repository require the password from now on.
func (h *gitHost) protect(repository, password string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passwords[repository] = password
}

// hold keeps the repository from answering until release is called, and returns its traffic so far.
func (h *gitHost) hold(repository string) (before traffic, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := make(chan struct{})
	h.held[repository] = held
	return trafficOf(h.requests[repository]), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.held, repository)
		close(held)
	}
}

// traffic returns the HTTP requests for the repository.
func (h *gitHost) traffic(repository string) traffic {
	h.mu.Lock()
	defer h.mu.Unlock()
	return trafficOf(h.requests[repository])
}

// traffic is a summary of the requests for a repository.
type traffic struct {
	// polls are the times at which only the references were listed, to look for a new commit.
	polls []time.Time
	// checkouts are the commits that clients fetched.
	checkouts []string
}

// trafficOf separates a list of references that is the beginning of a checkout from one that only looks for a new commit.
func trafficOf(requests []gitRequest) (seen traffic) {
	for _, request := range requests {
		switch last := len(seen.polls) - 1; {
		case request.gaveUp:
		case request.wants == nil:
			seen.polls = append(seen.polls, request.at)
		case last >= 0:
			seen.polls = seen.polls[:last]
			fallthrough
		default:
			seen.checkouts = append(seen.checkouts, request.wants...)
		}
	}
	return seen
}
