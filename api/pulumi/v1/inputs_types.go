package v1

// UpdateInputs identify what an update or a plan is made of. A Stack whose inputs are not those of its last update is updated.
type UpdateInputs struct {
	InputsWithoutCommit `json:",inline"`

	// Commit is what the update runs: the digest of the artifact, or the hash of the git commit. Empty when the Stack has no source.
	// +optional
	Commit string `json:"commit,omitempty"`
}

// InputsWithoutCommit are the inputs of an update apart from the commit, which has another name in the status of the last update.
type InputsWithoutCommit struct {
	// Generation of the Stack that the update or the plan is for, or a later one with the same specification: a manifest that changes nothing can also
	// lead to a new generation.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// SpecDigest identifies the specification of the Stack.
	// +optional
	SpecDigest string `json:"specDigest,omitempty"`

	// Revision of the source, for example "main@sha1:…".
	// +optional
	Revision string `json:"revision,omitempty"`

	// ContentDigest identifies the content of the source that the stack consists of.
	// +optional
	ContentDigest string `json:"contentDigest,omitempty"`

	// ReferencesDigest identifies the versions of the watched Secrets and ConfigMaps, with one short hash for each. It reveals nothing about
	// their content. Any other version causes an update.
	// +optional
	ReferencesDigest string `json:"referencesDigest,omitempty"`

	// InputValuesDigest identifies the values of spec.inputs, with one short hash for each. The key of the hashes is in a Secret, so it reveals
	// nothing about the values. Any other value causes an update.
	// +optional
	InputValuesDigest string `json:"inputValuesDigest,omitempty"`

	// InputVersionsDigest identifies the versions of the objects that these values were read from. The values are read again when there is
	// another version.
	// +optional
	InputVersionsDigest string `json:"inputVersionsDigest,omitempty"`
}

// HasContentOf reports whether both are known to have the same specification and, perhaps in different commits, the same content.
func (i UpdateInputs) HasContentOf(other UpdateInputs) bool {
	return i.SpecDigest != "" && i.SpecDigest == other.SpecDigest && i.ContentDigest != "" && i.ContentDigest == other.ContentDigest
}

// Inputs returns the inputs of the update.
func (s *StackUpdateStatus) Inputs() UpdateInputs {
	return UpdateInputs{InputsWithoutCommit: s.InputsWithoutCommit, Commit: s.LastAttemptedCommit}
}

// SetInputs records the inputs of the update.
func (s *StackUpdateStatus) SetInputs(inputs UpdateInputs) {
	s.InputsWithoutCommit, s.LastAttemptedCommit = inputs.InputsWithoutCommit, inputs.Commit
}
