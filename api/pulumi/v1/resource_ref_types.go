package v1

// ResourceRefType is the type of a ResourceRef. The API server accepts any text, as with the Pulumi Kubernetes Operator; the controller
// rejects unknown types.
type ResourceRefType string

const (
	// ResourceRefEnv is an environment variable. The type is deprecated, and the controller rejects it.
	ResourceRefEnv ResourceRefType = "Env"

	// ResourceRefFS is a file. The type is deprecated, and the controller rejects it.
	ResourceRefFS ResourceRefType = "FS"

	// ResourceRefSecret is a key of a Secret.
	ResourceRefSecret ResourceRefType = "Secret"

	// ResourceRefLiteral is the value itself.
	ResourceRefLiteral ResourceRefType = "Literal"

	// ResourceRefFile is a file of the workspace pod, for an environment variable.
	ResourceRefFile ResourceRefType = "File"
)

// ResourceRef is a value, or a reference to one. Set the field that type names.
type ResourceRef struct {
	// Type is Secret, Literal or, in envRefs, File. Env and FS are deprecated and rejected.
	// +required
	Type ResourceRefType `json:"type"`

	// Env is an environment variable (type Env, deprecated).
	// +optional
	Env *EnvSelector `json:"env,omitempty"`

	// FileSystem is a file (type FS, deprecated).
	// +optional
	FileSystem *FSSelector `json:"filesystem,omitempty"`

	// SecretRef is a key of a Secret (type Secret).
	// +optional
	SecretRef *SecretSelector `json:"secret,omitempty"`

	// File is a file of the workspace pod (type File).
	// +optional
	File *FileSelector `json:"file,omitempty"`

	// LiteralRef is the value itself (type Literal).
	// +optional
	LiteralRef *LiteralRef `json:"literal,omitempty"`
}

// EnvSelector names an environment variable.
type EnvSelector struct {
	// Name of the variable.
	// +required
	Name string `json:"name"`
}

// FSSelector names a file.
type FSSelector struct {
	// Path of the file.
	// +required
	Path string `json:"path"`
}

// FileSelector names a file of the workspace pod, such as the projected token of a cloud identity.
type FileSelector struct {
	// Path of the file, below /var/run/secrets/. It is read each time an operation starts.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Path string `json:"path"`
}

// SecretSelector names a key of a Secret.
type SecretSelector struct {
	// Name of the Secret.
	// +required
	Name string `json:"name"`

	// Key in the Secret.
	// +required
	Key string `json:"key"`

	// Namespace of the Secret. If set, it must be that of the Stack.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// LiteralRef is a value in plain text.
type LiteralRef struct {
	// Value is the value.
	// +required
	Value string `json:"value"`
}

// ConfigMapRef names a key of a ConfigMap in the namespace of the Stack.
type ConfigMapRef struct {
	// Name of the ConfigMap.
	// +required
	Name string `json:"name"`

	// Key in the ConfigMap.
	// +required
	Key string `json:"key"`

	// JSON parses the value as JSON, so that it becomes a structured value.
	// +optional
	JSON bool `json:"json,omitempty"`
}
