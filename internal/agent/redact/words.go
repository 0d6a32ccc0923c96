package redact

import (
	"regexp"
	"unicode"
	"unicode/utf8"
)

// maxBefore is how much in front of a value shows whether a word begins with it, in bytes: an escape sequence or the end of one.
const maxBefore = 64

// escapeAtEnd is what ends with a letter or a digit but belongs to no word: a sequence that colours the text, raw or with its ESC
// printed in some way, and the escapes of strings and URLs, as in "\u003cvalue\u003e", "line\nvalue" and "?a%3Dvalue".
var escapeAtEnd = regexp.MustCompile(`(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|\[[0-9;]+[A-Za-z]` +
	`|\\(?:[abefnrtv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{3})|%[0-9A-Fa-f]{2})$`)

// inWord reports whether the character makes one word with others beside it: digits, the underscore, and letters of the
// scripts that have upper and lower case. Many of the others are written without spaces between words; when in doubt a value is hidden.
func inWord(r rune) bool {
	return r == '_' || unicode.IsDigit(r) || unicode.IsLetter(r) && !unicode.Is(unicode.Lo, r) || unicode.IsMark(r)
}

// beginsWord reports whether no word goes on at the position.
func beginsWord(text []byte, position int) bool {
	before := text[max(0, position-maxBefore):position]
	first, _ := utf8.DecodeRune(text[position:])
	last, _ := utf8.DecodeLastRune(before)
	return !inWord(first) || !inWord(last) || escapeAtEnd.Match(before)
}

// endsWord reports whether no word goes on at the position, or, unless the text is final, that the next character is not known yet.
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
