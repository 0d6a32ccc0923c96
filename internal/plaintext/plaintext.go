// Package plaintext makes text from elsewhere fit for a message: bounded, valid UTF-8, and without escape sequences for terminals.
package plaintext

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const ellipsis = "…"

// Cut returns at most size bytes of the text as valid UTF-8. A text that was cut ends with an ellipsis, for which size must have room (3
// bytes).
func Cut(text string, size int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= size {
		return text
	}
	return Start(text, size-len(ellipsis)) + ellipsis
}

// Start returns at most size bytes from the start of the text, which must be valid UTF-8. It cuts no character in two.
func Start(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size]
}

// escapeSequence matches sequences for terminals, such as those for colours and links.
var escapeSequence = regexp.MustCompile("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")

// Strip returns the text without escape sequences and control characters other than newline and tab.
func Strip(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return -1
		}
		return r
	}, escapeSequence.ReplaceAllString(text, ""))
}
