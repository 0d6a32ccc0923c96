package automation

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage bounds the message of an operation, in bytes.
const maxMessage = 4 << 10

// escapeSequence is what terminals understand: colours, and links around text. pulumi is asked to print none; programs
// and providers are not.
var escapeSequence = regexp.MustCompile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")

// stripEscapes returns the text without escape sequences and control characters other than newline and tab.
func stripEscapes(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, escapeSequence.ReplaceAllString(text, ""))
}

// bounded returns the text, shortened to at most size bytes, on a character boundary, with an ellipsis at its end.
func bounded(text string, size int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= size {
		return text
	}
	const ellipsis = "…"
	end := size - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
