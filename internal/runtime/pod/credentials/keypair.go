// Package credentials holds what the controller and the agent in a pod prove to each other: the agent that it has the
// private key of a certificate which the controller knows byte by byte, the controller, with every call, that it is
// the ServiceAccount that it runs as.
package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// certificateLife is longer than any pod's: the certificate is pinned, so its expiry protects nobody.
	certificateLife = 10 * 365 * 24 * time.Hour
	// clockSkew is how far the clock of a node may be behind the controller's.
	clockSkew = time.Hour
	// serverName is the name in the certificate, for tools that insist on one.
	serverName = "workspace-agent"
)

// NewKeyPair generates the key of an agent, ECDSA P-256, with a certificate that it signed itself, as the data of a Secret
// of type kubernetes.io/tls. The error is that of the system's source of random numbers.
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
