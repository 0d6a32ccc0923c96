package controlplane

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/util/cert"
)

// credentials are the secrets of one control plane; they exist only in its directory and memory.
type credentials struct {
	servingCA       []byte // PEM
	servingCertFile string
	servingKeyFile  string
	accountKeyFile  string
	tokenFile       string
	tokens          map[string]string // by user
}

// administrator is the name of the user who may do everything.
const administrator = "admin"

// newCredentials generates everything and writes the files into the directory. The address is the API server's.
func newCredentials(dir, address string, users map[string][]string) (*credentials, error) {
	c := &credentials{
		servingCertFile: filepath.Join(dir, "apiserver.crt"),
		servingKeyFile:  filepath.Join(dir, "apiserver.key"),
		accountKeyFile:  filepath.Join(dir, "service-account.key"),
		tokenFile:       filepath.Join(dir, "tokens.csv"),
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.ParseIP(address), net.ParseIP(serviceAddress)}, serviceNames())
	if err != nil {
		return nil, fmt.Errorf("generate the API server's certificate: %w", err)
	}
	c.servingCA = certificate // holds the certificate of the authority too
	accountKey, err := newAccountKey()
	if err != nil {
		return nil, err
	}
	tokens := c.newTokens(users)
	for path, content := range map[string][]byte{
		c.servingCertFile: certificate,
		c.servingKeyFile:  key,
		c.accountKeyFile:  accountKey,
		c.tokenFile:       tokens,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, fmt.Errorf("write the credentials: %w", err)
		}
	}
	return c, nil
}

// newTokens generates a token for the administrator and for each user, and returns the file that tells the API server.
func (c *credentials) newTokens(users map[string][]string) []byte {
	users = maps.Clone(users)
	if users == nil {
		users = map[string][]string{}
	}
	users[administrator] = []string{"system:masters"}
	c.tokens = map[string]string{}
	var file bytes.Buffer
	for user, groups := range users {
		c.tokens[user] = rand.Text()
		fmt.Fprintf(&file, "%s,%s,%s,%q\n", c.tokens[user], user, user, strings.Join(groups, ","))
	}
	return file.Bytes()
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
