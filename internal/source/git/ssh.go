package git

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/proxy"

	"github.com/stack-controller/stack-controller/internal/source/netguard"
)

// maxStderr bounds in bytes what is kept of a server's messages.
const maxStderr = 1 << 10

// sshSession runs git-upload-pack over ssh. It uses nothing of this machine: no ssh agent, no configuration, no default keys.
type sshSession struct {
	path    string
	client  *ssh.Client
	session *ssh.Session
	stop    func() bool
	stdin   io.WriteCloser
	stdout  io.Reader
	stderr  tail
}

func (r *repository) connectSSH(ctx context.Context) (session, error) {
	methods, err := r.sshAuth(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := r.hostKeys()
	if err != nil {
		return nil, err
	}
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, r.failure(ctx, "connect", err)
	}
	// A deadline in the past ends every read and write at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	config := &ssh.ClientConfig{User: r.sshUser(), Auth: methods, HostKeyCallback: keys.check, HostKeyAlgorithms: keys.algorithms(),
		KeyExchanges: keyExchanges(), ClientVersion: "SSH-2.0-stack-controller"}
	handshake, channels, requests, err := ssh.NewClientConn(conn, r.endpoint.address(), config)
	if err != nil {
		stop()
		_ = conn.Close()
		return nil, r.handshakeFailure(ctx, err)
	}
	s := &sshSession{path: r.endpoint.path, client: ssh.NewClient(handshake, channels, requests), stop: stop}
	if s.session, err = s.client.NewSession(); err != nil {
		s.close()
		return nil, r.failure(ctx, "connect", err)
	}
	return s, nil
}

// dial connects to the host of the repository, through the explicit proxy if there is one. The proxy variables of the environment do not
// apply to ssh.
func (r *repository) dial(ctx context.Context) (net.Conn, error) {
	if err := r.checkHost(r.endpoint.host); err != nil {
		return nil, err
	}
	dialer := netguard.Dialer(net.Dialer{Timeout: dialTimeout}, r.client.options.AllowLocalAddresses)
	if r.remote.Proxy.Address == "" {
		return dialer.DialContext(ctx, "tcp", r.endpoint.address())
	}
	address, err := r.proxyURL()
	if err != nil {
		return nil, err
	}
	through, err := proxy.FromURL(address, dialer)
	if err != nil {
		return nil, r.fail(InvalidCredentials, "ssh goes through a socks5 proxy only: use an https URL, or a proxy with the scheme socks5")
	}
	return through.(proxy.ContextDialer).DialContext(ctx, "tcp", r.endpoint.address())
}

// keyExchanges returns all key exchanges that the library has and OpenSSH accepts or accepted for long. By default, the library offers fewer:
// hardened servers may have only those that are missing then. In the one that comes last the server chooses a group, which the library refuses
// if it is small.
func keyExchanges() []string {
	isLast := func(name string) bool { return name == ssh.KeyExchangeDHGEXSHA256 }
	return append(slices.DeleteFunc(ssh.SupportedAlgorithms().KeyExchanges, isLast), ssh.InsecureKeyExchangeDH14SHA1, ssh.KeyExchangeDHGEXSHA256)
}

// handshakeFailure explains errors of the library. An error of the host key check is an Error already. What the server offers is only for the
// log: it has not got the credentials.
func (r *repository) handshakeFailure(ctx context.Context, err error) error {
	negotiation, failed := errors.AsType[*ssh.AlgorithmNegotiationError](err)
	switch {
	case ctx.Err() == nil && failed && negotiation.What == "host key":
		return r.fail(HostKeyUnknown, "host key mismatch: the server has no host key of a type that the known hosts have for %s", plain(r.endpoint.address()))
	case ctx.Err() == nil && failed:
		own := slices.DeleteFunc(slices.Clone(negotiation.SupportedAlgorithms), func(name string) bool {
			return strings.HasPrefix(name, "ext-info-") || strings.HasPrefix(name, "kex-strict-") // these say what a client can do
		})
		failure := r.fail(Unreachable, "the server accepts no %s that the controller has: let it accept one of %s", negotiation.What, strings.Join(own, ", "))
		failure.Detail = r.secrets.foreign(err.Error())
		return failure
	case ctx.Err() == nil && strings.Contains(err.Error(), "unable to authenticate"):
		return r.fail(AuthenticationFailed, "the server does not accept the private key or the password of user %s", plain(r.sshUser()))
	}
	return r.failure(ctx, "connect", err)
}

func (r *repository) sshUser() string {
	if len(r.remote.Auth.PrivateKey) > 0 {
		return cmp.Or(r.endpoint.user, "git")
	}
	return cmp.Or(r.endpoint.user, r.remote.Auth.Username, "git")
}

// sshAuth returns the methods to authenticate with.
func (r *repository) sshAuth(ctx context.Context) ([]ssh.AuthMethod, error) {
	if len(r.remote.Auth.PrivateKey) > 0 {
		signer, err := r.signer(ctx)
		return []ssh.AuthMethod{ssh.PublicKeys(signer)}, err
	}
	password := cmp.Or(r.remote.Auth.Password, r.endpoint.password)
	if password == "" {
		return nil, r.fail(InvalidCredentials, "ssh needs a private key or a password, and there is none")
	}
	answer := func(_, _ string, questions []string, _ []bool) ([]string, error) {
		return slices.Repeat([]string{password}, len(questions)), nil
	}
	return []ssh.AuthMethod{ssh.Password(password), ssh.KeyboardInteractive(answer)}, nil
}

func (r *repository) signer(ctx context.Context) (ssh.Signer, error) {
	key, passphrase := r.remote.Auth.PrivateKey, r.remote.Auth.Passphrase
	if err := r.checkKeySize(key); err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(key)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		if len(passphrase) == 0 {
			return nil, r.fail(InvalidCredentials, "the private key is encrypted, and there is no passphrase")
		}
		if err := r.checkRounds(key); err != nil {
			return nil, err
		}
		signer, err = r.decrypt(ctx, key, passphrase)
	}
	switch typed := (*Error)(nil); {
	case errors.As(err, &typed):
		return nil, typed
	case errors.Is(err, x509.IncorrectPasswordError):
		return nil, r.fail(InvalidCredentials, "the passphrase of the private key is wrong")
	case err != nil:
		return nil, r.fail(InvalidCredentials, "the private key cannot be parsed: it must be a key for ssh in the PEM or the OpenSSH format")
	}
	return signer, r.checkSigner(signer)
}

// decrypt waits until no other private key is decrypted.
func (r *repository) decrypt(ctx context.Context, key, passphrase []byte) (ssh.Signer, error) {
	release, err := r.client.decryptions.Acquire(ctx, r.remote.Namespace)
	if err != nil {
		return nil, r.failure(ctx, "decrypt the private key", errBusy)
	}
	defer release()
	return ssh.ParsePrivateKeyWithPassphrase(key, passphrase)
}

func (s *sshSession) advertise(context.Context) (io.Reader, error) {
	var err error
	if s.stdin, err = s.session.StdinPipe(); err != nil {
		return nil, err
	}
	if s.stdout, err = s.session.StdoutPipe(); err != nil {
		return nil, err
	}
	s.session.Stderr = &s.stderr
	// As ssh does for git, the session does not wait for an answer: many servers refuse or ignore the variable.
	variable := ssh.Marshal(struct{ Name, Value string }{"GIT_PROTOCOL", protocolVersion2})
	if _, err := s.session.SendRequest("env", false, variable); err != nil {
		return nil, err
	}
	// The path is quoted for a shell, as git does it.
	return s.stdout, s.session.Start(uploadPackCommand + " '" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(s.path) + "'")
}

func (s *sshSession) request(_ context.Context, _ int, body []byte) (io.Reader, error) {
	_, err := s.stdin.Write(body)
	return s.stdout, err
}

// explain returns what the server wrote to its standard error.
func (s *sshSession) explain(err error) error {
	if !errors.Is(err, errEndOfMessages) && !errors.Is(err, io.EOF) {
		return err
	}
	// The messages are complete when the command has ended. It has ended if its output has.
	_ = s.session.Wait()
	if text := bytes.TrimSpace(s.stderr); len(text) > 0 {
		return serverError(text)
	}
	return err
}

// mayQuote implements session. The session exists only after the authentication, and ssh has no redirects.
func (s *sshSession) mayQuote() bool { return true }

func (s *sshSession) close() {
	s.stop()
	_ = s.client.Close()
}

// tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	kept := append(*t, p[max(0, len(p)-maxStderr):]...)
	*t = kept[max(0, len(kept)-maxStderr):]
	return len(p), nil
}

// hostKeys decides whether to trust an ssh server. The remote's own list is used if it has the host, otherwise the controller's list. A
// host that is in neither list is never trusted.
type hostKeys struct {
	repository *repository
	lists      []*knownHost
}

func (r *repository) hostKeys() (*hostKeys, error) {
	keys := &hostKeys{repository: r}
	for _, list := range [][]byte{r.remote.KnownHosts, r.client.options.KnownHosts} {
		if len(list) > maxKnownHosts {
			return nil, r.fail(InvalidCredentials, "the known hosts have more than %d bytes", maxKnownHosts)
		}
		found, err := findHost(list, r.endpoint.host, cmp.Or(r.endpoint.port, defaultSSHPort))
		switch {
		case errors.Is(err, errManyHostKeys):
			return nil, r.fail(InvalidCredentials, "the known hosts have more than %d keys for the server", maxHostKeys)
		case err != nil:
			return nil, r.fail(InvalidCredentials, "the known hosts cannot be parsed: they must have the format of OpenSSH, as ssh-keyscan writes it")
		}
		keys.lists = append(keys.lists, found)
	}
	return keys, nil
}

// algorithms returns the algorithms of the known keys, so that the server presents one of these keys and not a key of another type. If no
// key is known, the server chooses, and the error shows the key that it presents.
func (k *hostKeys) algorithms() []string {
	for _, list := range k.lists {
		if list.isKnown() {
			return list.algorithms()
		}
	}
	return nil
}

// check is an ssh.HostKeyCallback. The address of the connection does not matter; behind a proxy it is that of the proxy.
func (k *hostKeys) check(address string, _ net.Addr, key ssh.PublicKey) error {
	shown, host := key.Type()+" "+ssh.FingerprintSHA256(key), plain(address)
	for _, list := range k.lists {
		switch {
		case list.isRevoked(key):
			return k.repository.fail(HostKeyUnknown, "the server's host key %s is marked as revoked in the known hosts", shown)
		case !list.isKnown():
			continue
		case list.trusts(address, key):
			return nil
		}
		return k.repository.fail(HostKeyUnknown, "host key mismatch: the server shows %s, but the known hosts have another key for %s; somebody may be in between, or "+
			"the server has a new key: compare it with what its operator publishes, then change the known hosts", shown, host)
	}
	return k.repository.fail(HostKeyUnknown, "the known hosts have no key for %s, which shows %s: compare it with what its operator publishes, then add it to the known "+
		"hosts (ssh-keyscan prints the line)", host, shown)
}
