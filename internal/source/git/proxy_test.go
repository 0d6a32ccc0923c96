package git_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// connectProxy is an HTTP proxy that remembers where it was asked to go.
type connectProxy struct {
	mutex sync.Mutex
	asked []string
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	p.mutex.Lock()
	p.asked = append(p.asked, request.Method+" "+request.Host+" "+request.Header.Get("Proxy-Authorization"))
	p.mutex.Unlock()
	if request.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("proxy:"+canary)) {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	if request.Method == http.MethodConnect {
		tunnel(w, request.Host)
		return
	}
	request.RequestURI = ""
	request.Header.Del("Proxy-Authorization")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	copyAll(w, response.Body)
}

func (p *connectProxy) seen() []string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return append([]string(nil), p.asked...)
}

func tunnel(w http.ResponseWriter, host string) {
	target, err := net.Dial("tcp", host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	fmt.Fprint(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { copyAll(target, conn); _ = target.Close() }()
	copyAll(conn, target)
	_ = conn.Close()
}

// socksProxy starts a SOCKS5 proxy (RFC 1928, RFC 1929) that records the credentials and the address of each request.
func socksProxy(t *testing.T) (address string, asked func() []string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	var mutex sync.Mutex
	var seen []string
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				read := func(size int) []byte {
					content := make([]byte, size)
					_, _ = io.ReadFull(conn, content)
					return content
				}
				read(int(read(2)[1]))                // the client's methods
				_, _ = conn.Write([]byte{5, 2})      // user name and password
				user := read(int(read(2)[1]))        // after the version
				password := read(int(read(1)[0]))    //
				_, _ = conn.Write([]byte{1, 0})      // accepted
				host := net.IP(read(8)[4:]).String() // after the version, connect, zero, IPv4
				to := net.JoinHostPort(host, fmt.Sprint(binary.BigEndian.Uint16(read(2))))
				mutex.Lock()
				seen = append(seen, string(user)+":"+string(password)+" "+to)
				mutex.Unlock()
				target, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
				go func() { copyAll(target, conn); _ = target.Close() }()
				copyAll(conn, target)
			}()
		}
	}()
	return listener.Addr().String(), func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return append([]string(nil), seen...)
	}
}

func TestExplicitProxyIsUsed(t *testing.T) {
	g := NewWithT(t)
	root, _, sha := firstCommit(t)
	server := serve(t, backend(t, root))
	handler := &connectProxy{}
	through := serve(t, handler)
	client := newClient(t, git.Options{})
	remote := git.Remote{URL: server.URL + "/repo", Proxy: git.Proxy{Address: through.URL, Username: "proxy", Password: canary}}
	g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", sha))
	address, _ := url.Parse(server.URL)
	g.Expect(handler.seen()).To(ConsistOf(HavePrefix("GET "+address.Host+" Basic "), HavePrefix("POST "+address.Host+" Basic ")))

	remote.Proxy.Username, remote.Proxy.Password = "", ""
	resolveFails(t, client, remote, "main", git.AuthenticationFailed)
	remote.Proxy.Address = "ftp://" + canary + "@proxy"
	g.Expect(resolveFails(t, client, remote, "main", git.InvalidCredentials).Message).NotTo(ContainSubstring(canary))
}

func TestProxyOfTheEnvironmentIsUsed(t *testing.T) {
	g := NewWithT(t)
	handler := &connectProxy{}
	through := serve(t, handler)
	t.Setenv("HTTPS_PROXY", strings.Replace(through.URL, "http://", "http://proxy:"+canary+"@", 1))
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "direct.invalid")
	client := newClient(t, git.Options{Timeout: 5 * time.Second})
	g.Expect(resolveFails(t, client, git.Remote{URL: "https://git.invalid/repo"}, "main", git.Unreachable).Message).NotTo(ContainSubstring(canary))
	g.Expect(handler.seen()).To(ConsistOf(HavePrefix("CONNECT git.invalid:443 Basic ")))
	resolveFails(t, client, git.Remote{URL: "https://direct.invalid/repo"}, "main", git.Unreachable)
	g.Expect(handler.seen()).To(HaveLen(1))
}
