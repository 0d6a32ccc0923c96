package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

const (
	// minSpreadLength is the length in bytes from which a value is looked for in hexadecimal digits, and inside longer base64 text. The
	// parts of it that do not depend on the neighbouring bytes are too short to be told from other text below that.
	minSpreadLength = 6
	// minLineLength is the length in bytes from which a line of a longer value is hidden on its own. Shorter lines of a kubeconfig or a
	// certificate are ordinary text.
	minLineLength = 8
	// minPlainLength is the one for lines of settings, such as "kind: Config", whose value is shorter than minLineLength.
	minPlainLength = 16
	// dumpColumns is how many bytes hexdump -C and xxd print in a line, and maxDumped the length of values whose dumps are hidden, in
	// bytes. The last line of a dump is hidden from minLineLength bytes on.
	dumpColumns = 16
	maxDumped   = 4 << 10
	// pemFrame is around the first and the last line of a PEM file.
	pemFrame = "-----"
	// pemColumns and mimeColumns are where programs wrap base64.
	pemColumns, mimeColumns = 64, 76
)

// spellings returns the value and its other spellings.
func spellings(value string) []string {
	raw := []byte(value)
	return []string{
		value,
		jsonEscaped(value, true),
		jsonEscaped(value, false),
		unquoted(strconv.Quote(value)),
		url.QueryEscape(value),
		url.PathEscape(value),
		strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
		base64.StdEncoding.EncodeToString(raw),
		base64.RawStdEncoding.EncodeToString(raw),
		base64.URLEncoding.EncodeToString(raw),
		base64.RawURLEncoding.EncodeToString(raw),
	}
}

// jsonEscaped returns the value as it stands inside a JSON string.
func jsonEscaped(value string, escapeHTML bool) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(escapeHTML)
	if err := encoder.Encode(value); err != nil {
		return value
	}
	return unquoted(strings.TrimSuffix(out.String(), "\n"))
}

func unquoted(quoted string) string {
	return quoted[1 : len(quoted)-1]
}

// embeddedBase64 returns what of the value can be seen in the base64 text of something longer that contains it, for
// example "user:password". Three bytes make four characters, so there are three alignments; the characters at both ends
// that mix in a neighbouring byte are left out.
func embeddedBase64(value string) []string {
	var forms []string
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for offset := range 3 {
			padded := append(make([]byte, offset), value...)
			forms = append(forms, encoding.EncodeToString(padded)[(offset*8+5)/6:len(padded)*8/6])
		}
	}
	return forms
}

// lines returns the lines of the value that are hidden when they are printed one at a time.
func lines(value string) []string {
	var hidden []string
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); line != value && mayRevealSecret(line) {
			hidden = append(hidden, line)
		}
	}
	return hidden
}

// mayRevealSecret reports whether there is something to hide in the line. The frame of a key and the name of a setting are ordinary text.
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

// pieces returns the text in pieces of that length. The last one is left out when it is too short.
func pieces(text string, length int) []string {
	var all []string
	for ; len(text) >= minLineLength; text = text[min(length, len(text)):] {
		all = append(all, text[:min(length, len(text))])
	}
	return all
}

// printable returns the bytes as a dump shows them beside their numbers.
func printable(text string) string {
	shown := []byte(text)
	for i, b := range shown {
		if b > unicode.MaxASCII || !unicode.IsPrint(rune(b)) {
			shown[i] = '.'
		}
	}
	return string(shown)
}
