package git_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// internalWords are what only a server says that a tenant cannot reach.
const internalWords = "internal-words"

// failsQuietly resolves a ref. The error must not have the words of the server, except for the log.
func failsQuietly(t *testing.T, client *git.Client, remote git.Remote, kind git.Kind, says string) (detail string) {
	t.Helper()
	_, err := client.Resolve(t.Context(), remote, "main")
	g := NewWithT(t)
	message := expectKind(t, err, kind).Message
	g.Expect(message).To(ContainSubstring(says))
	g.Expect(message).NotTo(Or(ContainSubstring("nternal-w"), ContainSubstring("10.99.88.77")))
	var typed *git.Error
	g.Expect(errors.As(err, &typed)).To(BeTrue())
	g.Expect(len(typed.Detail)).To(BeNumerically("<=", 200))
	return typed.Detail
}

// certificateOf has the names of an internal server.
func (a *authority) certificateOf(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: internalWords, Organization: []string{internalWords}},
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{internalWords + ".corp"}, IPAddresses: []net.IP{net.IPv4(10, 99, 88, 77)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if change != nil {
		change(template)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}

// A tenant chooses the host of the URL, and where the server there redirects to.
func TestMessagesHaveNothingOfACertificate(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	known := func(template *x509.Certificate) { template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }
	for name, tt := range map[string]struct {
		certificate tls.Certificate
		says        string
		detail      string
	}{
		"of another name":         {ca.certificateOf(t, nil), "it is for another name", "10.99.88.77"},
		"of an unknown authority": {stranger.certificateOf(t, known), "no trusted authority has issued it", "x509"},
		"that has expired": {ca.certificateOf(t, func(template *x509.Certificate) {
			known(template)
			template.NotBefore, template.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}), "it has expired", "x509"},
		"for another purpose": {ca.certificateOf(t, func(template *x509.Certificate) {
			known(template)
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}), "it is not valid", "x509"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ErrorLog = discardLog()
			server.TLS = &tls.Config{Certificates: []tls.Certificate{tt.certificate}}
			server.StartTLS()
			t.Cleanup(server.Close)
			redirect := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				http.Redirect(w, request, server.URL+request.URL.RequestURI(), http.StatusFound)
			}))
			app := &git.GitHubApp{AppID: "123", InstallationID: "456", PrivateKey: appKey(t), BaseURL: server.URL}
			client := newClient(t, git.Options{Timeout: 20 * time.Second})
			for _, remote := range []git.Remote{
				{URL: server.URL + "/repo"}, {URL: redirect.URL + "/repo"}, {URL: server.URL + "/repo", Auth: git.Auth{Token: canary}},
				{URL: "https://git.invalid/repo", Auth: git.Auth{GitHubApp: app}},
			} {
				remote.CA = ca.pem
				detail := failsQuietly(t, client, remote, git.CertificateInvalid, "the server's certificate is not trusted: "+tt.says)
				NewWithT(t).Expect(detail).To(ContainSubstring(tt.detail))
			}
		})
	}
}

func TestMessagesHaveNothingOfAProxy(t *testing.T) {
	for answer, tt := range map[string]struct {
		kind git.Kind
		says string
	}{
		"HTTP/1.1 502 " + internalWords + "\r\nX-Error: " + internalWords + "\r\n\r\n" + internalWords: {git.Unreachable, "the proxy answers with status 502"},
		"HTTP/1.1 407 " + internalWords + "\r\n\r\n":                                                   {git.AuthenticationFailed, "the proxy does not accept the credentials"},
		internalWords + "\r\n\r\n":                                                                     {git.Unreachable, "does not speak the protocol"},
	} {
		address := says(t, answer)
		client := newClient(t, git.Options{Timeout: 20 * time.Second})
		remote := git.Remote{URL: "https://git.invalid/repo", Proxy: git.Proxy{Address: "http://" + address}}
		failsQuietly(t, client, remote, tt.kind, tt.says)
	}
}

// says starts a server that answers everything with the same bytes.
func says(t *testing.T, answer string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(answer))
			_, _ = conn.Read(make([]byte, 1000))
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

func TestMessagesHaveNothingOfAnSSHServerBeforeItHasTheCredentials(t *testing.T) {
	key, signer := sshKey(t, "")
	_, host := sshKey(t, "")
	text := func(value string) []byte { return ssh.Marshal(struct{ Text string }{value}) }
	list := text(internalWords)
	// The first message of the key exchange: ten lists of algorithms.
	algorithms := append([]byte{20}, make([]byte, 16)...)
	for range 10 {
		algorithms = append(algorithms, list...)
	}
	disconnect := ssh.Marshal(struct {
		Type          byte
		Reason        uint32
		Text, Langage string
	}{1, 2, internalWords, ""})
	client := newClient(t, git.Options{Timeout: 20 * time.Second})
	for name, answer := range map[string]string{
		"banner": internalWords + "\r\n" + internalWords, "version": "SSH-1.5-" + internalWords + "\r\n", "algorithms": "SSH-2.0-x\r\n" + sshPacket(append(algorithms, 0, 0, 0, 0, 0)),
		"disconnect": "SSH-2.0-x\r\n" + sshPacket(disconnect),
	} {
		t.Run(name, func(t *testing.T) {
			address := says(t, answer)
			remote := git.Remote{URL: "ssh://git@" + address + "/repo", Auth: git.Auth{PrivateKey: key},
				KnownHosts: []byte(knownhosts.Line([]string{address}, host.PublicKey()))}
			_, err := client.Resolve(t.Context(), remote, "main")
			NewWithT(t).Expect(err).To(HaveOccurred())
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring("nternal-w"))
			t.Log(err)
		})
	}
	t.Run("afterwards it may speak", func(t *testing.T) {
		address := sshServerThat(t, host, signer, func(channel ssh.Channel, _ string) {
			fmt.Fprint(channel.Stderr(), internalWords)
		})
		remote := git.Remote{URL: "ssh://git@" + address + "/repo", Auth: git.Auth{PrivateKey: key}, KnownHosts: []byte(knownhosts.Line([]string{address}, host.PublicKey()))}
		NewWithT(t).Expect(resolveFails(t, client, remote, "main", git.Unreachable).Message).To(ContainSubstring(internalWords))
	})
}

// sshPacket is a packet of ssh before the keys are exchanged.
func sshPacket(payload []byte) string {
	padding := 8 - (5+len(payload))%8 + 8
	length := 1 + len(payload) + padding
	header := []byte{byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length), byte(padding)}
	return string(header) + string(payload) + strings.Repeat("\x00", padding)
}

// The protocol of git has messages for users. They are shown under the same condition as a page of an HTTP server.
func TestErrorsInTheProtocolAreShownOnlyIfTheServerHasTheCredentials(t *testing.T) {
	sha := strings.Repeat("a1", 20)
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	internal := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		kind, answer := "advertisement", line("# service=git-upload-pack\n")+"0000"+line(sha+" refs/heads/main\x00side-band-64k shallow\n")+"0000"
		switch {
		case request.Method == http.MethodPost:
			kind, answer = "result", line("NAK\n")+line("\x03"+internalWords)
		case strings.HasPrefix(request.URL.Path, "/at-once/"):
			answer = line("ERR " + internalWords)
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-"+kind)
		fmt.Fprint(w, answer)
	}))
	redirect := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		http.Redirect(w, request, internal.URL+request.URL.RequestURI(), http.StatusFound)
	}))
	client := newClient(t, git.Options{Timeout: 20 * time.Second})
	withToken := git.Auth{Token: canary}
	for _, remote := range []git.Remote{{URL: internal.URL}, {URL: redirect.URL, Auth: withToken}} {
		atOnce, later := remote, remote
		atOnce.URL += "/at-once/repo"
		later.URL += "/later/repo"
		detail := failsQuietly(t, client, atOnce, git.Unreachable, "the server reports an error")
		NewWithT(t).Expect(detail).To(Equal(internalWords))
		message := checkoutFails(t, client, later, sha, git.Unreachable).Message
		NewWithT(t).Expect(message).To(And(ContainSubstring("the server reports an error"), Not(ContainSubstring(internalWords))))
	}
	remote := git.Remote{URL: internal.URL + "/at-once/repo", Auth: withToken}
	NewWithT(t).Expect(resolveFails(t, client, remote, "main", git.Unreachable).Message).To(ContainSubstring("the server says: " + internalWords))
	remote.URL = internal.URL + "/later/repo"
	NewWithT(t).Expect(checkoutFails(t, client, remote, sha, git.Unreachable).Message).To(ContainSubstring("the server says: " + internalWords))
}

func TestMessagesHaveNothingOfAResolver(t *testing.T) {
	client := newClient(t, git.Options{Timeout: 20 * time.Second})
	client.DialHTTP(func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: internalWords, Name: internalWords, Server: internalWords + ":53", IsNotFound: true}}
	})
	failsQuietly(t, client, git.Remote{URL: "https://git.invalid/repo"}, git.Unreachable, ": no such host")
	client.DialHTTP(func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: internalWords, Name: internalWords, Server: internalWords + ":53"}}
	})
	failsQuietly(t, client, git.Remote{URL: "https://git.invalid/repo"}, git.Unreachable, "the name of the host cannot be resolved")
}
