package informercache

import "bytes"

const (
	// valueSize is what a JSON value takes without its text, such as an empty list or a number, in bytes.
	valueSize = 16
	// minLarge is the size from which a scanner records a list or an object, in bytes. Smaller ones are scanned again when they are needed.
	minLarge = 4 << 10
	// maxDepth is how many levels of lists and objects are told apart. What is nested more deeply counts as a part of the last one.
	maxDepth = 32
)

// scanner finds the end of a JSON value, and the sizes of its parts, in one pass over its text. It does not check the syntax: the text
// comes from the API server, and is decoded afterwards. The text may grow between two calls of scan.
type scanner struct {
	text []byte
	// at is the position after what was scanned.
	at int
	// quote is the position of the quotation mark that began an unfinished text; -1 outside of texts.
	quote int
	// in is the innermost list or object that has not ended, and around has those that it is in. The first one stands for the text itself.
	// deeper counts those that are nested too deeply to be told apart.
	in     container
	around []container
	deeper int
	// large gets the ends and sizes of large lists and objects, by their positions; nil records none.
	large map[int]extent
}

// container is a list or an object that has not ended. hasKey is true between a key and its value.
type container struct {
	start, size      int
	isObject, hasKey bool
}

// extent is where a value ends, and about how much it takes when it is decoded, in bytes.
type extent struct{ end, size int }

// newScanner returns a scanner that records the large parts of the text.
func newScanner(text []byte) *scanner {
	return &scanner{text: text, quote: -1, large: map[int]extent{}}
}

// size is what the value takes, in bytes.
func (s *scanner) size() int { return s.in.size }

// scan reports whether the value has ended. If not, it has to be called again with more text.
func (s *scanner) scan() (ended bool) {
	text, at, in := s.text, s.at, s.in
	for at < len(text) && !ended {
		if s.quote >= 0 {
			var closed bool
			if at, closed = endOfText(text, at); !closed {
				break
			}
			if in.size += at - s.quote - 1; !in.isObject || in.hasKey {
				in.size += valueSize // the key of an object is no value of its own
			}
			s.quote = -1
			at++
			ended = len(s.around) == 0
			continue
		}
		switch text[at] {
		case '"':
			s.quote = at
		case '{', '[':
			in = s.begin(in, at)
		case '}', ']':
			in = s.finish(in, at)
			ended = len(s.around) == 0
		case ':':
			in.hasKey = true
		case ',':
			in.hasKey = false
		case ' ', '\t', '\n', '\r':
		default:
			in.size += valueSize
			at = endOfScalar(text, at)
			ended = len(s.around) == 0 && at < len(text)
			continue
		}
		at++
	}
	s.at, s.in = at, in
	return ended
}

// begin returns the list or object that begins at the position.
func (s *scanner) begin(in container, at int) container {
	if len(s.around) == maxDepth {
		s.deeper++
		in.size += valueSize
		return in
	}
	s.around = append(s.around, in)
	return container{start: at, size: valueSize, isObject: s.text[at] == '{'}
}

// finish returns what the list or object is in that ends at the position.
func (s *scanner) finish(in container, at int) container {
	last := len(s.around) - 1
	switch {
	case s.deeper > 0:
		s.deeper--
		return in
	case last < 0:
		in.size += valueSize // an end without a beginning
		return in
	case s.large != nil && in.size >= minLarge:
		s.large[in.start] = extent{at + 1, in.size}
	}
	outer := s.around[last]
	outer.size += in.size
	s.around = s.around[:last]
	return outer
}

// endOfScalar returns the position after a number, true, false or null.
func endOfScalar(text []byte, at int) int {
	for ; at < len(text); at++ {
		switch text[at] {
		case ' ', '\t', '\n', '\r', ',', ':', '{', '}', '[', ']', '"':
			return at
		}
	}
	return at
}

// endOfText returns the position of the quotation mark that ends the text, whose remainder begins at from. If there is none yet, it returns
// from where to look for it when there is more.
func endOfText(text []byte, from int) (at int, ended bool) {
	const short = 64 // bytes, which a loop searches faster
	at = from
	for at < len(text) {
		for end := min(at+short, len(text)); at < end && !special[text[at]]; {
			at++
		}
		switch {
		case at == len(text):
			return at, false
		case text[at] == '"':
			return at, true
		case text[at] != '\\':
			at += untilSpecial(text[at:])
		case at+1 == len(text):
			return at, false
		default:
			at += 2
		}
	}
	return at, false
}

// special has the characters that end a text, or change what the next one means.
var special = [256]bool{'"': true, '\\': true}

// untilSpecial returns how many bytes are before the first quotation mark or backslash, or how many there are.
func untilSpecial(text []byte) int {
	if quote := bytes.IndexByte(text, '"'); quote >= 0 {
		text = text[:quote]
	}
	if escape := bytes.IndexByte(text, '\\'); escape >= 0 {
		return escape
	}
	return len(text)
}
