package git_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/gittestserver"
	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

const canary = "c4nary-s3cret-value"

// recorder remembers the Authorization headers that a server gets.
type recorder struct {
	mutex   sync.Mutex
	headers []string
	next    http.Handler
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mutex.Lock()
	r.headers = append(r.headers, request.Header.Get("Authorization"))
	r.mutex.Unlock()
	r.next.ServeHTTP(w, request)
}

func (r *recorder) seen() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]string(nil), r.headers...)
}

// protected asks for basic authentication.
func protected(username, password string, next http.Handler) http.Handler {
	return authorized("Basic "+base64.StdEncoding.EncodeToString([]byte(username+":"+password)), next)
}

// authorized accepts requests that have the header, and answers others with what they sent.
func authorized(header string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if sent := request.Header.Get("Authorization"); sent != header {
			_, p, _ := request.BasicAuth()
			w.Header().Set("WWW-Authenticate", "Basic")
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, "remote: you sent %s and %s\x1b[31m", sent, p)
			return
		}
		next.ServeHTTP(w, request)
	})
}

func TestCredentialsOverHTTP(t *testing.T) {
	root, _, sha := firstCommit(t)
	for _, tt := range []struct {
		name, username, password string
		auth                     git.Auth
		userinfo                 string
	}{
		{"token", "git", canary, git.Auth{Token: canary}, ""},
		{"token with a line feed", "git", canary, git.Auth{Token: canary + "\n"}, ""},
		{"token with a user name", "x-token-auth", canary, git.Auth{Token: canary, Username: "x-token-auth"}, ""},
		{"token counts before basic", "ada", canary, git.Auth{Token: canary, Username: "ada", Password: "another"}, ""},
		{"basic", "ada", canary, git.Auth{Username: "ada", Password: canary}, ""},
		{"token as the user name", canary, "", git.Auth{Username: canary}, ""},
		{"in the URL", "ada", canary, git.Auth{}, "ada:" + canary + "@"},
		{"auth before the URL", "ada", canary, git.Auth{Username: "ada", Password: canary}, "bob:other@"},
		{"bearer token", "", "Bearer " + canary, git.Auth{BearerToken: canary + "\n"}, ""},
		{"with a private key that https has no use for", "git", canary, git.Auth{Token: canary, PrivateKey: []byte("key")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			header, scheme := tt.password, "Bearer"
			if tt.auth.BearerToken == "" {
				header, scheme = "Basic "+base64.StdEncoding.EncodeToString([]byte(tt.username+":"+tt.password)), "Basic"
			}
			server := serve(t, authorized(header, backend(t, root)))
			client := newClient(t, git.Options{})
			remote := git.Remote{URL: strings.Replace(server.URL, "http://", "http://"+tt.userinfo, 1) + "/repo", Auth: tt.auth}
			g.Expect(client.Resolve(t.Context(), remote, "main")).To(Equal(git.Revision{SHA: sha, Ref: "refs/heads/main"}))
			checkedOut(t, client, remote, sha)

			wrong := serve(t, protected("nobody", "else", backend(t, root)))
			remote.URL = strings.Replace(remote.URL, strings.TrimPrefix(server.URL, "http://"), strings.TrimPrefix(wrong.URL, "http://"), 1)
			message := resolveFails(t, client, remote, "main", git.AuthenticationFailed).Message
			g.Expect(message).To(ContainSubstring("remote: you sent " + scheme + " ***"))
			g.Expect(message).NotTo(ContainSubstring(canary))
			g.Expect(message).NotTo(ContainSubstring("\x1b"))
		})
	}
}

func TestAnotherImplementationOfTheServer(t *testing.T) {
	g := NewWithT(t)
	server := gittestserver.NewGitServer(t.TempDir()).Auth("ada", canary)
	requests := 0
	server.AddHTTPMiddlewares(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { requests++; next.ServeHTTP(w, r) })
	})
	o := newOrigin(t, server.Root(), "repo")
	sha := o.commit("first")
	g.Expect(server.StartHTTP()).To(Succeed())
	t.Cleanup(server.StopHTTP)
	client := newClient(t, git.Options{})
	remote := git.Remote{URL: server.HTTPAddress() + "/repo", Auth: git.Auth{Username: "ada", Password: canary}}
	g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
	g.Expect(requests).To(Equal(1))
	checkedOut(t, client, remote, sha)
	g.Expect(requests).To(Equal(3))
	remote.Auth.Password = "wrong"
	resolveFails(t, client, remote, "main", git.AuthenticationFailed)
}

func TestCredentialsThatTheURLCannotCarry(t *testing.T) {
	client := newClient(t, git.Options{})
	for url, auth := range map[string]git.Auth{
		"https://127.0.0.1:1/repo":     {PrivateKey: []byte(canary)},
		"ssh://git@127.0.0.1:1/repo":   {Token: canary},
		"git@127.0.0.1:repo":           {},
		"ssh://127.0.0.1:1/repo":       {PrivateKey: []byte(canary)},
		"https://127.0.0.1:1/repo/two": {Token: canary + "\nX-Header: injected"},
		"https://127.0.0.1:1/repo/to":  {BearerToken: canary + "\r\nX-Header: injected"},
	} {
		NewWithT(t).Expect(resolveFails(t, client, git.Remote{URL: url, Auth: auth}, "main", git.InvalidCredentials).Message).NotTo(ContainSubstring(canary))
	}
}

func TestWhatServersAnswer(t *testing.T) {
	suite.WithoutRaceDetector(t)
	for _, tt := range []struct {
		name string
		kind git.Kind
		say  func(w http.ResponseWriter)
	}{
		{"not found", git.RepositoryNotFound, func(w http.ResponseWriter) { http.Error(w, "Repository not found.", http.StatusNotFound) }},
		{"forbidden", git.AuthenticationFailed, func(w http.ResponseWriter) { http.Error(w, "no", http.StatusForbidden) }},
		{"rate limit", git.RateLimited, func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "120")
			http.Error(w, "slow down", http.StatusTooManyRequests)
		}},
		{"broken", git.Unreachable, func(w http.ResponseWriter) { http.Error(w, "oops", http.StatusBadGateway) }},
		{"a login page", git.RepositoryNotFound, func(w http.ResponseWriter) { fmt.Fprint(w, "<html>sign in</html>") }},
		{"not git", git.Unreachable, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, "hello, this is not git")
		}},
		{"cut off", git.Unreachable, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, "001e# service=git-upload-pack\n0000003eaaaa")
		}},
		{"error packet", git.RepositoryNotFound, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, "001e# service=git-upload-pack\n00000021ERR Repository does not exist")
		}},
		{"endless refs", git.TooLarge, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprint(w, "001e# service=git-upload-pack\n0000")
			for n := 0; ; n++ {
				if _, err := fmt.Fprintf(w, "0041%040d refs/heads/%08d\n", n, n); err != nil {
					return
				}
			}
		}},
		{"endless headers", git.Unreachable, func(w http.ResponseWriter) {
			conn, _, err := http.NewResponseController(w).Hijack()
			for err == nil {
				_, err = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Header: %s\r\n", strings.Repeat("x", 4096))
			}
		}},
		{"silence", git.Timeout, func(http.ResponseWriter) { time.Sleep(700 * time.Millisecond) }},
		{"drop by drop", git.Timeout, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			for _, b := range "001e# service=git-upload-pack\n0000" {
				fmt.Fprintf(w, "%c", b)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { tt.say(w) }))
			timeout := time.Minute
			if tt.kind == git.Timeout {
				timeout = 500 * time.Millisecond
			}
			client := newClient(t, git.Options{Timeout: timeout, CheckoutTimeout: timeout})
			remote := git.Remote{URL: server.URL + "/org/repo", Auth: git.Auth{Token: canary}}
			started := time.Now()
			typed := resolveFails(t, client, remote, "main", tt.kind)
			g.Expect(time.Since(started)).To(BeNumerically("<", 50*time.Second))
			g.Expect(typed.Message).To(ContainSubstring(strings.TrimPrefix(server.URL, "http://") + "/org/repo"))
			if tt.kind == git.RateLimited {
				g.Expect(typed.RetryAfter).To(Equal(2 * time.Minute))
			}
			checkoutFails(t, client, remote, strings.Repeat("1", 40), tt.kind)
		})
	}
}

func TestUnreachableAndCancelled(t *testing.T) {
	g := NewWithT(t)
	client := newClient(t, git.Options{})
	g.Expect(resolveFails(t, client, git.Remote{URL: "http://127.0.0.1:1/repo"}, "main", git.Unreachable).Message).To(ContainSubstring("connection refused"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := client.Resolve(ctx, git.Remote{URL: "http://127.0.0.1:1/repo"}, "main")
	g.Expect(errors.Is(err, context.Canceled)).To(BeTrue())
}

func TestRedirectsCarryNoCredentialsToOtherHosts(t *testing.T) {
	g := NewWithT(t)
	root, _, sha := firstCommit(t)
	other := &recorder{next: backend(t, root)}
	elsewhere := serve(t, other)
	home := &recorder{}
	home.next = http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		switch {
		case strings.HasPrefix(request.URL.Path, "/elsewhere/"):
			http.Redirect(w, request, elsewhere.URL+"/repo"+strings.TrimPrefix(request.URL.RequestURI(), "/elsewhere"), http.StatusFound)
		case strings.HasPrefix(request.URL.Path, "/renamed/"):
			http.Redirect(w, request, "/repo"+strings.TrimPrefix(request.URL.RequestURI(), "/renamed"), http.StatusMovedPermanently)
		case strings.HasPrefix(request.URL.Path, "/loop/"):
			http.Redirect(w, request, request.URL.RequestURI(), http.StatusFound)
		case strings.HasPrefix(request.URL.Path, "/file/"):
			http.Redirect(w, request, "file:///etc/passwd", http.StatusFound)
		default:
			protected("git", canary, backend(t, root)).ServeHTTP(w, request)
		}
	})
	server := serve(t, home)
	client := newClient(t, git.Options{})
	remote := func(path string) git.Remote { return git.Remote{URL: server.URL + path, Auth: git.Auth{Token: canary}} }

	checkedOut(t, client, remote("/renamed"), sha)
	g.Expect(home.seen()).To(HaveLen(3))
	g.Expect(home.seen()).NotTo(ContainElement(""), "the same host gets the credentials")

	checkedOut(t, client, remote("/elsewhere"), sha)
	g.Expect(other.seen()).To(Equal([]string{"", ""}), "another host does not")
	for path, kind := range map[string]git.Kind{"/loop": git.Unreachable, "/file": git.Unreachable} {
		resolveFails(t, client, remote(path), "main", kind)
	}
}

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	a.certificate, _ = x509.ParseCertificate(der)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) issue(t *testing.T) (certificate, key []byte) {
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	encoded, _ := x509.MarshalECPrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

func TestPrivateCAAndClientCertificate(t *testing.T) {
	g := NewWithT(t)
	root, _, sha := firstCommit(t)
	ca, stranger := newAuthority(t), newAuthority(t)
	certificate, key := ca.issue(t)
	pair, err := tls.X509KeyPair(certificate, key)
	g.Expect(err).NotTo(HaveOccurred())
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	server := httptest.NewUnstartedServer(backend(t, root))
	server.Config.ErrorLog = discardLog()
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	client := newClient(t, git.Options{})

	remote := git.Remote{URL: server.URL + "/repo", CA: ca.pem, ClientCert: certificate, ClientKey: key}
	g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
	checkedOut(t, client, remote, sha)

	foreign, foreignKey := stranger.issue(t)
	for name, tt := range map[string]struct {
		change func(*git.Remote)
		kind   git.Kind
	}{
		"without the CA":            {func(r *git.Remote) { r.CA = nil }, git.CertificateInvalid},
		"with another CA":           {func(r *git.Remote) { r.CA = stranger.pem }, git.CertificateInvalid},
		"without a certificate":     {func(r *git.Remote) { r.ClientCert, r.ClientKey = nil, nil }, git.CertificateInvalid},
		"with another certificate":  {func(r *git.Remote) { r.ClientCert, r.ClientKey = foreign, foreignKey }, git.CertificateInvalid},
		"with the key of another":   {func(r *git.Remote) { r.ClientKey = foreignKey }, git.InvalidCredentials},
		"without the key":           {func(r *git.Remote) { r.ClientKey = nil }, git.InvalidCredentials},
		"with a CA that is no such": {func(r *git.Remote) { r.CA = []byte("CA") }, git.InvalidCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			changed := remote
			tt.change(&changed)
			resolveFails(t, client, changed, "main", tt.kind)
		})
	}
}
