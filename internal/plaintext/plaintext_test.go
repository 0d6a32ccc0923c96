package plaintext

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCutFitsAndStaysValid(t *testing.T) {
	for _, c := range []struct {
		text string
		size int
		want string
	}{
		{"", 10, ""},
		{"1234567890", 10, "1234567890"},
		{"12345678901", 10, "1234567…"},
		{"äöüäöü", 10, "äöü…"},
		{"\xff", 10, "\uFFFD"},
		{"日本語", 3, "…"},
	} {
		if got := Cut(c.text, c.size); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.text, c.size, got, c.want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("日本語\xff", 5)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = len(ellipsis) + int(uint16(size))
		got := Cut(text, size)
		if len(got) > size || !utf8.ValidString(got) {
			t.Errorf("Cut(%q, %d) = %q", text, size, got)
		}
		if start := Start(strings.ToValidUTF8(text, ""), size); len(start) > size || !utf8.ValidString(start) {
			t.Errorf("Start(%q, %d) = %q", text, size, start)
		}
	})
}

func TestStripLeavesOnlyTheText(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07\a\r": "red link",
		"a\n\tb\x00\u009b": "a\n\tb",
	} {
		if got := Strip(text); got != want {
			t.Errorf("Strip(%q) = %q, want %q", text, got, want)
		}
	}
}
