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
// A spelling of more than 64 characters is hidden in pieces: each 64 characters from its beginning on, and its last 64. So it is hidden as
// a whole, and so are those pieces of it that are printed alone. A piece that begins elsewhere or is shorter is not found.
//
// The Redactor does not find: lines of less than 8 bytes and the frame of a PEM file, because text would not be readable without them; a
// dump of something longer that contains the value; a value that the program encoded twice, compressed, encrypted, reversed or cut.
//
// # Bounds
//
// A Redactor keeps no value, only a hash of 8 bytes for each piece: 4 to 10 bytes of memory for each byte of a long value, and some 200
// for a short one. Adding values takes time in proportion to their length, and redacting in proportion to the length of the text, whatever
// the values are: how many there are, how they begin, and whether one is in another.
//
// A Redactor writes at most maxPieces pieces. That is enough for 8 MiB of long values or half a million passwords, and takes 64 MiB, and
// half as much again while it grows. Brief writes at most maxBriefPieces. When there are more, nobody knows what a text contains: instead
// of any text there is Withheld, once for a Writer. An operation runs all the same; only what it says is not seen.
package redact

import (
	"bytes"
	"iter"
	"strings"
	"sync"
)

const (
	// Mask stands for a secret value; it is the text that pulumi itself uses.
	Mask = "[secret]"
	// Withheld stands for a whole text when there are too many values, or too long ones.
	Withheld = "[text withheld: the secret values are too many or too long to be found in it]"
)

const (
	// maxPieces is how many pieces a Redactor writes: as many as fit into a set of 64 MiB.
	maxPieces = 6 << 20
	// maxBriefPieces is the same for Brief: enough for 150 KiB of long values, or 3,000 passwords. They take 20 ms and 2 MiB.
	maxBriefPieces = 48 << 10
)

// Redactor replaces the secret values that it knows. The zero value knows none. It is safe for concurrent use.
type Redactor struct {
	mu    sync.RWMutex
	known adder
	// withheld is true once there were too many pieces. Then nothing is known.
	withheld bool
}

// New returns a Redactor that knows the values.
func New(values ...string) *Redactor {
	r := &Redactor{}
	r.Add(values...)
	return r
}

// Brief returns the text with every value replaced by Mask, or Withheld if there are more values than can be looked for in a few
// milliseconds. It stops reading the values then. It is for a process that works for many, and for a text that can be done without.
func Brief(text string, values iter.Seq[string]) string {
	r := &Redactor{known: adder{limit: maxBriefPieces}}
	for value := range values {
		if r.Add(value); r.withheld {
			break
		}
	}
	return r.String(text)
}

// Add makes more values known. It counts for text that is redacted after it returned.
func (r *Redactor) Add(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, value := range values {
		if r.withheld {
			return
		}
		if !worthHiding(value) {
			continue
		}
		if r.known.add(value); r.known.exceeded() {
			r.withheld, r.known = true, adder{}
		}
	}
}

// String returns the text with every known value replaced by Mask; Withheld for any text if there are too many values.
func (r *Redactor) String(text string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.withheld && text != "" {
		return Withheld
	}
	var out bytes.Buffer
	r.known.index.scan([]byte(text), 0, 0, true, &out)
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
