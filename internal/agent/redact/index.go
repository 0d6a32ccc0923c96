package redact

import (
	"bytes"
	"slices"
)

// kind is the form in which a value appears in text.
type kind int

const (
	// exact values appear unchanged.
	exact kind = iota
	// hexDigits appear in lower or upper case, and may have separators between bytes, because programs print bytes separately. In the index
	// they are in lower case.
	hexDigits
	// base64Digits may have separators anywhere: programs wrap lines.
	base64Digits
	kindCount
)

const (
	// maxSeparator bounds what may be between two digits, in bytes: a line break and an indentation. It bounds what the Writer
	// holds back, too.
	maxSeparator = 24
	// keyDigits is how many digits are looked up at once. It is also how many digits must be at the end of a chunk before scan waits, across a
	// line break, for the rest of a value. Otherwise the end of many lines would be held back.
	keyDigits = 4
)

// index finds values in text in one pass: each position costs one lookup of its first bytes, whatever the number and the size of the
// values.
type index struct {
	tables [kindCount]table
	// leads has, for each pair of bytes, a bit for each kind of values that begin with the pair, so that most positions of a text need only
	// this lookup. It is nil as long as there is no value.
	leads []uint8
}

// table has the values of one kind, keyed by their first minLength bytes, or their first keyDigits digits.
type table struct {
	values map[string][]value
	// starts has the proper prefixes of every key: a value may begin with one of them at the very end of a chunk.
	starts map[string]struct{}
}

type value struct {
	text string
	// wholeWord is true if the text counts as a value only where it is a whole word.
	wholeWord bool
}

func (k kind) keyLength() int {
	if k == exact {
		return minLength
	}
	return keyDigits
}

// add adds a value, if it is long enough to be looked up.
func (x *index) add(k kind, text string, wholeWord bool) {
	t := &x.tables[k]
	if len(text) < k.keyLength() {
		return
	}
	key := text[:k.keyLength()]
	if known := slices.IndexFunc(t.values[key], func(v value) bool { return v.text == text }); known >= 0 {
		t.values[key][known].wholeWord = t.values[key][known].wholeWord && wholeWord
		return
	}
	if t.values == nil {
		t.values, t.starts = map[string][]value{}, map[string]struct{}{}
	}
	if x.leads == nil {
		x.leads = make([]uint8, 1<<16)
	}
	t.values[key] = append(t.values[key], value{text: text, wholeWord: wholeWord})
	for length := 1; length < len(key); length++ {
		t.starts[key[:length]] = struct{}{}
	}
	firsts, seconds := []byte{key[0]}, []byte{key[1]}
	switch k {
	case hexDigits:
		firsts, seconds = append(firsts, upper(key[0])), append(seconds, upper(key[1]))
	case base64Digits:
		seconds = append(seconds, ' ', '\t', '\r', '\n', '\\')
	}
	for _, first := range firsts {
		for _, second := range seconds {
			x.leads[int(first)<<8|int(second)] |= 1 << k
		}
	}
}

func upper(digit byte) byte {
	if 'a' <= digit && digit <= 'f' {
		return digit + 'A' - 'a'
	}
	return digit
}

// digit returns the digit in the case that the index uses.
func (k kind) digit(b byte) byte {
	if k == hexDigits && 'A' <= b && b <= 'F' {
		return b + 'a' - 'A'
	}
	return b
}

// separator returns the length of what precedes a digit: white space, also as an escape in a string, and between bytes the separators of
// dumps and source code, as in 61:62, 61 62, 0x61, 0x62 and \x61\x62.
func (k kind) separator(text []byte, digit int) int {
	if k == exact || digit == 0 || k == hexDigits && digit%2 == 1 {
		return 0
	}
	length := 0
	for length < min(len(text), maxSeparator) {
		rest := text[length:]
		// The second byte may not have been received yet.
		second := byte(0)
		if len(rest) > 1 {
			second = rest[1]
		}
		switch {
		case rest[0] == ' ', rest[0] == '\n', rest[0] == '\r', rest[0] == '\t', k == hexDigits && (rest[0] == ':' || rest[0] == '-' || rest[0] == ','):
			length++
		case rest[0] == '\\' && (second == 0 || second == 'n' || second == 'r' || second == 't' || k == hexDigits && second == 'x'),
			k == hexDigits && rest[0] == '0' && (second == 0 || second == 'x' || second == 'X'):
			length += min(2, len(rest))
		default:
			return length
		}
	}
	return length
}

// scan appends the text to out with the values masked. Values that overlap or touch become one Mask, so that no part of either is visible.
// The text before start has been processed already: it only shows in which word the rest begins.
//
// masked is how many bytes from start on belong to a value whose Mask was already written. Unless the text is final, scan stops where a
// value may begin that the next chunk completes. It returns the position before which everything was written, and masked for the rest. The
// caller has to pass the rest again, with more text after it.
func (x *index) scan(text []byte, start, masked int, final bool, out *bytes.Buffer) (done, maskedRest int) {
	masked += start
	written := masked // text before it is in out
	for position := start; position < len(text); position++ {
		if x.leads == nil || position+1 < len(text) && x.leads[int(text[position])<<8|int(text[position+1])] == 0 {
			continue
		}
		length, undecided := x.match(text, position, final)
		if undecided && !final {
			if written < position {
				out.Write(text[written:position])
			}
			return position, max(0, masked-position)
		}
		if length == 0 {
			continue
		}
		if masked == start || position > masked {
			out.Write(text[written:position])
			out.WriteString(Mask)
		}
		masked = max(masked, position+length)
		written = masked
	}
	out.Write(text[min(written, len(text)):])
	return len(text), max(0, masked-len(text))
}

// match returns the length of the longest value at the position, and whether a longer one may be there once more text is known.
func (x *index) match(text []byte, position int, final bool) (length int, undecided bool) {
	for k := range kindCount {
		if position+1 < len(text) && x.leads[int(text[position])<<8|int(text[position+1])]&(1<<k) == 0 {
			continue
		}
		found, more := x.tables[k].match(k, text, position, final)
		length, undecided = max(length, found), undecided || more
	}
	return length, undecided
}

func (t *table) match(k kind, text []byte, position int, final bool) (length int, undecided bool) {
	var digits [keyDigits]byte
	key := digits[:k.keyLength()]
	at, wrapped := position, false
	for digit := range key {
		skipped := text[at:][:k.separator(text[at:], digit)]
		at += len(skipped)
		wrapped = wrapped || len(skipped) > 0 && (k == base64Digits || bytes.ContainsRune(skipped, '\n'))
		if at == len(text) {
			_, undecided = t.starts[string(key[:digit])]
			return 0, undecided && !wrapped
		}
		key[digit] = k.digit(text[at])
		at++
	}
	for _, value := range t.values[string(key)] {
		end, more := value.end(k, text, at)
		if end > 0 && value.wholeWord {
			var whole, open bool
			if beginsWord(text, position) {
				whole, open = endsWord(text, end, final)
			}
			if more = open; !whole {
				end = 0
			}
		}
		length, undecided = max(length, end-position), undecided || more
	}
	return length, undecided
}

// end returns where the value ends whose key ends at the position, or 0 if the text has another value there. undecided reports whether the
// value may be there once more text is known.
func (v value) end(k kind, text []byte, at int) (end int, undecided bool) {
	for digit := k.keyLength(); digit < len(v.text); digit++ {
		at += k.separator(text[at:], digit)
		if at == len(text) {
			return 0, true
		}
		if k.digit(text[at]) != v.text[digit] {
			return 0, false
		}
		at++
	}
	return at, false
}
