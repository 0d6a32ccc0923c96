package redact

import "bytes"

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
	// maxPiece is the maximum length of a piece, in bytes or digits. It is the number of bits of a uint64.
	maxPiece = 64
	// maxSeparator bounds what may be between two digits, in bytes: a line break and an indentation. It bounds what the Writer
	// holds back, too.
	maxSeparator = 24
	// minDigits is the minimum number of digits of a piece. It is also how many digits must be at the end of a chunk before scan waits, across
	// a line break, for the rest of a piece. Otherwise the end of many lines would be held back.
	minDigits = 4
)

// index finds pieces in text in one pass. Each position costs at most maxPiece steps, whatever the number and the size of the values; most
// cost only a lookup of the first bytes.
type index struct {
	// seeds are the hashes of the empty text for each kind, and last for whole values.
	seeds [kindCount + 1]hash
	// pieces has the hashes of all pieces, and of the values that were added; words those that count only where they are whole words.
	pieces, words set
	// lengths has for each kind a bit for each length that a piece has.
	lengths [kindCount]uint64
	// leads has, for each pair of bytes, a bit for each kind of pieces that begin with the pair, so that most positions of a text need only
	// this lookup. firsts is the same for the first byte.
	leads  []uint8
	firsts [1 << 8]uint8
	// prefixes has all beginnings of pieces. A text with another beginning needs no further lookup. At the end of a write, it shows what may
	// become a piece: if it is wrong, which it often is with very many values, a Writer holds back a few bytes for nothing.
	prefixes filter
	// written counts the pieces, including those that were there already.
	written int
}

// isNew adds a value itself, without any form of it, and reports whether it was not added before.
func (x *index) isNew(value string) bool {
	if x.leads == nil {
		x.leads = make([]uint8, 1<<16)
		for i := range x.seeds {
			x.seeds[i] = newHash()
		}
	}
	return x.pieces.add(x.seeds[kindCount].of(value))
}

// add adds a piece, if it is long enough to be looked for. wholeWord is true if it counts only where it is a whole word.
func (x *index) add(k kind, piece []byte, wholeWord bool) {
	if x.written++; len(piece) < minLength || k != exact && len(piece) < minDigits {
		return
	}
	h := x.seeds[k]
	for _, b := range piece {
		h = h.with(k.digit(b))
	}
	if wholeWord && !x.words.add(h) || !wholeWord && !x.pieces.add(h) {
		return
	}
	h = x.seeds[k]
	for _, b := range piece {
		h = h.with(k.digit(b))
		x.prefixes.add(h)
	}
	x.lengths[k] |= 1 << (len(piece) - 1)
	first, second := k.digit(piece[0]), k.digit(piece[1])
	for _, first := range [2]byte{first, k.other(first)} {
		x.firsts[first] |= 1 << k
		x.lead(k, first, second)
		x.lead(k, first, k.other(second))
		if k == base64Digits {
			for _, second := range []byte(" \t\r\n\\") {
				x.lead(k, first, second)
			}
		}
	}
}

func (x *index) lead(k kind, first, second byte) {
	x.leads[int(first)<<8|int(second)] |= 1 << k
}

// form writes one spelling of a value into an index, in pieces.
type form struct {
	index *index
	kind  kind
	// wholeWord is true if the spelling counts only where it is a whole word. One that is longer than a piece is no word.
	wholeWord bool

	pending [2 * maxPiece]byte
	length  int
	long    bool
}

func (f *form) write(text []byte) {
	for len(text) > 0 {
		size := copy(f.pending[f.length:], text)
		f.length, text = f.length+size, text[size:]
		if f.length == len(f.pending) {
			f.index.add(f.kind, f.pending[:maxPiece], false)
			f.length, f.long = copy(f.pending[:], f.pending[maxPiece:]), true
		}
	}
}

// close writes the end of the spelling: at most one piece, and one that reaches to the end.
func (f *form) close() {
	if f.length > maxPiece {
		f.index.add(f.kind, f.pending[:maxPiece], false)
	}
	f.index.add(f.kind, f.pending[max(0, f.length-maxPiece):f.length], f.wholeWord && f.length <= maxPiece && !f.long)
}

// digit returns the digit as the index has it: hexadecimal digits in lower case, base64 in its standard alphabet.
func (k kind) digit(b byte) byte {
	switch {
	case k == hexDigits && 'A' <= b && b <= 'F':
		return b + 'a' - 'A'
	case k == base64Digits && b == '-':
		return '+'
	case k == base64Digits && b == '_':
		return '/'
	}
	return b
}

// other returns the other byte for which digit returns the same, or the byte itself if there is none.
func (k kind) other(b byte) byte {
	switch {
	case k == hexDigits && 'a' <= b && b <= 'f':
		return b - 'a' + 'A'
	case k == base64Digits && b == '+':
		return '-'
	case k == base64Digits && b == '/':
		return '_'
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
		kinds := x.kindsAt(text, position)
		if kinds == 0 {
			continue
		}
		length, undecided := x.match(kinds, text, position, final)
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

// kindsAt returns a bit for each kind of pieces that may be at the position.
func (x *index) kindsAt(text []byte, position int) uint8 {
	if x.leads == nil || position+1 == len(text) {
		return x.firsts[text[position]]
	}
	return x.leads[int(text[position])<<8|int(text[position+1])]
}

// match returns the length of the longest piece of the kinds at the position, and whether a longer one may be there once more text is known.
func (x *index) match(kinds uint8, text []byte, position int, final bool) (length int, undecided bool) {
	for k := range kindCount {
		if kinds>>k&1 != 0 {
			found, more := x.matchKind(k, text, position, final)
			length, undecided = max(length, found), undecided || more
		}
	}
	return length, undecided
}

func (x *index) matchKind(k kind, text []byte, position int, final bool) (length int, undecided bool) {
	h, at, wrapped := x.seeds[k], position, false
	for digits := range maxPiece {
		if k != exact {
			skipped := text[at:][:k.separator(text[at:], digits)]
			at += len(skipped)
			wrapped = wrapped || len(skipped) > 0 && (k == base64Digits || bytes.ContainsRune(skipped, '\n'))
		}
		if at == len(text) {
			return length, undecided || digits >= minDigits || !wrapped
		}
		h = h.with(k.digit(text[at]))
		at++
		if !x.prefixes.has(h) {
			break
		}
		if x.lengths[k]>>digits&1 == 0 {
			continue
		}
		if x.pieces.has(h) {
			length = at - position
		} else if x.words.has(h) && beginsWord(text, position) {
			whole, open := endsWord(text, at, final)
			undecided = undecided || open
			if whole {
				length = at - position
			}
		}
	}
	return length, undecided
}
