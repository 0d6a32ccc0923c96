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
	// pemColumns and mimeColumns are the line lengths at which programs wrap base64.
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

// embeddedBase64 returns the parts of the value that are visible in the base64 text of something longer that contains it, for example
// "user:password". Three bytes become four characters, so there are three alignments. The characters at both ends that also depend on a
// neighbouring byte are left out.
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

// lines returns the lines of the value that are hidden when they are printed separately.
func lines(value string) []string {
	var hidden []string
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); line != value && mayRevealSecret(line) {
			hidden = append(hidden, line)
		}
	}
	return hidden
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

// pieces returns the text in pieces of the given length. The last one is left out if it is shorter than minLineLength.
func pieces(text string, length int) []string {
	var all []string
	for ; len(text) >= minLineLength; text = text[min(length, len(text)):] {
		all = append(all, text[:min(length, len(text))])
	}
	return all
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
