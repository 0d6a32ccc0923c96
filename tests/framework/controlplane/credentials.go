package controlplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// credentials are the secrets of one control plane. They exist only in its directory and in memory.
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

// newCredentials generates all secrets and writes the files into the directory. The address is that of the API server.
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
	c.servingCA = certificate // contains the certificate of the authority too
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

// newTokens generates a token for the administrator and for each user, and returns the content of the API server's token file.
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

// tokenSeconds is how long a ServiceAccount token is valid, longer than any test run.
const tokenSeconds = 24 * 60 * 60

// Config returns a copy of the administrator's client configuration.
func (cp *ControlPlane) Config() *rest.Config { return rest.CopyConfig(cp.config) }

// UserConfig returns a configuration whose requests run as the named user in the given groups, by impersonation. A ServiceAccount is the
// user system:serviceaccount:NAMESPACE:NAME.
func (cp *ControlPlane) UserConfig(user string, groups ...string) *rest.Config {
	config := cp.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

// TokenConfig returns a configuration with the token of a user in Options.Users.
func (cp *ControlPlane) TokenConfig(user string) *rest.Config {
	config := cp.Config()
	config.BearerToken = cp.credentials.tokens[user]
	return config
}

// ServiceAccountConfig returns a configuration with a real token of the ServiceAccount, which has to exist.
func (cp *ControlPlane) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	clientset, err := kubernetes.NewForConfig(cp.config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	seconds := int64(tokenSeconds)
	response, err := clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := cp.Config()
	config.BearerToken = response.Status.Token
	return config, nil
}

// WriteKubeconfig writes the configuration (address, authority, bearer token, impersonation) as the kubeconfig file
// NAME.kubeconfig in the control plane's directory and returns its path.
func (cp *ControlPlane) WriteKubeconfig(name string, config *rest.Config) (string, error) {
	path := filepath.Join(cp.Dir, name+".kubeconfig")
	kubeconfig := clientcmdapi.Config{
		CurrentContext: name,
		Clusters: map[string]*clientcmdapi.Cluster{
			"control-plane": {Server: config.Host, CertificateAuthorityData: config.CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			name: {
				Token:             config.BearerToken,
				Impersonate:       config.Impersonate.UserName,
				ImpersonateGroups: config.Impersonate.Groups,
			},
		},
		Contexts: map[string]*clientcmdapi.Context{
			name: {Cluster: "control-plane", AuthInfo: name},
		},
	}
	if err := clientcmd.WriteToFile(kubeconfig, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", name, err)
	}
	return path, nil
}

// KubeletClientFile returns the path of the certificate by which kubelets authenticate the API server, in PEM. The certificate is its own
// authority.
func (cp *ControlPlane) KubeletClientFile() string {
	return filepath.Join(cp.Dir, "kubelet-client.crt")
}

// kubeletClientArgs generates that certificate and returns the flags with which the API server uses it and reaches the kubelets.
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
		// No DNS server resolves the names of nodes.
		"--kubelet-preferred-address-types=InternalIP",
	}, nil
}
