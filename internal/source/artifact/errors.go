package artifact

import (
	"errors"
	"fmt"
)

// ErrNotStored is wrapped by errors about an artifact that the store does not have, or has no longer.
var ErrNotStored = errors.New("artifact is not stored")

// Kind says what a caller can do about an artifact that was not stored.
type Kind string

const (
	// NotFound means that the server has no such file, or that a Maker cannot find what it makes the artifact from. Sources remove an
	// artifact soon after a newer one replaced it, so the Stack controller reads the source again when it gets this kind: see
	// observeContent in internal/controller/stack/observe.go.
	NotFound Kind = "NotFound"
	// Integrity means that the content does not have the digest that the source published. It must not be used.
	Integrity Kind = "Integrity"
	// TooLarge means that the artifact exceeds a limit of this store, packed, unpacked or in its number of entries.
	TooLarge Kind = "TooLarge"
	// Unavailable means that the server, the network or this store's disk failed; the next attempt may succeed.
	Unavailable Kind = "Unavailable"
	// Unusable means that the reference or the archive is not acceptable, and the next attempt would fail, too.
	Unusable Kind = "Unusable"
)

// FetchError says why an artifact is not in the store. Its message has no credentials: of the URL only scheme, host
// and path.
type FetchError struct {
	Kind Kind
	// URL is where the artifact was fetched from, without credentials; empty for content that a Maker makes.
	URL string

	err error
}

// NewMakeError returns the error of a Maker with its kind. An error of another type counts as Unavailable.
func NewMakeError(kind Kind, err error) *FetchError {
	return &FetchError{Kind: kind, err: err}
}

// Error implements error.
func (e *FetchError) Error() string {
	if e.URL == "" {
		return fmt.Sprintf("make artifact: %v", e.err)
	}
	return fmt.Sprintf("fetch artifact %s: %v", e.URL, e.err)
}

// Unwrap returns what went wrong.
func (e *FetchError) Unwrap() error { return e.err }
