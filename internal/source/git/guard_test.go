package git_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// guarded returns a client that refuses local addresses, as in the controller.
func guarded(t *testing.T) *git.Client {
	t.Helper()
	return git.NewClient(git.Options{Dir: t.TempDir(), Timeout: 20 * time.Second})
}

// untouched starts a server on this machine. The test fails if anything connects to it.
func untouched(t *testing.T) (port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var connections atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		if connections.Load() > 0 {
			t.Errorf("%d connections", connections.Load())
		}
	})
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

func TestLocalAddressesAreRefused(t *testing.T) {
	port := untouched(t)
	key, _ := sshKey(t, "")
	client := guarded(t)
	for _, address := range []string{
		"http://127.0.0.1:%s/repo", "http://localhost:%s/repo", "https://localhost:%s/repo", "http://0.0.0.0:%s/repo", "http://[::ffff:127.0.0.1]:%s/repo",
		"ssh://git@127.0.0.1:%s/repo", "ssh://git@localhost:%s/repo", "http://169.254.169.254/latest/meta-data", "http://[fe80::1]/repo", "http://[fd00:ec2::254]/repo",
	} {
		if strings.Contains(address, "%s") {
			address = fmt.Sprintf(address, port)
		}
		remote := git.Remote{URL: address, Auth: git.Auth{Token: canary, PrivateKey: key}}
		_, err := client.Resolve(t.Context(), remote, "main")
		g := NewWithT(t)
		g.Expect(expectKind(t, err, git.AddressRefused).Message).To(ContainSubstring("loopback, link-local"), address)
		checkoutFails(t, client, remote, strings.Repeat("1", 40), git.AddressRefused)
	}
}

// A tenant chooses the address of the API of a GitHub App.
func TestGitHubAppsWithLocalAddressesAreRefused(t *testing.T) {
	port := untouched(t)
	for _, proxy := range []string{"", "http://127.0.0.1:" + port} {
		t.Setenv("HTTP_PROXY", proxy)
		t.Setenv("NO_PROXY", "")
		client := guarded(t)
		for _, address := range []string{"http://127.0.0.1:" + port, "http://localhost:" + port, "http://169.254.169.254", "http://[fd00:ec2::254]/api/v3"} {
			app := &git.GitHubApp{AppID: "123", InstallationID: "456", PrivateKey: appKey(t), BaseURL: address}
			remote := git.Remote{URL: "https://git.invalid/repo", Auth: git.Auth{GitHubApp: app}}
			message := resolveFails(t, client, remote, "main", git.AddressRefused).Message
			NewWithT(t).Expect(message).To(ContainSubstring("loopback, link-local"), address)
		}
	}
}

func TestProxyOfATenantMustNotBeLocal(t *testing.T) {
	port := untouched(t)
	key, _ := sshKey(t, "")
	for _, tt := range []struct {
		scheme, repository string
		kind               git.Kind
	}{
		{"http", "https://git.invalid/repo", git.AddressRefused},
		{"https", "https://git.invalid/repo", git.AddressRefused},
		{"socks5", "https://git.invalid/repo", git.AddressRefused},
		{"socks5", "ssh://git@git.invalid/repo", git.AddressRefused},
		{"http", "ssh://git@git.invalid/repo", git.InvalidCredentials},
		{"https", "ssh://git@git.invalid/repo", git.InvalidCredentials},
	} {
		remote := git.Remote{URL: tt.repository, Auth: git.Auth{Token: canary, PrivateKey: key}, Proxy: git.Proxy{Address: tt.scheme + "://localhost:" + port}}
		for _, environment := range []string{"", "http://localhost:" + port} { // The operator's proxy may be local, but is not for everybody.
			t.Setenv("HTTPS_PROXY", environment)
			resolveFails(t, guarded(t), remote, "main", tt.kind)
		}
	}
}

// The proxy of the environment stands for another machine: it is on this one, which the operator may choose.
func TestRedirectsAndSubmodulesToLocalAddressesAreRefused(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	o := newOrigin(t, root, "repo")
	port := untouched(t)
	first := o.commit("first")
	server := serve(t, backend(t, root))
	target, err := url.Parse(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	behind := httputil.NewSingleHostReverseProxy(target)
	proxy := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		host, found := strings.CutPrefix(request.URL.Path, "/to/")
		if host, _, _ = strings.Cut(host, "/"); found {
			http.Redirect(w, request, "http://"+host+":"+port+"/repo/info/refs?service=git-upload-pack", http.StatusFound)
			return
		}
		behind.ServeHTTP(w, request)
	}))
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "")
	client := guarded(t)

	g.Expect(client.Resolve(t.Context(), git.Remote{URL: "http://git.example.com/repo"}, "main")).To(HaveField("SHA", first))
	for _, host := range []string{"127.0.0.1", "localhost", "169.254.169.254", "[::1]", "0.0.0.0"} {
		resolveFails(t, client, git.Remote{URL: "http://git.example.com/to/" + host}, "main", git.AddressRefused)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "169.254.169.254"} {
		sha := o.withSubmodule("sub", "http://"+host+":"+port+"/repo", first)
		g.Expect(checkoutFails(t, client, git.Remote{URL: "http://git.example.com/repo", RecurseSubmodules: true}, sha, git.Submodule).Message).To(ContainSubstring("loopback, link-local"))
	}
}

// A redirect leads to another repository. Otherwise a tenant could request any page of any server through the controller, and read its
// status.
func TestRedirectsLeadToRepositoriesOnly(t *testing.T) {
	asked := 0
	internal := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusTeapot)
	}))
	target := ""
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", target)
		w.WriteHeader(http.StatusFound)
	}))
	client := newClient(t, git.Options{})
	for _, end := range []string{
		"/secret", "/secret?", "/secret?service=git-upload-pack", "/secret?x=/info/refs?service=git-upload-pack", "/info/refs", "/info/refs?delete", "/info/refs?service=git-upload-pack&delete",
		"/secret#/info/refs?service=git-upload-pack", "/secret?/info/refs",
	} {
		target = internal.URL + end
		message := resolveFails(t, client, git.Remote{URL: server.URL + "/repo"}, "main", git.RepositoryNotFound).Message
		NewWithT(t).Expect(message).To(ContainSubstring("redirects to something that is not a git repository"), end)
	}
	NewWithT(t).Expect(asked).To(BeZero())

	// net/http would need many minutes for this host, and no context would end that.
	var host strings.Builder
	for r := rune(0x4e00); host.Len() < 200<<10; r = 0x4e00 + (r+1-0x4e00)%0x5000 {
		host.WriteRune(r)
	}
	for _, target = range []string{"http://" + host.String() + "/info/refs?service=git-upload-pack", "http://bücher.example/info/refs?service=git-upload-pack"} {
		message := resolveFails(t, client, git.Remote{URL: server.URL + "/repo"}, "main", git.Unreachable).Message
		NewWithT(t).Expect(message).To(ContainSubstring("redirects to an invalid address"))
	}
}

// The answer of a server is shown only if the server received the credentials. Otherwise a tenant could read the answers of any server
// through the controller, with a URL or a redirect.
func TestAnswersOfHostsWithoutCredentialsAreNotShown(t *testing.T) {
	const internal = "internal-words"
	answers := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		status := http.StatusInternalServerError
		_, _ = fmt.Sscanf(request.URL.Path, "/%d/", &status)
		http.Error(w, internal, status)
	}))
	redirects := serve(t, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if home, found := strings.CutPrefix(request.URL.Path, "/home/"); found {
			http.Redirect(w, request, "/there/"+home+"?"+request.URL.RawQuery, http.StatusFound)
			return
		}
		if strings.HasPrefix(request.URL.Path, "/there/") {
			http.Error(w, internal, http.StatusInternalServerError)
			return
		}
		http.Redirect(w, request, answers.URL+request.URL.RequestURI(), http.StatusFound)
	}))
	client := newClient(t, git.Options{Timeout: 10 * time.Second})
	withToken := git.Auth{Token: canary}
	for _, remote := range []git.Remote{
		{URL: answers.URL + "/500/repo"}, {URL: answers.URL + "/403/repo"}, {URL: answers.URL + "/404/repo"}, {URL: answers.URL + "/401/repo"},
		{URL: redirects.URL + "/500/repo", Auth: withToken}, {URL: redirects.URL + "/403/repo", Auth: withToken}, {URL: redirects.URL + "/home/repo", Auth: withToken},
	} {
		for range 2 {
			_, err := client.Resolve(t.Context(), remote, "main")
			g := NewWithT(t)
			g.Expect(err).To(MatchError(ContainSubstring("status ")), remote.URL)
			g.Expect(err).NotTo(MatchError(ContainSubstring(internal)), remote.URL)
		}
	}
	_, err := client.Resolve(t.Context(), git.Remote{URL: answers.URL + "/403/repo", Auth: withToken}, "main")
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring(internal)), "whose credentials it got")

	key := appKey(t)
	for _, banner := range []string{
		"SSH-2.0-" + internal + "\r\n", "HTTP/1.1 " + internal + "\r\n\r\n", "HTTP/1.1 200 OK\r\n" + internal + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: " + internal + "\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + internal + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2" + internal + "\r\n\r\n", "HTTP/1.1 200 OK\r\n " + internal + "\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: http://%" + internal + "\r\n\r\n",
	} {
		t.Run(banner, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1000))
					_, _ = conn.Write([]byte(banner))
					_ = conn.Close()
				}
			}()
			url := "http://" + listener.Addr().String()
			app := &git.GitHubApp{AppID: "123", InstallationID: "456", PrivateKey: key, BaseURL: url}
			for _, auth := range []git.Auth{{}, {GitHubApp: app}} {
				message := resolveFails(t, client, git.Remote{URL: url + "/repo", Auth: auth}, "main", git.Unreachable).Message
				NewWithT(t).Expect(message).NotTo(ContainSubstring("nternal"))
				t.Log(message)
			}
		})
	}
}
