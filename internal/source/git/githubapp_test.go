package git_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// gitHub is a stand-in for GitHub's API, the only server of these tests that cannot run here itself.
type gitHub struct {
	t         *testing.T
	key       *rsa.PublicKey
	exchanges atomic.Int32
	life      time.Duration
	fault     func(w http.ResponseWriter) bool
}

func (h *gitHub) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if h.fault != nil && h.fault(w) {
		return
	}
	token, err := jwt.ParseSigned(strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer "), []jose.SignatureAlgorithm{jose.RS256})
	var claims jwt.Claims
	if err != nil || token.Claims(h.key, &claims) != nil || claims.Issuer != "123" ||
		claims.ValidateWithLeeway(jwt.Expected{Time: time.Now()}, 0) != nil || claims.Expiry.Time().Sub(claims.IssuedAt.Time()) > 10*time.Minute {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if owner := strings.TrimPrefix(request.URL.Path, "/users/"); request.Method == http.MethodGet && owner == "ada/installation" {
		fmt.Fprint(w, `{"id": 456}`)
		return
	}
	if request.Method != http.MethodPost || request.URL.Path != "/app/installations/456/access_tokens" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.exchanges.Add(1)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"token": canary, "expires_at": time.Now().Add(h.life)})
}

// appKey is a private key as GitHub hands it out.
func appKey(t *testing.T) []byte {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})
}

// A tenant can name any address as that of the API. The tenant must not read through the controller what is there, and a redirect must not
// send the proof of the App elsewhere.
func TestOfAnswersToGitHubAppsOnlyTheStatusIsShown(t *testing.T) {
	const internal = "internal-words"
	key, other := appKey(t), "http://127.0.0.1:"+untouched(t)
	api := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var status int
		_, _ = fmt.Sscanf(request.URL.Path, "/%d/", &status)
		w.Header().Set("Location", other+"/"+internal)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-GitHub-Request-Id", internal)
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"message": %q, "token": 1, "id": %[1]q}`, internal)
	}))
	client := newClient(t, git.Options{Timeout: 10 * time.Second})
	for status, kind := range map[int]git.Kind{
		200: git.Unreachable, 201: git.Unreachable, 302: git.Unreachable, 307: git.Unreachable, 400: git.Unreachable, 401: git.AuthenticationFailed,
		403: git.AuthenticationFailed, 404: git.AuthenticationFailed, 422: git.Unreachable, 429: git.RateLimited, 500: git.Unreachable,
	} {
		for _, tenant := range []git.GitHubApp{{InstallationID: "456"}, {InstallationOwner: "ada"}} {
			tenant.AppID, tenant.PrivateKey, tenant.BaseURL = "123", key, fmt.Sprintf("%s/%d", api.URL, status)
			remote := git.Remote{URL: "https://git.invalid/repo", Auth: git.Auth{GitHubApp: &tenant}}
			message := resolveFails(t, client, remote, "main", kind).Message
			g := NewWithT(t)
			g.Expect(message).NotTo(ContainSubstring(internal))
			if status > 201 {
				g.Expect(message).To(ContainSubstring(fmt.Sprintf("(status %d)", status)))
			}
		}
	}
}

// What follows the address must not become a query or a fragment: otherwise a tenant could choose any path of any server.
func TestGitHubAppsCannotRequestAnyPath(t *testing.T) {
	key, requested := appKey(t), ""
	api := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		requested = request.RequestURI
		w.WriteHeader(http.StatusTeapot)
	}))
	client := newClient(t, git.Options{Timeout: 10 * time.Second})
	for _, end := range []string{"/secret?", "/secret?x=", "/secret#", "?", "#", "/secret%3f", "/secret%00", "/x/../secret?", "/secret;x"} {
		for _, app := range []git.GitHubApp{{InstallationID: "456"}, {InstallationOwner: "ada"}} {
			app.AppID, app.PrivateKey, app.BaseURL = "123", key, api.URL+end
			remote := git.Remote{URL: "https://git.invalid/repo", Auth: git.Auth{GitHubApp: &app}}
			message := resolveFails(t, client, remote, "main", git.InvalidCredentials).Message
			NewWithT(t).Expect(message).NotTo(ContainSubstring("418"))
		}
	}
	for _, owner := range []string{"..", "../../secret?", "a/b", "a#"} {
		app := git.GitHubApp{AppID: "123", PrivateKey: key, BaseURL: api.URL, InstallationOwner: owner}
		resolveFails(t, client, git.Remote{URL: "https://git.invalid/repo", Auth: git.Auth{GitHubApp: &app}}, "main", git.InvalidCredentials)
	}
	NewWithT(t).Expect(requested).To(BeEmpty())
}

func TestGitHubApp(t *testing.T) {
	g := NewWithT(t)
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	g.Expect(err).NotTo(HaveOccurred())
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	g.Expect(err).NotTo(HaveOccurred())
	keys := map[string][]byte{
		"PKCS#1": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)}),
		"PKCS#8": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
	root, _, sha := firstCommit(t)
	refusal := func(http.ResponseWriter) bool { return false }
	var mutex sync.Mutex
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		refuses := refusal
		mutex.Unlock()
		if !refuses(w) {
			protected("x-access-token", canary, backend(t, root)).ServeHTTP(w, r)
		}
	}))
	setup := func(t *testing.T, api *gitHub, key []byte) (*git.Client, git.Remote) {
		api.t, api.key = t, &private.PublicKey
		app := &git.GitHubApp{AppID: "123", InstallationID: "456", PrivateKey: key, BaseURL: serve(t, api).URL + "/"}
		return newClient(t, git.Options{Timeout: 5 * time.Second}), git.Remote{URL: server.URL + "/repo", Auth: git.Auth{GitHubApp: app}}
	}
	for name, key := range keys {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			api := &gitHub{life: time.Hour}
			client, remote := setup(t, api, key)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() {
					revision, err := client.Resolve(t.Context(), remote, "main")
					if err != nil || revision.SHA != sha {
						t.Errorf("%v %v", revision, err)
					}
				})
			}
			all.Wait()
			checkedOut(t, client, remote, sha)
			g.Expect(api.exchanges.Load()).To(Equal(int32(1)), "one token for all")
		})
	}
	t.Run("the installation of an owner", func(t *testing.T) {
		g := NewWithT(t)
		api := &gitHub{life: time.Hour}
		client, remote := setup(t, api, keys["PKCS#1"])
		app := remote.Auth.GitHubApp
		app.InstallationID, app.InstallationOwner = "", "ada"
		g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
		g.Expect(api.exchanges.Load()).To(Equal(int32(1)))
		app.InstallationOwner = "nobody"
		g.Expect(resolveFails(t, client, remote, "main", git.AuthenticationFailed).Message).To(ContainSubstring("no such installation"))
		app.BaseURL = "file:///etc"
		resolveFails(t, client, remote, "main", git.InvalidCredentials)
	})
	t.Run("a token is not used in its last five minutes", func(t *testing.T) {
		api := &gitHub{life: 4 * time.Minute}
		client, remote := setup(t, api, keys["PKCS#1"])
		for range 2 {
			_, err := client.Resolve(t.Context(), remote, "main")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		}
		NewWithT(t).Expect(api.exchanges.Load()).To(Equal(int32(2)))
	})
	refuse := func(status int, times int32) *atomic.Int32 {
		refused := &atomic.Int32{}
		mutex.Lock()
		defer mutex.Unlock()
		refusal = func(w http.ResponseWriter) bool {
			if refused.Add(1) > times {
				return false
			}
			w.WriteHeader(status)
			return true
		}
		return refused
	}
	for status, kind := range map[int]git.Kind{401: git.AuthenticationFailed, 403: git.AuthenticationFailed, 404: git.RepositoryNotFound} {
		t.Run(fmt.Sprintf("an old token that is refused with %d is forgotten", status), func(t *testing.T) {
			api := &gitHub{life: time.Hour}
			client, remote := setup(t, api, keys["PKCS#1"])
			client.ExpectTokens(0)
			refuse(status, 1)
			NewWithT(t).Expect(resolveFails(t, client, remote, "main", kind).Message).NotTo(ContainSubstring(canary))
			_, err = client.Resolve(t.Context(), remote, "main")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(api.exchanges.Load()).To(Equal(int32(2)))
		})
		t.Run(fmt.Sprintf("a new token that is refused with %d is sent again", status), func(t *testing.T) {
			g := NewWithT(t)
			api := &gitHub{life: time.Hour}
			client, remote := setup(t, api, keys["PKCS#1"])
			client.ExpectTokens(time.Hour, time.Millisecond, 2*time.Millisecond)
			refuse(status, 2)
			g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
			checkedOut(t, client, remote, sha)
			refused := refuse(status, 100)
			_, err := client.Resolve(t.Context(), remote, "main")
			g.Expect(err).To(And(HaveField("Kind", git.Unreachable), MatchError(git.ErrNewToken)))
			g.Expect(refused.Load()).To(Equal(int32(3)))
			g.Expect(api.exchanges.Load()).To(Equal(int32(1)), "it is the same token")
		})
	}
	refuse(0, 0)
	for name, tt := range map[string]struct {
		fault  func(w http.ResponseWriter) bool
		change func(*git.GitHubApp)
		kind   git.Kind
	}{
		"another App":          {nil, func(a *git.GitHubApp) { a.AppID = "9" }, git.AuthenticationFailed},
		"another installation": {nil, func(a *git.GitHubApp) { a.InstallationID = "9" }, git.AuthenticationFailed},
		"path in installation": {nil, func(a *git.GitHubApp) { a.InstallationID = "../456" }, git.InvalidCredentials},
		"no App":               {nil, func(a *git.GitHubApp) { a.AppID = "" }, git.InvalidCredentials},
		"no key":               {nil, func(a *git.GitHubApp) { a.PrivateKey = []byte(canary) }, git.InvalidCredentials},
		"rate limit": {func(w http.ResponseWriter) bool {
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(10*time.Minute).Unix()))
			w.WriteHeader(http.StatusForbidden)
			return true
		}, nil, git.RateLimited},
		"broken":  {func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusBadGateway); return true }, nil, git.Unreachable},
		"no JSON": {func(w http.ResponseWriter) bool { w.WriteHeader(http.StatusCreated); fmt.Fprint(w, "hi"); return true }, nil, git.Unreachable},
		"endless": {func(w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusCreated)
			for {
				if _, err := fmt.Fprint(w, strings.Repeat(" ", 4096)); err != nil {
					return true
				}
			}
		}, nil, git.Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			client, remote := setup(t, &gitHub{fault: tt.fault, life: time.Hour}, keys["PKCS#1"])
			if tt.change != nil {
				tt.change(remote.Auth.GitHubApp)
			}
			typed := resolveFails(t, client, remote, "main", tt.kind)
			NewWithT(t).Expect(typed.Message).NotTo(ContainSubstring(canary))
			if tt.kind == git.RateLimited {
				NewWithT(t).Expect(typed.RetryAfter).To(BeNumerically("~", 10*time.Minute, 5*time.Second))
			}
		})
	}
}
