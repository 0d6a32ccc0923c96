package v1alpha1

import (
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
)

// GitSource is a commit in a git repository.
type GitSource struct {
	// URL of the repository: http, https, ssh, or the short form user@host:path.
	// +optional
	URL string `json:"url,omitempty"`

	// Ref is the hash of a commit, or the full or short name of a branch or tag.
	// +optional
	Ref string `json:"ref,omitempty"`

	// Dir is the directory of Pulumi.yaml in the repository, relative to its root. Defaults to the root.
	// +optional
	Dir string `json:"dir,omitempty"`

	// Auth holds the credentials for the repository.
	// +optional
	Auth *GitAuth `json:"auth,omitempty"`

	// Shallow has no effect: the history is never part of what is run, and is not fetched if the server supports that.
	// +optional
	Shallow bool `json:"shallow,omitempty"`

	// RecurseSubmodules also checks out the submodules of the repository, with the same credentials if they are on the same host.
	// +optional
	RecurseSubmodules bool `json:"recurseSubmodules,omitempty"`
}

// GitAuth holds credentials for a git repository. The first of these that is set is used: the private key, the token, the GitHub App, user
// name and password, secretRef.
type GitAuth struct {
	// SSHPrivateKey is a PEM-encoded private key.
	// +optional
	SSHPrivateKey *corev1.SecretKeySelector `json:"sshPrivateKey,omitempty"`

	// Username for basic authentication.
	// +optional
	Username *corev1.SecretKeySelector `json:"username,omitempty"`

	// Password for basic authentication, or of the private key.
	// +optional
	Password *corev1.SecretKeySelector `json:"password,omitempty"`

	// Token is a personal or other access token.
	// +optional
	Token *corev1.SecretKeySelector `json:"token,omitempty"`

	// GitHubApp authenticates as an installation of a GitHub App.
	// +optional
	GitHubApp *GitHubAppAuth `json:"githubApp,omitempty"`

	// SecretRef names a Secret with any of the keys sshPrivateKey and password, accessToken, or username and password.
	// +optional
	SecretRef *meta.LocalObjectReference `json:"secretRef,omitempty"`

	// KnownHostsRef refers to the public keys of ssh servers. Defaults to the key known_hosts of the Secret with the private key. Other
	// servers are looked up in the controller's known hosts.
	// +optional
	KnownHostsRef *KnownHostsReference `json:"knownHostsRef,omitempty"`

	// CertSecretRef names a Secret with the CA certificate of the server in ca.crt, a client certificate in tls.crt and tls.key, or both.
	// +optional
	CertSecretRef *meta.LocalObjectReference `json:"certSecretRef,omitempty"`

	// ProxySecretRef names a Secret with the key address and, optionally, username and password, of an http, https or socks5 proxy. For ssh,
	// only socks5 is possible. Defaults to the proxy variables in the controller's environment.
	// +optional
	ProxySecretRef *meta.LocalObjectReference `json:"proxySecretRef,omitempty"`
}

// KnownHostsReference names a key of a ConfigMap or Secret with lines as in the known_hosts file of ssh.
type KnownHostsReference struct {
	// Kind is ConfigMap, the default, or Secret.
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	// +kubebuilder:default=ConfigMap
	// +optional
	Kind string `json:"kind,omitempty"`

	// Name of the object, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name"`

	// Key in the object. Defaults to known_hosts.
	// +kubebuilder:default=known_hosts
	// +optional
	Key string `json:"key,omitempty"`
}

// GitHubAppAuth identifies an installation of a GitHub App.
type GitHubAppAuth struct {
	// AppID is the ID of the app.
	// +required
	AppID *corev1.SecretKeySelector `json:"appID"`

	// InstallationID is the ID of the installation.
	// +required
	InstallationID *corev1.SecretKeySelector `json:"installationID"`

	// PrivateKey is the PEM-encoded private key of the app.
	// +required
	PrivateKey *corev1.SecretKeySelector `json:"privateKey"`
}

// FluxSource is an artifact that a Flux source published.
type FluxSource struct {
	// URL of the artifact's tarball.
	// +optional
	URL string `json:"url,omitempty"`

	// Digest of the tarball, for example "sha256:…".
	// +optional
	Digest string `json:"digest,omitempty"`

	// Dir is the directory of Pulumi.yaml in the artifact, relative to its root. Defaults to the root.
	// +optional
	Dir string `json:"dir,omitempty"`
}

// LocalSource is a program in the pod, from the image or an init container.
type LocalSource struct {
	// Dir is the directory of Pulumi.yaml. A relative path starts at the workspace directory.
	// +optional
	Dir string `json:"dir,omitempty"`
}

// ProjectInfo identifies a Pulumi project without its program. It is enough to destroy or refresh a stack from its state.
type ProjectInfo struct {
	// Name of the project.
	// +required
	Name string `json:"name"`

	// Runtime of the project, for example "yaml" or "nodejs".
	// +required
	Runtime string `json:"runtime"`

	// NeedsProgram is true if the program is needed to destroy or refresh the stack, too, because it has the provider of a resource: a dynamic
	// provider, or a plugin that Pulumi.yaml has by its path.
	// +optional
	NeedsProgram bool `json:"needsProgram,omitempty"`
}
