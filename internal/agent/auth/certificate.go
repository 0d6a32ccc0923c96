package auth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/stack-controller/stack-controller/internal/file"
)

// ServerTLS returns the server's side of TLS 1.3 connections with the key pair in the PEM files. It reads the files again for each
// connection, so that a controller that expects a new key pair can call the agent before the pod is replaced for it. If the files do not match, because they are just being replaced, it
// uses the last pair that did. It returns an error if the files are unusable at the start.
func ServerTLS(certificateFile, keyFile string, log *slog.Logger) (credentials.TransportCredentials, error) {
	pair := &keyPair{certificateFile: certificateFile, keyFile: keyFile, log: log}
	if err := pair.load(); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pair.current(), nil
		},
		// The client reuses connections, and each new connection should prove that the agent has the key.
		SessionTicketsDisabled: true,
	}), nil
}

// keyPair is a certificate with its key, as last read from the files.
type keyPair struct {
	certificateFile, keyFile string
	log                      *slog.Logger
	parsed                   atomic.Pointer[tls.Certificate]
}

// current returns the key pair in the files or, if that fails, the last one.
func (p *keyPair) current() *tls.Certificate {
	if err := p.load(); err != nil {
		p.log.Warn("the key pair cannot be read again; the last one is used", "error", err.Error())
	}
	return p.parsed.Load()
}

func (p *keyPair) load() error {
	certificate, err := file.Read(p.certificateFile, maxFile)
	key, keyErr := file.Read(p.keyFile, maxFile)
	var parsed tls.Certificate
	if err = errors.Join(err, keyErr); err == nil {
		parsed, err = tls.X509KeyPair(certificate, key)
	}
	if err != nil {
		return fmt.Errorf("load the key pair %s and %s: %w", p.certificateFile, p.keyFile, err)
	}
	p.parsed.Store(&parsed)
	return nil
}
