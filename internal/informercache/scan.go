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
	// at is the position after what was scanned, and size what the value takes so far.
	at, size int
	// quote is the position of the quotation mark that began an unfinished text; -1 outside of texts.
	quote int
	// open has the lists and objects that have not ended. deeper counts those that are nested too deeply to be in it.
	open   []container
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

// scan reports whether the value has ended. If not, it has to be called again with more text.
func (s *scanner) scan() bool {
	for s.at < len(s.text) {
		if s.quote < 0 {
			switch char := s.text[s.at]; char {
			case '"':
				s.quote = s.at
			case '{', '[':
				s.begin(char == '{')
			case '}', ']':
				s.finish()
			case ':', ',':
				if last := len(s.open) - 1; last >= 0 && s.deeper == 0 {
					s.open[last].hasKey = char == ':'
				}
			case ' ', '\t', '\n', '\r':
			default:
				if s.skipScalar(); len(s.open) == 0 && s.at < len(s.text) {
					return true
				}
				continue
			}
			s.at++
		}
		if s.quote >= 0 {
			var ended bool
			if s.at, ended = endOfText(s.text, s.at); !ended {
				return false
			}
			s.addText(s.at - s.quote - 1)
			s.quote = -1
			s.at++
		}
		if len(s.open) == 0 && s.size > 0 {
			return true
		}
	}
	return false
}

// add adds to the size of the innermost list or object.
func (s *scanner) add(size int) {
	if last := len(s.open) - 1; last >= 0 {
		s.open[last].size += size
	} else {
		s.size += size
	}
}

// addText adds a text. The key of an object is no value of its own.
func (s *scanner) addText(length int) {
	if last := len(s.open) - 1; last >= 0 && s.open[last].isObject && !s.open[last].hasKey && s.deeper == 0 {
		s.add(length)
		return
	}
	s.add(valueSize + length)
}

func (s *scanner) begin(isObject bool) {
	if len(s.open) == maxDepth {
		s.deeper++
		s.add(valueSize)
		return
	}
	s.open = append(s.open, container{start: s.at, size: valueSize, isObject: isObject})
}

func (s *scanner) finish() {
	if s.deeper > 0 {
		s.deeper--
		return
	}
	last := len(s.open) - 1
	if last < 0 {
		s.add(valueSize)
		return
	}
	ended := s.open[last]
	s.open = s.open[:last]
	s.add(ended.size)
	if s.large != nil && ended.size >= minLarge {
		s.large[ended.start] = extent{s.at + 1, ended.size}
	}
}

// skipScalar skips a number, true, false or null.
func (s *scanner) skipScalar() {
	s.add(valueSize)
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r', ',', ':', '{', '}', '[', ']', '"':
			return
		}
		s.at++
	}
}

// endOfText returns the position of the quotation mark that ends the text, whose remainder begins at from. If there is none yet, it returns
// from where to look for it when there is more.
func endOfText(text []byte, from int) (at int, ended bool) {
	rest := text[from:]
	quote := bytes.IndexByte(rest, '"')
	if quote >= 0 {
		rest = rest[:quote]
	}
	escape := bytes.IndexByte(rest, '\\')
	switch {
	case escape < 0 && quote >= 0:
		return from + quote, true
	case escape < 0:
		return len(text), false
	}
	for at = from + escape; at < len(text); at++ {
		switch text[at] {
		case '"':
			return at, true
		case '\\':
			if at+1 == len(text) {
				return at, false
			}
			at++
		}
	}
	return at, false
}
