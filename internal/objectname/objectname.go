// Package objectname shortens names of objects so that they stay different.
package objectname

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Shorten returns text of at most limit characters. A longer text is cut, and a hash is added, so that different texts stay different.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return WithHash(text, text, limit)
}

// WithHash returns prefix with a hash of text at its end, at most limit characters.
func WithHash(text, prefix string, limit int) string {
	sum := sha256.Sum256([]byte(text))
	suffix := "-" + hex.EncodeToString(sum[:8])
	// A name must not have a dot or a dash before the dash.
	return strings.TrimRight(prefix[:min(len(prefix), limit-len(suffix))], ".-") + suffix
}
