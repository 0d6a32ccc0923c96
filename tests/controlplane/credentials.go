package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
)

// credentials are the secrets of one control plane; they exist only in its directory and memory.
type credentials struct {
	servingCA       []byte // PEM
	servingCertFile string
	servingKeyFile  string
	accountKeyFile  string
	tokenFile       string
	adminToken      string
}

// newCredentials generates everything and writes the files into the directory.
func newCredentials(dir string) (*credentials, error) {
	c := &credentials{
		servingCertFile: filepath.Join(dir, "apiserver.crt"),
		servingKeyFile:  filepath.Join(dir, "apiserver.key"),
		accountKeyFile:  filepath.Join(dir, "service-account.key"),
		tokenFile:       filepath.Join(dir, "tokens.csv"),
		adminToken:      rand.Text(),
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("generate the API server's certificate: %w", err)
	}
	c.servingCA = certificate // holds the certificate of the authority too
	accountKey, err := newAccountKey()
	if err != nil {
		return nil, err
	}
	for path, content := range map[string][]byte{
		c.servingCertFile: certificate,
		c.servingKeyFile:  key,
		c.accountKeyFile:  accountKey,
		c.tokenFile:       []byte(c.adminToken + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, fmt.Errorf("write the credentials: %w", err)
		}
	}
	return c, nil
}

// newAccountKey generates the key that signs ServiceAccount tokens, PEM encoded.
func newAccountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the ServiceAccount key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the ServiceAccount key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
