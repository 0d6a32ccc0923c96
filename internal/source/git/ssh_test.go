package git_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/stack-controller/stack-controller/internal/source/git"
)

// sshKey returns a new key, as PEM and as a signer.
func sshKey(t *testing.T, passphrase string) ([]byte, ssh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "test")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "test", []byte(passphrase))
	}
	signer, signerErr := ssh.NewSignerFromKey(private)
	if err := errors.Join(err, signerErr); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block), signer
}

// sshServer runs git's own upload-pack for the repositories below root. It accepts the user git with the client's key or the password
// canary. The server of fluxcd/pkg/gittestserver is not used here: it lets everybody in, and has host keys of its own.
func sshServer(t *testing.T, root string, host, client ssh.Signer) (address string) {
	t.Helper()
	return sshServerThat(t, host, client, func(channel ssh.Channel, command string) {
		name := strings.Trim(strings.TrimPrefix(command, "git-upload-pack "), "'")
		upload := exec.Command("git", "upload-pack", filepath.Join(root, name))
		upload.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + root, "GIT_CONFIG_NOSYSTEM=1"}
		upload.Stdout, upload.Stderr = channel, channel.Stderr()
		if stdin, err := upload.StdinPipe(); err == nil {
			go func() { copyAll(stdin, channel); _ = stdin.Close() }()
		}
		_ = upload.Run()
		_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, 0})
	})
}

// sshServerThat runs commands in its own way.
func sshServerThat(t *testing.T, host, client ssh.Signer, run func(channel ssh.Channel, command string)) (address string) {
	t.Helper()
	return sshServerWith(t, ssh.Config{}, host, client, run)
}

// sshServerWith has other algorithms, too.
func sshServerWith(t *testing.T, algorithms ssh.Config, host, client ssh.Signer, run func(channel ssh.Channel, command string)) (address string) {
	t.Helper()
	config := &ssh.ServerConfig{
		Config: algorithms,
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() != "git" || !bytes.Equal(key.Marshal(), client.PublicKey().Marshal()) {
				return nil, errors.New("not this key")
			}
			return nil, nil
		},
		PasswordCallback: func(meta ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if meta.User() != "git" || string(password) != canary {
				return nil, errors.New("not this password")
			}
			return nil, nil
		},
	}
	config.AddHostKey(host)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveSSH(conn, config, run)
		}
	}()
	return listener.Addr().String()
}

func serveSSH(conn net.Conn, config *ssh.ServerConfig, run func(channel ssh.Channel, command string)) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			if request.Type != "exec" {
				_ = request.Reply(false, nil)
				continue
			}
			_ = request.Reply(true, nil)
			var command struct{ Text string }
			_ = ssh.Unmarshal(request.Payload, &command)
			run(channel, command.Text)
			_ = channel.Close()
		}
	}
}

func TestSSH(t *testing.T) {
	root := t.TempDir()
	o := newOrigin(t, root, "org/repo.git")
	first := o.commit("first")
	o.write("file", "content")
	second := o.commit("second")
	key, signer := sshKey(t, "")
	_, host := sshKey(t, "")
	_, stranger := sshKey(t, "")
	address := sshServer(t, root, host, signer)
	line := func(key ssh.PublicKey) []byte { return []byte(knownhosts.Line([]string{address}, key) + "\n") }
	known, other := line(host.PublicKey()), line(stranger.PublicKey())
	url := "ssh://git@" + address + "/org/repo.git"
	good := git.Remote{URL: url, Auth: git.Auth{PrivateKey: key}, KnownHosts: known}
	client := newClient(t, git.Options{})

	t.Run("resolves and checks out", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(client.Resolve(t.Context(), good, "main")).To(Equal(git.Revision{SHA: second, Ref: "refs/heads/main"}))
		g.Expect(unpacked(t, checkedOut(t, client, good, second))).To(HaveKeyWithValue("file", "content"))
		checkedOut(t, client, good, first)
		g.Expect(client.Resolve(t.Context(), good, first[:8])).To(HaveField("SHA", first))
	})
	t.Run("with a password", func(t *testing.T) {
		remote := git.Remote{URL: url, Auth: git.Auth{Password: canary}, KnownHosts: known}
		NewWithT(t).Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", second))
	})
	t.Run("through a proxy", func(t *testing.T) {
		g := NewWithT(t)
		proxy, asked := socksProxy(t)
		remote := good
		remote.Proxy = git.Proxy{Address: "socks5://" + proxy, Username: "proxy", Password: canary}
		g.Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", second))
		g.Expect(asked()).To(Equal([]string{"proxy:" + canary + " " + address}))
	})
	t.Run("not through a proxy for HTTP", func(t *testing.T) {
		g := NewWithT(t)
		proxy := &connectProxy{}
		remote := good
		remote.Proxy = git.Proxy{Address: serve(t, proxy).URL, Username: "proxy", Password: canary}
		g.Expect(resolveFails(t, client, remote, "main", git.InvalidCredentials).Message).To(And(ContainSubstring("socks5"), Not(ContainSubstring(canary))))
		g.Expect(proxy.seen()).To(BeEmpty())
	})
	t.Run("with the known hosts of the controller", func(t *testing.T) {
		g := NewWithT(t)
		configured := newClient(t, git.Options{KnownHosts: known})
		remote := good
		remote.KnownHosts = nil
		g.Expect(configured.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", second))
		remote.KnownHosts = []byte(knownhosts.Line([]string{"elsewhere.example.com"}, stranger.PublicKey()))
		g.Expect(configured.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", second))
		remote.KnownHosts = other
		g.Expect(resolveFails(t, configured, remote, "main", git.HostKeyUnknown).Message).To(ContainSubstring("mismatch"), "the remote's own list counts")
	})
	encrypted, encryptedSigner := sshKey(t, canary)
	encryptedAddress := sshServer(t, root, host, encryptedSigner)
	t.Run("with a passphrase", func(t *testing.T) {
		remote := git.Remote{URL: "ssh://git@" + encryptedAddress + "/org/repo.git", Auth: git.Auth{PrivateKey: encrypted, Passphrase: []byte(canary)},
			KnownHosts: []byte(knownhosts.Line([]string{encryptedAddress}, host.PublicKey()))}
		NewWithT(t).Expect(client.Resolve(t.Context(), remote, "main")).To(HaveField("SHA", second))
	})

	fingerprint := ssh.FingerprintSHA256(host.PublicKey())
	strangerKey, _ := sshKey(t, "")
	for _, tt := range []struct {
		name   string
		change func(*git.Remote)
		kind   git.Kind
		says   string
	}{
		{"no known hosts", func(r *git.Remote) { r.KnownHosts = nil }, git.HostKeyUnknown, fingerprint},
		{"another host is known", func(r *git.Remote) {
			r.KnownHosts = []byte(knownhosts.Line([]string{"elsewhere.example.com"}, host.PublicKey()))
		}, git.HostKeyUnknown, "no key for"},
		{"another key is known", func(r *git.Remote) { r.KnownHosts = other }, git.HostKeyUnknown, "host key mismatch: the server shows ssh-ed25519 " + fingerprint},
		{"the key is revoked", func(r *git.Remote) { r.KnownHosts = append([]byte("@revoked "), known...) }, git.HostKeyUnknown, "revoked"},
		{"known hosts are no list", func(r *git.Remote) { r.KnownHosts = []byte("host not-a-key\n") }, git.InvalidCredentials, "known hosts"},
		{"another private key", func(r *git.Remote) { r.Auth.PrivateKey = strangerKey }, git.AuthenticationFailed, "user git"},
		{"another user", func(r *git.Remote) { r.URL = strings.Replace(url, "git@", "ada@", 1) }, git.AuthenticationFailed, "user ada"},
		{"passphrase missing", func(r *git.Remote) { r.Auth.PrivateKey = encrypted }, git.InvalidCredentials, "no passphrase"},
		{"passphrase wrong", func(r *git.Remote) { r.Auth = git.Auth{PrivateKey: encrypted, Passphrase: []byte("another")} }, git.InvalidCredentials, "passphrase of the private key is wrong"},
		{"key is none", func(r *git.Remote) { r.Auth.PrivateKey = []byte(canary) }, git.InvalidCredentials, "cannot be parsed"},
		{"no such repository", func(r *git.Remote) { r.URL = strings.Replace(url, "repo.git", "none.git", 1) }, git.RepositoryNotFound, "none.git"},
		{"wrong password", func(r *git.Remote) { r.Auth = git.Auth{Password: canary + "x"} }, git.AuthenticationFailed, "password"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			remote := good
			tt.change(&remote)
			message := resolveFails(t, client, remote, "main", tt.kind).Message
			NewWithT(t).Expect(message).To(ContainSubstring(tt.says))
			NewWithT(t).Expect(message).NotTo(ContainSubstring(canary))
		})
	}
}

func TestServerMayAcceptAnyOneOfTheAlgorithmsOfTheLibrary(t *testing.T) {
	key, signer := sshKey(t, "")
	_, host := sshKey(t, "")
	client := newClient(t, git.Options{})
	known := ssh.SupportedAlgorithms()
	resolve := func(t *testing.T, only ssh.Config) error {
		address := sshServerWith(t, only, host, signer, func(channel ssh.Channel, _ string) { _, _ = channel.Stderr().Write([]byte("it is not found")) })
		_, err := client.Resolve(t.Context(), git.Remote{URL: "ssh://git@" + address + "/repo", Auth: git.Auth{PrivateKey: key},
			KnownHosts: []byte(knownhosts.Line([]string{address}, host.PublicKey()))}, "main")
		return err
	}
	for _, name := range append(known.KeyExchanges, ssh.InsecureKeyExchangeDH14SHA1) {
		t.Run(name, func(t *testing.T) {
			expectKind(t, resolve(t, ssh.Config{KeyExchanges: []string{name}}), git.RepositoryNotFound)
		})
	}
	for _, name := range known.Ciphers {
		t.Run(name, func(t *testing.T) {
			expectKind(t, resolve(t, ssh.Config{Ciphers: []string{name}}), git.RepositoryNotFound)
		})
	}
	t.Run("but not none", func(t *testing.T) {
		g := NewWithT(t)
		message := expectKind(t, resolve(t, ssh.Config{KeyExchanges: []string{ssh.InsecureKeyExchangeDH1SHA1}}), git.Unreachable).Message
		g.Expect(message).To(And(ContainSubstring("accepts no key exchange that the controller has"), ContainSubstring(ssh.KeyExchangeDH16SHA512), Not(ContainSubstring("kex-strict"))))
		message = expectKind(t, resolve(t, ssh.Config{Ciphers: []string{ssh.InsecureCipherAES128CBC}}), git.Unreachable).Message
		g.Expect(message).To(And(ContainSubstring("accepts no client to server cipher that"), ContainSubstring(ssh.CipherAES256CTR)))
	})
}

func TestSilentSSHServerIsATimeout(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	key, _ := sshKey(t, "")
	client := newClient(t, git.Options{Timeout: 300 * time.Millisecond})
	resolveFails(t, client, git.Remote{URL: "ssh://" + listener.Addr().String() + "/repo", Auth: git.Auth{PrivateKey: key}}, "main", git.Timeout)
}
