package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"iter"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// spelled is one spelling of a value, as a whole.
type spelled struct {
	kind      kind
	text      string
	wholeWord bool
}

// spellings returns all spellings in which a value is hidden. It encodes each value at once, and keeps them all.
func spellings(value string) (all []spelled) {
	if !worthHiding(value) {
		return nil
	}
	for _, value := range []string{value, strings.TrimSpace(value)} {
		short := utf8.RuneCountInString(strings.TrimSpace(value)) < minLengthInWords
		for _, text := range []string{
			value, jsonText(value, true), jsonText(value, false), strings.TrimSuffix(strings.TrimPrefix(strconv.Quote(value), `"`), `"`),
			url.QueryEscape(value), url.PathEscape(value), strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
		} {
			all = append(all, spelled{exact, text, short && len(text) <= maxPiece})
		}
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			kind := exact
			if len(value) >= minSpreadLength {
				kind = base64Digits
			}
			all = append(all, spelled{kind, encoding.EncodeToString([]byte(value)), short && kind == exact})
		}
		for offset := 0; offset < 3 && len(value) >= minSpreadLength; offset++ {
			padded := append(make([]byte, offset), value...)
			all = append(all, spelled{base64Digits, base64.RawStdEncoding.EncodeToString(padded)[(offset*8+5)/6 : len(padded)*8/6], false})
		}
		if len(value) >= minSpreadLength {
			all = append(all, spelled{hexDigits, hex.EncodeToString([]byte(value)), false})
		}
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); line != value && mayRevealSecret(line) {
			all = append(all, spelled{exact, line, false})
		}
	}
	for _, columns := range []int{64, 76} {
		encoded := base64.StdEncoding.EncodeToString([]byte(value))
		for rest := encoded; len(encoded) > columns && len(rest) >= minLineLength; rest = rest[min(columns, len(rest)):] {
			all = append(all, spelled{base64Digits, rest[:min(columns, len(rest))], false})
		}
	}
	for rest := value; len(value) > dumpColumns && len(value) <= maxDumped && len(rest) >= minLineLength; rest = rest[min(dumpColumns, len(rest)):] {
		line := rest[:min(dumpColumns, len(rest))]
		all = append(all, spelled{hexDigits, hex.EncodeToString([]byte(line)), false},
			spelled{exact, "  " + printable(line), false}, spelled{exact, "|" + printable(line), false})
	}
	return all
}

func jsonText(value string, escapeHTML bool) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(escapeHTML)
	_ = encoder.Encode(value)
	return strings.TrimSuffix(strings.TrimPrefix(out.String(), `"`), "\"\n")
}

// pieces cuts the spelling as the documentation of the package says.
func (s spelled) pieces() (all []spelled) {
	if len(s.text) <= maxPiece {
		return []spelled{s}
	}
	for rest := s.text; len(rest) >= maxPiece; rest = rest[maxPiece:] {
		all = append(all, spelled{s.kind, rest[:maxPiece], false})
	}
	return append(all, spelled{s.kind, s.text[len(s.text)-maxPiece:], false})
}

// separators match what may be between two digits.
var separators = map[kind]*regexp.Regexp{
	hexDigits:    regexp.MustCompile(`^(?:[ \t\r\n:,-]|\\[nrtx]|0[xX])+`),
	base64Digits: regexp.MustCompile(`^(?:[ \t\r\n]|\\[nrt])+`),
}

// at returns where the piece ends if it is in the text at the position, and 0 otherwise.
func (s spelled) at(text string, position int) int {
	end := position
	for digit := range len(s.text) {
		if digit > 0 && (s.kind == base64Digits || s.kind == hexDigits && digit%2 == 0) {
			skipped := separators[s.kind].FindString(text[end:])
			if end += len(skipped); len(skipped) > maxSeparator {
				return 0
			}
		}
		if end == len(text) || s.kind.digit(text[end]) != s.kind.digit(s.text[digit]) {
			return 0
		}
		end++
	}
	if s.wholeWord && beginsWord([]byte(text), position) {
		if ends, _ := endsWord([]byte(text), end, true); ends {
			return end
		}
	}
	if s.wholeWord {
		return 0
	}
	return end
}

// candidates are the positions at which the piece may be.
func (s spelled) candidates(text string) iter.Seq[int] {
	return func(yield func(int) bool) {
		for position := 0; position < len(text); position++ {
			if s.kind == exact {
				next := strings.Index(text[position:], s.text)
				if next < 0 {
					return
				}
				position += next
			} else if s.kind.digit(text[position]) != s.kind.digit(s.text[0]) {
				continue
			}
			if !yield(position) {
				return
			}
		}
	}
}

// reference masks the values by looking for each piece at each position. all are the spellings of the values.
func reference(all []spelled, text string) string {
	hidden, looked := make([]bool, len(text)), map[spelled]bool{}
	for _, whole := range all {
		for _, piece := range whole.pieces() {
			if looked[piece] || len(piece.text) < minLength || piece.kind != exact && len(piece.text) < minDigits {
				continue
			}
			looked[piece] = true
			for position := range piece.candidates(text) {
				for i, end := position, piece.at(text, position); i < end; i++ {
					hidden[i] = true
				}
			}
		}
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !hidden[i]:
			out.WriteByte(text[i])
		case i == 0 || !hidden[i-1]:
			out.WriteString(Mask)
		}
	}
	return out.String()
}

// longSeparator matches separators that are longer than the Redactor skips, of which the reference does not know the exact end.
var longSeparator = regexp.MustCompile(`(?:[ \t\r\n:,-]|\\[nrtx]|0[xX]){12}`)

// FuzzReference compares the Redactor with one that is too simple to be wrong: it keeps all spellings of all values, and compares each with
// the text at each position. The value is repeated, so that it may be long, and stands in the text in one of its spellings.
func FuzzReference(f *testing.F) {
	f.Add("hunter22", "test", uint8(1), uint8(0), "p=", "; latest test hunter22hunter2")
	f.Add("p\"<w&d é\\\n", "\xff\xfe", uint8(12), uint8(3), "{\"a\": \"", "\"}\n")
	f.Add("line of text 1\n", "line", uint8(210), uint8(8), "\x1b[31m", "")
	f.Add("\x01\xe4", "\xe4\xbd\xa0", uint8(200), uint8(1), "", "")
	f.Add("abcdef-", "abc", uint8(9), uint8(11), "YWJj ", " 61:62 0x63 iYWJj")
	f.Add("k3y\x00\xff-Zq9~Zq9~Zq9~", "aaaaaaaa", uint8(16), uint8(15), "aaaaaaaaaa", "|k3y..-Zq9~")
	f.Fuzz(func(t *testing.T, value, other string, repeat, which uint8, before, after string) {
		value = strings.Repeat(value, int(repeat))
		if len(value) > chunkSize+100 || len(other)+len(before)+len(after) > 1<<10 {
			return
		}
		all := append(spellings(value), spellings(other)...)
		text := before + after
		if len(all) > 0 {
			text = before + all[int(which)%len(all)].text + after
		}
		if longSeparator.MatchString(text) {
			return
		}
		redacted := New(value, other).String(text)
		if want := reference(all, text); redacted != want {
			t.Fatalf("%.300q of %.300q and %.300q:\n     got %.2000q\nexpected %.2000q", text, value, other, redacted, want)
		}
		visible := strings.ReplaceAll(redacted, Mask, "\x00")
		for _, whole := range all {
			if !whole.wholeWord && len(whole.text) >= minLengthInWords && !strings.Contains(whole.text, "\x00") && strings.Contains(visible, whole.text) {
				t.Fatalf("%.300q is visible in %.2000q", whole.text, redacted)
			}
		}
	})
}
