package git_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/stack-controller/stack-controller/internal/source/git"
	"github.com/stack-controller/stack-controller/internal/throughput"
)

// pipes is a network without sockets, because synctest cannot handle sockets.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p <- server
	return client, nil
}

// drip sends the content in pieces of that size, one per second. With forever, it starts again at the end.
func drip(w http.ResponseWriter, content []byte, size int, forever bool) {
	controller := http.NewResponseController(w)
	for rest := content; len(rest) > 0 || forever; {
		if len(rest) == 0 {
			rest = content
		}
		n := min(size, len(rest))
		_, err := w.Write(rest[:n])
		if err = errors.Join(err, controller.Flush()); err != nil {
			return
		}
		rest = rest[n:]
		time.Sleep(time.Second)
	}
}

// packet is the start of a packet that declares the largest length.
var packet = []byte("fff0" + strings.Repeat("x", 60_000))

// refsOf is what a server sends at first that has the commit on the branch main.
func refsOf(sha string) []byte {
	line := sha + " refs/heads/main\x00shallow side-band-64k ofs-delta"
	return fmt.Appendf(nil, "001e# service=git-upload-pack\n0000%04x%s\n0000", len(line)+5, line)
}

// A server may be slow for the preparation time in all and no longer, whatever it sent before and however long the timeouts are.
func TestServerThatIsSlowForLongIsLeft(t *testing.T) {
	b := &packBuilder{}
	content := make([]byte, 8<<20)
	_, _ = rand.Read(content)
	sha, pack := b.commit(b.object(2, append([]byte("100644 file\x00"), b.object(3, content)...)), "large")
	var answer bytes.Buffer
	answer.WriteString("00000008NAK\n")
	_ = band(&answer, 1, pack)
	answer.WriteString("0000")
	refs := refsOf(sha)
	all := func(w http.ResponseWriter, content []byte) { drip(w, content, len(content), false) }

	for name, tt := range map[string]struct {
		refs, pack func(w http.ResponseWriter)
		slowAfter  time.Duration
		succeeds   bool
	}{
		"silent about its refs":   {refs: func(http.ResponseWriter) { time.Sleep(time.Hour) }},
		"a byte of refs a second": {refs: func(w http.ResponseWriter) { drip(w, packet, 1, true) }},
		"silent about the pack":   {pack: func(http.ResponseWriter) { time.Sleep(time.Hour) }},
		"a byte of the pack a second": {pack: func(w http.ResponseWriter) {
			drip(w, answer.Bytes(), 1, true)
		}},
		"slow after half of the pack": {slowAfter: 4 * time.Second, pack: func(w http.ResponseWriter) {
			drip(w, answer.Bytes()[:4<<20], 1<<20, false)
			drip(w, answer.Bytes()[4<<20:], 1, true)
		}},
		"slow before both": {succeeds: true,
			refs: func(w http.ResponseWriter) { time.Sleep(50 * time.Second); all(w, refs) },
			pack: func(w http.ResponseWriter) { time.Sleep(50 * time.Second); drip(w, answer.Bytes(), 70<<10, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				network := make(pipes)
				server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
					_, _ = io.Copy(io.Discard, request.Body)
					kind, respond := "advertisement", tt.refs
					if request.Method == http.MethodPost {
						kind, respond = "result", tt.pack
					} else if respond == nil {
						respond = func(w http.ResponseWriter) { all(w, refs) }
					}
					w.Header().Set("Content-Type", "application/x-git-upload-pack-"+kind)
					respond(w)
				})}
				go func() { _ = server.Serve(network) }()
				client := newClient(t, git.Options{Timeout: time.Hour, CheckoutTimeout: time.Hour})
				client.DialHTTP(network.dial)
				start := time.Now()
				_, err := client.Archive(t.Context(), git.Remote{URL: "http://git.example.com/repo"}, sha, io.Discard)
				lasted := time.Since(start) - tt.slowAfter
				g.Expect(server.Close()).To(Succeed())
				time.Sleep(time.Hour) // as long as a handler may
				if tt.succeeds {
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(lasted).To(BeNumerically(">", 3*time.Minute))
					return
				}
				g.Expect(expectKind(t, err, git.Timeout).Message).To(HaveSuffix(" bytes in 30s, where at least 64 KiB/s are expected after 2m0s in all to prepare it"))
				g.Expect(errors.As(err, new(*throughput.Error))).To(BeTrue())
				g.Expect(lasted).To(And(BeNumerically(">=", 2*time.Minute), BeNumerically("<=", 3*time.Minute)))
			})
		})
	}
}

// dropped is a connection of which nothing arrives any longer, once it is lost, and nobody is told.
type dropped struct {
	net.Conn
	lost *atomic.Bool
}

func (d dropped) Write(content []byte) (int, error) {
	if d.lost.Load() {
		return len(content), nil
	}
	return d.Conn.Write(content)
}

func TestConnectionThatIsLostIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		sha := strings.Repeat("1", 40)
		server := httptest.NewTestServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = w.Write(refsOf(sha))
		}))
		server.EnableHTTP2 = true
		network := server.Client().Transport.(*http.Transport)
		client := newClient(t, git.Options{})
		client.TrustHTTP(network.TLSClientConfig.RootCAs)
		var lost atomic.Bool
		connections := 0
		client.DialHTTP(func(ctx context.Context, kind, address string) (net.Conn, error) {
			secure, err := network.DialTLSContext(ctx, kind, address)
			if connections++; err != nil || connections > 1 {
				return secure.(*tls.Conn).NetConn(), err
			}
			return dropped{secure.(*tls.Conn).NetConn(), &lost}, nil
		})
		remote := git.Remote{URL: "https://example.com/repo"}
		for range 2 {
			g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
		}
		g.Expect(connections).To(Equal(1))
		lost.Store(true)
		resolveFails(t, client, remote, "main", git.Unreachable)
		g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
		g.Expect(connections).To(Equal(2))
	})
}

func TestSSHServerThatIsSlowForLongIsLeft(t *testing.T) {
	key, signer := sshKey(t, "")
	_, host := sshKey(t, "")
	address := sshServerThat(t, host, signer, func(channel ssh.Channel, _ string) {
		for n := 0; ; n++ {
			if _, err := channel.Write(packet[n%len(packet):][:1]); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	client := newClient(t, git.Options{Timeout: time.Hour})
	client.Expect(100*time.Millisecond, 200*time.Millisecond)
	remote := git.Remote{URL: "ssh://git@" + address + "/repo", Auth: git.Auth{PrivateKey: key}, KnownHosts: []byte(knownhosts.Line([]string{address}, host.PublicKey()))}
	g := NewWithT(t)
	g.Expect(resolveFails(t, client, remote, "main", git.Timeout).Message).To(HaveSuffix(" bytes in 100ms, where at least 64 KiB/s are expected after 200ms in all to prepare it"))
}
