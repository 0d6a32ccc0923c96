// Package credentials implements how the controller and the agent in a pod authenticate to each other. The agent proves that it has the
// private key of a certificate that the controller knows byte by byte. The controller proves with every call that it is the ServiceAccount
// that it runs as.
package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
)

const (
	// certificateLife is longer than the life of any pod: the certificate is pinned, so an earlier expiry would protect nothing.
	certificateLife = 10 * 365 * 24 * time.Hour
	// clockSkew is how far the clock of a node may be behind the controller's.
	clockSkew = time.Hour
	// serverName is the name in the certificate, for tools that insist on one.
	serverName = "workspace-agent"
	// certificateBlock is the PEM type of a certificate.
	certificateBlock = "CERTIFICATE"
)

// NewKeyPair generates the key of an agent (ECDSA P-256) and a self-signed certificate for it. It returns them as the data of a Secret of
// type kubernetes.io/tls. It fails only if the system's source of random numbers does.
func NewKeyPair() (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of an agent: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate the serial number of a certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: serverName},
		DNSNames:     []string{serverName},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate of an agent: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of an agent: %w", err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: certificate}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// errOtherCertificate is the error when another server than the agent answered.
var errOtherCertificate = errors.New("the server's certificate is not the one that the workspace's agent was given")

// Pinned returns the client's side of TLS 1.3 connections that are accepted only from the agent with the private key of this certificate
// (PEM encoded). Names, validity and authorities do not matter. It returns an error if the PEM data is not exactly one certificate.
func Pinned(certificatePEM []byte) (credentials.TransportCredentials, error) {
	pinned, err := parseCertificate(certificatePEM)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of an agent: %w", err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		// This only switches off the check of the authority and the name. The handshake still proves that the server has the key.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the certificate itself
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || subtle.ConstantTimeCompare(state.PeerCertificates[0].Raw, pinned) != 1 {
				return errOtherCertificate
			}
			return nil
		},
	}), nil
}

// parseCertificate returns the DER encoding of the one certificate in the PEM data.
func parseCertificate(data []byte) ([]byte, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != certificateBlock {
		return nil, errors.New("the data has no PEM block of type CERTIFICATE")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the data has more than one certificate")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, err
	}
	return block.Bytes, nil
}
