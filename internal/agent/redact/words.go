package redact

import (
	"regexp"
	"unicode"
	"unicode/utf8"
)

// maxBefore is how many bytes before a value are read to find out whether a word begins with the value: an escape sequence or the end of
// one.
const maxBefore = 64

// escapeAtEnd matches text that ends with a letter or a digit but belongs to no word: a sequence that colours the text, raw or with its ESC
// printed in some way, and the escapes of strings and URLs, as in "\u003cvalue\u003e", "line\nvalue" and "?a%3Dvalue".
var escapeAtEnd = regexp.MustCompile(`(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|\[[0-9;]+[A-Za-z]` +
	`|\\(?:[abefnrtv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{3})|%[0-9A-Fa-f]{2})$`)

// inWord reports whether the character forms a word with its neighbours: digits, the underscore, and letters of scripts with upper and
// lower case. Many other scripts have no spaces between words; in doubt, a value is hidden.
func inWord(r rune) bool {
	return r == '_' || unicode.IsDigit(r) || unicode.IsLetter(r) && !unicode.Is(unicode.Lo, r) || unicode.IsMark(r)
}

// beginsWord reports whether the position is not in the middle of a word.
func beginsWord(text []byte, position int) bool {
	before := text[max(0, position-maxBefore):position]
	first, _ := utf8.DecodeRune(text[position:])
	last, _ := utf8.DecodeLastRune(before)
	return !inWord(first) || !inWord(last) || escapeAtEnd.Match(before)
}

// endsWord reports whether the position is not in the middle of a word. undecided is true if the next character is not known yet and the
// text is not final.
func endsWord(text []byte, position int, final bool) (ends, undecided bool) {
	last, _ := utf8.DecodeLastRune(text[:position])
	if !inWord(last) {
		return true, false
	}
	if !utf8.FullRune(text[position:]) && !final {
		return false, true
	}
	next, _ := utf8.DecodeRune(text[position:])
	return !inWord(next), false
}
