package redact

import (
	"bytes"
	"strings"
)

// prefix is the first MinLength bytes of a value; no value is shorter.
type prefix [MinLength]byte

// index finds values in text in one pass: every position costs one look-up of its first bytes, whatever the number and
// the size of the values.
type index struct {
	values map[prefix][]string
	// starts holds the proper prefixes of every prefix: how a value may begin at the very end of a chunk.
	starts map[string]struct{}
}

func (x *index) add(value string) {
	if len(value) < MinLength {
		return
	}
	if x.values == nil {
		x.values, x.starts = map[prefix][]string{}, map[string]struct{}{}
	}
	key := prefix([]byte(value[:MinLength]))
	for _, known := range x.values[key] {
		if known == value {
			return
		}
	}
	x.values[key] = append(x.values[key], value)
	for length := 1; length < MinLength; length++ {
		x.starts[value[:length]] = struct{}{}
	}
}

// scan appends the text to out with the values masked. Values that overlap or touch become one Mask, so that no part of
// either can be seen.
//
// masked says how many bytes at the beginning of the text belong to a value whose Mask is written already. Unless the
// text is final, scan stops where a value may begin that the next chunk completes: it returns how many bytes are settled, and
// masked for the rest, which has to be presented again with more text behind it.
func (x *index) scan(text []byte, masked int, final bool, out *bytes.Buffer) (settled, maskedRest int) {
	written := masked // text before it is in out
	for position := range text {
		length, undecided := x.match(text[position:])
		if undecided && !final {
			if written < position {
				out.Write(text[written:position])
			}
			return position, max(0, masked-position)
		}
		if length == 0 {
			continue
		}
		if masked == 0 || position > masked {
			out.Write(text[written:position])
			out.WriteString(Mask)
		}
		masked = max(masked, position+length)
		written = masked
	}
	out.Write(text[min(written, len(text)):])
	return len(text), max(0, masked-len(text))
}

// match returns the length of the longest value at the beginning of the text, and whether a longer one may be there once
// more text is known.
func (x *index) match(text []byte) (length int, undecided bool) {
	if len(text) < MinLength {
		_, undecided = x.starts[string(text)]
		return 0, undecided
	}
	for _, value := range x.values[prefix(text[:MinLength])] {
		switch {
		case len(value) <= len(text):
			if len(value) > length && string(text[:len(value)]) == value {
				length = len(value)
			}
		case strings.HasPrefix(value, string(text)):
			undecided = true
		}
	}
	return length, undecided
}
