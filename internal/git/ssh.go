package git

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxStderr bounds in bytes what is kept of a server's messages.
const maxStderr = 1 << 10

// sshSession runs git-upload-pack over ssh. Nothing on this machine takes part: no agent, no configuration, no default keys.
type sshSession struct {
	repository *repository
	client     *ssh.Client
	session    *ssh.Session
	stop       func() bool
	stdin      io.WriteCloser
	stdout     io.Reader
	stderr     *tail
	started    bool
}

func (r *repository) connectSSH(ctx context.Context) (session, error) {
	const attempt = "connect"
	methods, err := r.sshAuth()
	if err != nil {
		return nil, err
	}
	keys, err := r.hostKeys()
	if err != nil {
		return nil, err
	}
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, r.failure(ctx, attempt, err)
	}
	// A deadline in the past ends every read and write at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	config := &ssh.ClientConfig{User: r.sshUser(), Auth: methods, HostKeyCallback: keys.check, HostKeyAlgorithms: keys.algorithms(),
		ClientVersion: "SSH-2.0-stack-controller"}
	handshake, channels, requests, err := ssh.NewClientConn(conn, r.endpoint.address(), config)
	if err != nil {
		stop()
		_ = conn.Close()
		return nil, r.handshakeFailure(ctx, keys, err)
	}
	s := &sshSession{repository: r, client: ssh.NewClient(handshake, channels, requests), stop: stop, stderr: &tail{}}
	if s.session, err = s.client.NewSession(); err != nil {
		s.close()
		return nil, r.failure(ctx, attempt, err)
	}
	return s, nil
}

// handshakeFailure prefers what the check of the host key has found, which the library reports as text.
func (r *repository) handshakeFailure(ctx context.Context, keys *hostKeys, err error) error {
	if keys.refusal != nil {
		return keys.refusal
	}
	if ctx.Err() == nil && strings.Contains(err.Error(), "no common algorithm for host key") {
		return r.fail(HostKeyUnknown, "host key mismatch: the server has no host key of a type that the known hosts have for %s",
			plain(r.endpoint.address()))
	}
	if ctx.Err() == nil && strings.Contains(err.Error(), "unable to authenticate") {
		return r.fail(AuthenticationFailed, "the server does not accept the private key or the password of user %s", plain(r.sshUser()))
	}
	return r.failure(ctx, "connect", err)
}

func (r *repository) sshUser() string {
	switch {
	case r.endpoint.user != "":
		return r.endpoint.user
	case len(r.remote.Auth.PrivateKey) == 0 && r.remote.Auth.Username != "":
		return r.remote.Auth.Username
	default:
		return "git"
	}
}

// sshAuth gives the methods to authenticate with.
func (r *repository) sshAuth() ([]ssh.AuthMethod, error) {
	if len(r.remote.Auth.PrivateKey) > 0 {
		signer, err := r.signer()
		if err != nil {
			return nil, err
		}
		return []ssh.AuthMethod{ssh.PublicKeys(signer)}, nil
	}
	password := r.remote.Auth.Password
	if password == "" {
		password = r.endpoint.password
	}
	if password == "" {
		return nil, r.fail(InvalidCredentials, "ssh needs a private key or a password, and there is none")
	}
	answer := func(_, _ string, questions []string, echo []bool) ([]string, error) {
		answers := make([]string, len(questions))
		for n := range answers {
			if !echo[n] {
				answers[n] = password
			}
		}
		return answers, nil
	}
	return []ssh.AuthMethod{ssh.Password(password), ssh.KeyboardInteractive(answer)}, nil
}

func (r *repository) signer() (ssh.Signer, error) {
	key, passphrase := r.remote.Auth.PrivateKey, r.remote.Auth.Passphrase
	signer, err := ssh.ParsePrivateKey(key)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		if len(passphrase) == 0 {
			return nil, r.fail(InvalidCredentials, "the private key is encrypted, and there is no passphrase")
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(key, passphrase)
		if errors.Is(err, x509.IncorrectPasswordError) {
			return nil, r.fail(InvalidCredentials, "the passphrase of the private key is wrong")
		}
	}
	if err != nil {
		return nil, r.fail(InvalidCredentials, "the private key cannot be parsed: it must be a key for ssh in the PEM or the OpenSSH format")
	}
	return signer, nil
}

func (s *sshSession) advertise(context.Context) (io.Reader, error) {
	var err error
	if s.stdin, err = s.session.StdinPipe(); err != nil {
		return nil, err
	}
	if s.stdout, err = s.session.StdoutPipe(); err != nil {
		return nil, err
	}
	s.session.Stderr = s.stderr
	if err := s.session.Start(uploadPack + " " + quoted(s.repository.endpoint.path)); err != nil {
		return nil, err
	}
	s.started = true
	return s.stdout, nil
}

// quoted is the text for a shell, as git writes it.
func quoted(text string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(text) + "'"
}

func (s *sshSession) request(_ context.Context, wants []byte) (io.Reader, error) {
	if _, err := s.stdin.Write(wants); err != nil {
		return nil, s.explain(err)
	}
	return s.stdout, nil
}

// explain looks at what the server wrote to its standard error.
func (s *sshSession) explain(err error) error {
	if !s.started || !errors.Is(err, errEndOfMessages) && !errors.Is(err, io.EOF) {
		return err
	}
	// The messages are complete when the command has ended, which it has when its output has.
	_ = s.session.Wait()
	if text := s.stderr.text(); text != "" {
		return serverError(text)
	}
	return err
}

func (s *sshSession) close() {
	s.stop()
	_ = s.client.Close()
}

// tail keeps the end of what is written to it.
type tail struct {
	mutex sync.Mutex
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-maxStderr):]...)
	t.kept = t.kept[max(0, len(t.kept)-maxStderr):]
	return len(p), nil
}

func (t *tail) text() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
