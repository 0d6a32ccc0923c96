// Package redact hides known secret values in text: log lines, messages, error texts.
//
// A Redactor knows values, not patterns: it guesses nothing. It finds each value unchanged and in the encodings in which programs commonly
// print values, and replaces it by Mask: JSON and Go strings, URL escapes, base64 at any alignment and with its lines wrapped anywhere, and
// hexadecimal digits with or without separators. Because people read logs line by line, it also finds the single lines of a value of
// several lines, of its base64 as PEM and MIME wrap it, and of a dump of it.
//
// A short value may be a part of ordinary words. The value, its escapes and its base64 are therefore hidden only where they are whole
// words: "test" in "pass=test", but not in "latest". A value of 6 bytes or more is hidden anywhere in base64 and hexadecimal digits, which
// contain no words.
//
// The Redactor does not find: lines of less than 8 bytes and the frame of a PEM file, because text would not be readable without them; a
// dump of something longer that contains the value; a value that the program encoded twice, compressed, encrypted, reversed or cut.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"sync"
	"unicode/utf8"
)

// Mask stands for a secret value; it is the text that pulumi itself uses.
const Mask = "[secret]"

const (
	// minLength is the length in bytes from which a value is hidden. Pulumi has the same limit: hiding shorter values would make ordinary text
	// unreadable, and they reveal little.
	minLength = 3
	// minLengthInWords is the length in characters from which a value is also hidden in the middle of a word.
	minLengthInWords = 8
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
		// Programs seldom print the newline at the end of a file.
		if trimmed := strings.TrimSpace(value); trimmed != value {
			r.addForms(trimmed)
		}
		for _, line := range lines(value) {
			r.index.add(exact, line, false)
		}
		r.addPieces(value)
	}
}

func (r *Redactor) addForms(value string) {
	wholeWord := utf8.RuneCountInString(strings.TrimSpace(value)) < minLengthInWords
	for _, form := range spellings(value) {
		r.index.add(exact, form, wholeWord)
	}
	if len(value) >= minSpreadLength {
		for _, digits := range embeddedBase64(value) {
			r.index.add(base64Digits, digits, false)
		}
		r.index.add(hexDigits, hex.EncodeToString([]byte(value)), false)
	}
}

// addPieces adds the parts of a longer value that are in one line of its base64 or of a dump.
func (r *Redactor) addPieces(value string) {
	encoded := base64.StdEncoding.EncodeToString([]byte(value))
	for _, columns := range []int{pemColumns, mimeColumns} {
		if len(encoded) > columns {
			for _, piece := range pieces(encoded, columns) {
				r.index.add(exact, piece, false)
			}
		}
	}
	if len(value) <= dumpColumns || len(value) > maxDumped {
		return
	}
	for _, piece := range pieces(value, dumpColumns) {
		r.index.add(hexDigits, hex.EncodeToString([]byte(piece)), false)
		// The two spaces and the bar are what precedes the text in a dump: without them, 16 bytes of a value may be ordinary text.
		r.index.add(exact, "  "+printable(piece), false)
		r.index.add(exact, "|"+printable(piece), false)
	}
}

// String returns the text with every known value replaced by Mask.
func (r *Redactor) String(text string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out bytes.Buffer
	r.index.scan([]byte(text), 0, 0, true, &out)
	return out.String()
}

// worthHiding reports whether hiding the value protects anything.
func worthHiding(value string) bool {
	switch strings.TrimSpace(value) {
	case "true", "false", "null":
		return false
	}
	return len(strings.TrimSpace(value)) >= minLength
}
