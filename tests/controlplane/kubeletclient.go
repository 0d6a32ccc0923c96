package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// KubeletClientFile is the certificate by which kubelets know the API server, in PEM. It is its own authority.
func (cp *ControlPlane) KubeletClientFile() string {
	return filepath.Join(cp.Dir, "kubelet-client.crt")
}

// kubeletClientArgs generates that certificate and returns the flags that make the API server use it and find the kubelets.
func (cp *ControlPlane) kubeletClientArgs() ([]string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key for kubelets: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("generate the certificate for kubelets: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key for kubelets: %w", err)
	}
	keyFile := filepath.Join(cp.Dir, "kubelet-client.key")
	for path, block := range map[string]*pem.Block{
		cp.KubeletClientFile(): {Type: "CERTIFICATE", Bytes: certificate},
		keyFile:                {Type: "EC PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, fmt.Errorf("write the certificate for kubelets: %w", err)
		}
	}
	return []string{
		"--kubelet-client-certificate=" + cp.KubeletClientFile(),
		"--kubelet-client-key=" + keyFile,
		// Nobody answers for the names of nodes.
		"--kubelet-preferred-address-types=InternalIP",
	}, nil
}
