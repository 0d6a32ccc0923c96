package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenSeconds is how long a ServiceAccount token is valid, longer than any test run.
const tokenSeconds = 24 * 60 * 60

// Config returns a copy of the administrator's client configuration.
func (cp *ControlPlane) Config() *rest.Config { return rest.CopyConfig(cp.config) }

// UserConfig returns a configuration whose requests count as the named user's in the given groups, by impersonation.
// A ServiceAccount is the user system:serviceaccount:NAMESPACE:NAME.
func (cp *ControlPlane) UserConfig(user string, groups ...string) *rest.Config {
	config := cp.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

// TokenConfig returns a configuration with the token of a user whom the options name.
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
