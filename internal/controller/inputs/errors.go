package inputs

import (
	"fmt"
	"strings"

	"github.com/stack-controller/stack-controller/internal/references"
)

// MissingError is a Secret, a ConfigMap, an output or a key in one that does not exist. It may appear any time, so the operation waits for it.
type MissingError struct {
	Kind references.Kind
	Name string
	// Key is empty when the object itself is missing.
	Key string
	// UsedBy says what needs it, for example `environment variable "TOKEN"`.
	UsedBy string
	// OfInput is true when an input needs it.
	OfInput bool
	// NotStored is true when the Stack has the output, or may have it, and its next update stores it. A default does not take its place then.
	NotStored bool
	// problem says more about an output that is missing.
	problem string
}

func (e *MissingError) Error() string {
	word, problem := "key", "it does not exist"
	if e.Kind == ofStack {
		word = "output"
	}
	if e.problem != "" {
		problem = e.problem
	}
	key := ""
	if e.Key != "" {
		key = fmt.Sprintf("%s %q in ", word, e.Key)
	}
	return fmt.Sprintf("waiting for %s%s %q, which %s needs: %s", key, strings.ToLower(string(e.Kind)), e.Name, e.UsedBy, problem)
}

// DeniedError is an output that its Stack does not share. It does not tell whether there is such a Stack or output.
type DeniedError struct{ message string }

func (e *DeniedError) Error() string { return e.message }

// InvalidError reports what only an edit can fix. It never quotes a value.
type InvalidError struct{ message string }

func (e *InvalidError) Error() string { return e.message }

// Invalidf returns an *InvalidError.
func Invalidf(format string, args ...any) error {
	return &InvalidError{message: fmt.Sprintf(format, args...)}
}
