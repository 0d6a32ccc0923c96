package auth

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc/credentials"
)

// ServerTLS returns the server's side of TLS 1.3 connections with the key pair in the PEM files. It reads them again for each
// connection, so that a new key pair is used as soon as it is there; when they do not fit together, because they are just
// being replaced, the last pair that did stays. The error is about files that are unusable at the start.
func ServerTLS(certificateFile, keyFile string, log *slog.Logger) (credentials.TransportCredentials, error) {
	pair := &keyPair{certificateFile: certificateFile, keyFile: keyFile, log: log}
	if _, err := pair.load(); err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pair.current(), nil
		},
		// The client keeps connections; and every one of them should prove the key.
		SessionTicketsDisabled: true,
	}), nil
}

// keyPair is a certificate with its key, as the files had them last.
type keyPair struct {
	certificateFile, keyFile string
	log                      *slog.Logger

	mu               sync.Mutex
	certificate, key []byte
	parsed           *tls.Certificate
}

// current returns the key pair that is in the files now or, failing that, the last one.
func (p *keyPair) current() *tls.Certificate {
	parsed, err := p.load()
	if err != nil {
		p.log.Warn("the key pair cannot be read again; the last one is used", "error", err.Error())
	}
	return parsed
}

// load reads the files, and parses them when they have changed. It always returns the last key pair that was fine.
func (p *keyPair) load() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	certificate, err := readFile(p.certificateFile)
	if err != nil {
		return p.parsed, fmt.Errorf("read the certificate: %w", err)
	}
	key, err := readFile(p.keyFile)
	if err != nil {
		return p.parsed, fmt.Errorf("read the key of the certificate: %w", err)
	}
	if p.parsed != nil && bytes.Equal(certificate, p.certificate) && bytes.Equal(key, p.key) {
		return p.parsed, nil
	}
	parsed, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return p.parsed, fmt.Errorf("load the key pair %s and %s: %w", p.certificateFile, p.keyFile, err)
	}
	p.certificate, p.key, p.parsed = certificate, key, &parsed
	return p.parsed, nil
}
