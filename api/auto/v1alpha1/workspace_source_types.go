package v1alpha1

import corev1 "k8s.io/api/core/v1"

// GitSource is a commit in a git repository.
type GitSource struct {
	// URL of the repository: http, https, ssh, or the short form user@host:path.
	// +optional
	URL string `json:"url,omitempty"`

	// Ref is the commit, or the full or short name of a branch or tag.
	// +optional
	Ref string `json:"ref,omitempty"`

	// Dir is the directory of Pulumi.yaml in the repository, relative to its root. Empty means the root.
	// +optional
	Dir string `json:"dir,omitempty"`

	// Auth holds the credentials for the repository.
	// +optional
	Auth *GitAuth `json:"auth,omitempty"`

	// Shallow fetches only the commit, without its history.
	// +optional
	Shallow bool `json:"shallow,omitempty"`
}

// GitAuth holds credentials for a git repository. When several are set, the private key is used, else the token, else the GitHub
// App, else user name and password.
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

	// Dir is the directory of Pulumi.yaml in the artifact, relative to its root. Empty means the root.
	// +optional
	Dir string `json:"dir,omitempty"`
}

// LocalSource is a program that the image or an init container brings along.
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
}
