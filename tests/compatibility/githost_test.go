package compatibility_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fluxcd/pkg/gittestserver"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// gitHost shows the repositories of the stage's git server as a hosting service does: over HTTP to those only who have
// credentials, and over ssh.
type gitHost struct {
	http *httptest.Server
	ssh  *gittestserver.GitServer

	// knownHosts is the line with the key of the ssh server.
	knownHosts string
	// privateKey is accepted by the ssh server, and encrypted with keyPassphrase.
	privateKey string

	mu sync.Mutex
	// passwords are those of repositories, by path; user names do not matter.
	passwords map[string]string
	// refs and packs count the looks at references and the downloads of commits, by repository.
	refs, packs map[string]int
}

// keyPassphrase is that of the private key.
const keyPassphrase = "canary-of-a-passphrase"

func newGitHost(dir, backend, repositories string) (*gitHost, error) {
	h := &gitHost{passwords: map[string]string{}, refs: map[string]int{}, packs: map[string]int{}}
	target, err := url.Parse(backend)
	if err != nil {
		return nil, err
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	h.http = httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if h.admit(request) {
			proxy.ServeHTTP(response, request)
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

// createKey makes an encrypted private key.
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
	go func() { _ = h.ssh.StartSSH() }() // until it is stopped
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

// admit counts the request, and tells whether it may go on.
func (h *gitHost) admit(request *http.Request) bool {
	repository, isRefs := strings.CutSuffix(request.URL.Path, "/info/refs")
	repository, isPack := strings.CutSuffix(repository, "/git-upload-pack")
	repository = strings.TrimPrefix(repository, "/")
	h.mu.Lock()
	defer h.mu.Unlock()
	if password, private := h.passwords[repository]; private {
		if _, given, _ := request.BasicAuth(); given != password && request.Header.Get("Authorization") != "Bearer "+password {
			return false
		}
	}
	if isRefs {
		h.refs[repository]++
	}
	if isPack {
		h.packs[repository]++
	}
	return true
}

// protect makes the repository one that needs the password, from now on.
func (h *gitHost) protect(repository, password string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passwords[repository] = password
}

// counted returns how often references were looked at, and commits downloaded.
func (h *gitHost) counted(repository string) (refs, packs int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refs[repository], h.packs[repository]
}
