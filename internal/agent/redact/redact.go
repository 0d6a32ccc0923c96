// Package redact hides known secret values in text: log lines, messages, error texts.
//
// A Redactor knows values, not patterns: nothing is guessed. It finds each value as it is and in the encodings in which
// programs commonly print one (JSON and Go strings, base64 at any alignment, URL escapes), and replaces it by Mask.
// Lines of a value of several lines are hidden on their own too, because logs are read line by line.
package redact

import (
	"bytes"
	"strings"
	"sync"
)

// Mask stands for a secret value; it is the text that pulumi itself uses.
const Mask = "[secret]"

const (
	// MinLength is the length in bytes from which a value is hidden. Pulumi draws the same line: shorter ones would blot out
	// ordinary text, and say little when they are seen.
	MinLength = 3
	// minLineLength is the length in bytes from which a line of a longer value is hidden on its own. Shorter lines of a
	// kubeconfig or a certificate are ordinary text.
	minLineLength = 16
)

// Redactor replaces the secret values that it knows. The zero value knows none. It is safe for concurrent use.
type Redactor struct {
	mu    sync.RWMutex
	index index
}

// New returns a Redactor that knows the values.
func New(values ...string) *Redactor {
	r := &Redactor{}
	r.Add(values...)
	return r
}

// Add makes more values known. It counts for text that is redacted after it returned.
func (r *Redactor) Add(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, value := range values {
		if !worthHiding(value) {
			continue
		}
		r.addForms(value)
		// The newline at the end of a file is seldom part of what is printed.
		if trimmed := strings.TrimSpace(value); trimmed != value {
			r.addForms(trimmed)
		}
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minLineLength && line != value {
				r.index.add(line)
			}
		}
	}
}

func (r *Redactor) addForms(value string) {
	r.index.add(value)
	for _, form := range encodings(value) {
		r.index.add(form)
	}
}

// String returns the text with every known value replaced by Mask.
func (r *Redactor) String(text string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out bytes.Buffer
	r.index.scan([]byte(text), 0, true, &out)
	return out.String()
}

// worthHiding tells whether hiding the value protects anything.
func worthHiding(value string) bool {
	switch strings.TrimSpace(value) {
	case "true", "false", "null":
		return false
	}
	return len(strings.TrimSpace(value)) >= MinLength
}
