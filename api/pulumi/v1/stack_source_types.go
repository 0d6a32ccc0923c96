package v1

import (
	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// GitSource is a program in a git repository. Its fields are part of the specification of a Stack.
type GitSource struct {
	// ProjectRepo is the URL of the git repository with the program: http, https, ssh, or the short form user@host:path.
	// +optional
	ProjectRepo string `json:"projectRepo,omitempty"`

	// RepoDir is the directory of Pulumi.yaml in the repository, relative to its root. Defaults to the root.
	// +optional
	RepoDir string `json:"repoDir,omitempty"`

	// Commit to run: a hash, full or shortened to at least 7 digits, or the name of a tag or branch. Only a hash pins what is run. Set either
	// commit or branch.
	// +optional
	Commit string `json:"commit,omitempty"`

	// Branch to follow, as a short name or a full reference such as refs/heads/main or refs/tags/v1. Set either branch or commit.
	// +optional
	Branch string `json:"branch,omitempty"`

	// Shallow has no effect: the history is never part of what is run, and is not fetched if the server supports that.
	// +optional
	Shallow bool `json:"shallow,omitempty"`

	// RecurseSubmodules also checks out the submodules of the repository, with the same credentials if they are on the same host.
	// +optional
	RecurseSubmodules bool `json:"recurseSubmodules,omitempty"`

	// GitAuthSecret is deprecated: use gitAuth. It is the name of a Secret with the keys sshPrivateKey (and password), or
	// accessToken, or username and password, or with the keys of Flux.
	// +optional
	GitAuthSecret string `json:"gitAuthSecret,omitempty"`

	// GitAuth holds the credentials for the repository. The first of sshAuth, accessToken, githubApp and basicAuth that is set is used.
	// +optional
	GitAuth *GitAuthConfig `json:"gitAuth,omitempty"`
}

// GitAuthConfig holds credentials for a git repository. The first of sshAuth, accessToken, githubApp and basicAuth that is set is used.
type GitAuthConfig struct {
	// PersonalAccessToken is a personal or other access token.
	// +optional
	PersonalAccessToken *ResourceRef `json:"accessToken,omitempty"`

	// SSHAuth authenticates with a private key.
	// +optional
	SSHAuth *SSHAuth `json:"sshAuth,omitempty"`

	// BasicAuth authenticates with user name and password.
	// +optional
	BasicAuth *BasicAuth `json:"basicAuth,omitempty"`

	// GitHubApp authenticates as an installation of a GitHub App.
	// +optional
	GitHubApp *GitHubAppAuth `json:"githubApp,omitempty"`

	// KnownHostsRef refers to the public keys of ssh servers. Defaults to the key known_hosts of the Secret with the private key. Other
	// servers are looked up in the controller's known hosts.
	// +optional
	KnownHostsRef *autov1alpha1.KnownHostsReference `json:"knownHostsRef,omitempty"`

	// CertSecretRef names a Secret with the CA certificate of the server in ca.crt, a client certificate in tls.crt and tls.key, or both.
	// +optional
	CertSecretRef *meta.LocalObjectReference `json:"certSecretRef,omitempty"`

	// ProxySecretRef names a Secret with the key address and, optionally, username and password, of an http, https or socks5 proxy. For ssh,
	// only socks5 is possible. Defaults to the proxy variables in the controller's environment.
	// +optional
	ProxySecretRef *meta.LocalObjectReference `json:"proxySecretRef,omitempty"`
}

// SSHAuth authenticates with a private key.
type SSHAuth struct {
	// SSHPrivateKey is the PEM-encoded private key.
	// +required
	SSHPrivateKey ResourceRef `json:"sshPrivateKey"`

	// Password of the private key.
	// +optional
	Password *ResourceRef `json:"password,omitempty"`
}

// BasicAuth authenticates with user name and password.
type BasicAuth struct {
	// UserName to log in with.
	// +required
	UserName ResourceRef `json:"userName"`

	// Password of the user.
	// +required
	Password ResourceRef `json:"password"`
}

// GitHubAppAuth authenticates as an installation of a GitHub App.
type GitHubAppAuth struct {
	// AppID is the ID of the app.
	// +required
	AppID ResourceRef `json:"appID"`

	// InstallationID is the ID of the installation.
	// +required
	InstallationID ResourceRef `json:"installationID"`

	// PrivateKey is the PEM-encoded private key of the app.
	// +required
	PrivateKey ResourceRef `json:"privateKey"`
}

// FluxSource is a program in the artifact of a Flux source.
type FluxSource struct {
	// SourceRef names the source.
	// +required
	SourceRef FluxSourceReference `json:"sourceRef"`

	// Dir is the directory of Pulumi.yaml in the artifact, relative to its root. Defaults to the root.
	// +optional
	Dir string `json:"dir,omitempty"`
}

// FluxSourceReference names a Flux source: a GitRepository, OCIRepository, Bucket or ExternalArtifact, or an object of another
// kind that publishes its artifact in the same way.
type FluxSourceReference struct {
	// APIVersion of the source. Only the group matters; the version is ignored. Defaults to source.toolkit.fluxcd.io/v1.
	// +kubebuilder:default="source.toolkit.fluxcd.io/v1"
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind of the source.
	// +required
	Kind string `json:"kind"`

	// Name of the source.
	// +required
	Name string `json:"name"`

	// Namespace of the source. Defaults to that of the Stack. Others are rejected unless the controller has --no-cross-namespace-refs=false.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// ProgramReference names a Program in the namespace of the Stack.
type ProgramReference struct {
	// Name of the Program.
	// +required
	Name string `json:"name"`
}
