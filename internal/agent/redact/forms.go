package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// minLength is the length in bytes from which a value is hidden. Pulumi has the same limit: hiding shorter values would make ordinary text
	// unreadable, and they reveal little.
	minLength = 3
	// minLengthInWords is the length in characters from which a value is also hidden in the middle of a word.
	minLengthInWords = 8
	// minSpreadLength is the length in bytes from which a value is searched for as hexadecimal digits, and inside longer base64 text. In a
	// shorter value, the characters that do not depend on neighbouring bytes are too few to be distinguished from other text.
	minSpreadLength = 6
	// minLineLength is the length in bytes from which a line of a longer value is hidden on its own. Shorter lines of a kubeconfig or a
	// certificate are ordinary text.
	minLineLength = 8
	// minPlainLength is the same for lines with a setting, such as "kind: Config", whose value is shorter than minLineLength.
	minPlainLength = 16
	// dumpColumns is how many bytes hexdump -C and xxd print in a line. maxDumped is the maximum length, in bytes, of values whose dumps are
	// hidden. The last line of a dump is hidden if it has at least minLineLength bytes.
	dumpColumns = 16
	maxDumped   = 4 << 10
	// pemFrame is around the first and the last line of a PEM file.
	pemFrame = "-----"
	// pemBytes and mimeBytes are how many bytes are in a line of base64 as PEM and MIME wrap it, at 64 and 76 columns.
	pemBytes, mimeBytes = 64 / 4 * 3, 76 / 4 * 3
	// minLineBytes is how many bytes are at least in a line of base64 of minLineLength, with its padding.
	minLineBytes = 4
	// chunkSize is how many bytes of a text are encoded at once. It is divisible by three, as base64 needs it.
	chunkSize = 3 << 10
)

// adder adds values to an index until a limit of pieces is exceeded.
type adder struct {
	index index
	// limit is how many pieces it may write; zero for maxPieces.
	limit int
	// encoded is what was encoded last, and source from what, in memory that is used again.
	encoded bytes.Buffer
	source  []byte
}

func (a *adder) exceeded() bool { return a.index.written > cmp.Or(a.limit, maxPieces) }

func (a *adder) add(value string) {
	// Reading a value costs as much as its pieces, even if it is known.
	if a.index.written += 1 + len(value)/maxPiece; a.exceeded() || !a.index.isNew(value) {
		return
	}
	a.addForms(value)
	// Programs seldom print the newline at the end of a file.
	if trimmed := strings.TrimSpace(value); trimmed != value {
		a.addForms(trimmed)
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); line != value && mayRevealSecret(line) {
			a.write(form{index: &a.index}, line, unchanged)
		}
	}
	a.addPrintedLines(value)
}

func (a *adder) addForms(value string) {
	wholeWord := utf8.RuneCountInString(strings.TrimSpace(value)) < minLengthInWords
	for _, escape := range escapes {
		a.write(form{index: &a.index, wholeWord: wholeWord}, value, escape)
	}
	if len(value) < minSpreadLength {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			a.write(form{index: &a.index, wholeWord: wholeWord}, encoding.EncodeToString([]byte(value)), unchanged)
		}
		return
	}
	a.addBase64(value)
	a.write(form{index: &a.index, kind: hexDigits}, value, appendHex)
}

// write adds a text as the encoding spells it.
func (a *adder) write(form form, text string, encode encoding) {
	for rest := text; rest != "" && !a.exceeded(); {
		size := chunkOf(rest)
		a.encoded.Reset()
		encode(&a.encoded, rest[:size])
		form.write(a.encoded.Bytes())
		rest = rest[size:]
	}
	form.close()
}

// addBase64 adds the parts of the value that are visible in the base64 text of something longer that contains it, for example
// "user:password". Three bytes become four characters, so there are three alignments. The characters at both ends that also depend on a
// neighbouring byte are left out. The end of the value alone is added, too, with and without padding.
func (a *adder) addBase64(value string) {
	for offset := range 3 {
		form := form{index: &a.index, kind: base64Digits}
		source, shared := append(a.source[:0], make([]byte, offset)...), (offset*8+5)/6
		for rest := value; rest != "" && !a.exceeded(); {
			size := min(len(rest), chunkSize-len(source))
			source, rest = append(source, rest[:size]...), rest[size:]
			a.encoded.Reset()
			a.encoded.Write(base64.RawStdEncoding.AppendEncode(a.encoded.AvailableBuffer(), source))
			if rest == "" {
				a.encoded.Truncate(len(source) * 8 / 6)
			}
			form.write(a.encoded.Bytes()[shared:])
			source, shared = source[:0], 0
		}
		form.close()
		a.source = source
	}
	end := value[max(0, len(value)-maxPiece/4*3)/3*3:]
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding} {
		encoded := encoding.EncodeToString([]byte(end))
		a.writeDigits(encoded[max(0, len(encoded)-maxPiece):])
	}
}

func (a *adder) writeDigits(base64 string) {
	a.write(form{index: &a.index, kind: base64Digits}, base64, unchanged)
}

// addPrintedLines adds the parts of a longer value that are in one line of its base64 or of a dump. The lines of base64 in a PEM file are
// its pieces, but for the last one.
func (a *adder) addPrintedLines(value string) {
	if last := value[len(value)/pemBytes*pemBytes:]; len(value) > pemBytes && len(last) >= minLineBytes {
		a.writeDigits(base64.StdEncoding.EncodeToString([]byte(last)))
	}
	for rest := value; len(value) > mimeBytes && len(rest) >= minLineBytes && !a.exceeded(); rest = rest[min(mimeBytes, len(rest)):] {
		a.writeDigits(base64.StdEncoding.EncodeToString([]byte(rest[:min(mimeBytes, len(rest))])))
	}
	if len(value) <= dumpColumns || len(value) > maxDumped {
		return
	}
	for rest := value; len(rest) >= minLineLength; rest = rest[min(dumpColumns, len(rest)):] {
		line := rest[:min(dumpColumns, len(rest))]
		a.write(form{index: &a.index, kind: hexDigits}, line, appendHex)
		// The two spaces and the bar are what precedes the text in a dump: without them, 16 bytes of a value may be ordinary text.
		a.write(form{index: &a.index}, "  "+printable(line), unchanged)
		a.write(form{index: &a.index}, "|"+printable(line), unchanged)
	}
}

// encoding appends a text in another spelling to a buffer. The spellings of the chunks of a text make the spelling of the text.
type encoding func(to *bytes.Buffer, text string)

// escapes are the ways in which text is printed as text.
var escapes = []encoding{
	unchanged,
	func(to *bytes.Buffer, text string) { appendJSON(to, text, true) },
	func(to *bytes.Buffer, text string) { appendJSON(to, text, false) },
	func(to *bytes.Buffer, text string) {
		quoted := strconv.AppendQuote(to.AvailableBuffer(), text)
		to.Write(quoted[1 : len(quoted)-1])
	},
	func(to *bytes.Buffer, text string) { to.WriteString(url.QueryEscape(text)) },
	func(to *bytes.Buffer, text string) { to.WriteString(url.PathEscape(text)) },
	func(to *bytes.Buffer, text string) {
		to.WriteString(strings.ReplaceAll(url.QueryEscape(text), "+", "%20"))
	},
}

func unchanged(to *bytes.Buffer, text string) { to.WriteString(text) }

func appendHex(to *bytes.Buffer, text string) {
	to.Write(hex.AppendEncode(to.AvailableBuffer(), []byte(text)))
}

// appendJSON appends the text as it stands inside a JSON string.
func appendJSON(to *bytes.Buffer, text string, escapeHTML bool) {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(escapeHTML)
	start := to.Len()
	// A string can always be encoded.
	_ = encoder.Encode(text)
	quoted := to.Bytes()[start:]
	to.Truncate(start + copy(quoted, quoted[1:len(quoted)-len("\"\n")]))
}

// chunkOf returns how many bytes of the text are encoded next. It cuts no character in two.
func chunkOf(text string) int {
	if len(text) <= chunkSize {
		return len(text)
	}
	for size := chunkSize; size > chunkSize-utf8.UTFMax; size-- {
		if utf8.RuneStart(text[size]) {
			return size
		}
	}
	return chunkSize
}

// mayRevealSecret reports whether the line may contain a secret. The frame of a key and the name of a setting are ordinary text.
func mayRevealSecret(line string) bool {
	if strings.HasPrefix(line, pemFrame) && strings.HasSuffix(line, pemFrame) || strings.TrimRight(line, ":{[(,") != line {
		return false
	}
	_, setting, found := strings.Cut(line, ": ")
	if found && len(strings.TrimSpace(setting)) < minLineLength {
		return len(line) >= minPlainLength
	}
	return len(line) >= minLineLength
}

// printable returns the bytes as a dump shows them beside their hexadecimal digits.
func printable(text string) string {
	shown := []byte(text)
	for i, b := range shown {
		if b > unicode.MaxASCII || !unicode.IsPrint(rune(b)) {
			shown[i] = '.'
		}
	}
	return string(shown)
}
