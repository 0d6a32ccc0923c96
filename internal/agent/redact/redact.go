// Package redact hides known secret values in text: log lines, messages, error texts.
//
// A Redactor knows values, not patterns: nothing is guessed. It finds each value as it is and in the encodings in which
// programs commonly print one, and replaces it by Mask: JSON and Go strings, URL escapes, base64 at any alignment and
// with its lines wrapped anywhere, and hexadecimal digits with or without separators. Because logs are read line by line, it
// also finds on their own the lines of a value of several lines, those of its base64 as PEM and MIME wrap them, and those of a dump of it.
//
// A short value may be a part of ordinary words. It is hidden where it stands as a word of its own, and so are its escapes and its base64:
// "test" in "pass=test", but not in "latest". From 6 bytes on it is hidden anywhere in base64 and hexadecimal digits: nobody reads words there.
//
// What is not found: lines of less than 8 bytes and the frame of a PEM file, because text would not be readable without them; a dump of something
// longer that contains the value; a value that was encoded twice, compressed, encrypted, reversed or cut by the program.
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
	// minLength is the length in bytes from which a value is hidden. Pulumi draws the same line: shorter ones would blot out
	// ordinary text, and say little when they are seen.
	minLength = 3
	// minLengthInWords is the length in characters from which a value is hidden in the middle of a word, too.
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
		// The newline at the end of a file is seldom part of what is printed.
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

// addPieces adds what of a longer value stands in one line of its base64 or of a dump.
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
		// With what is in front of the text in a dump: without it, 16 bytes of a value may be ordinary text.
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
