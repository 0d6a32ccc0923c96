package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// minBase64Length is the length in bytes from which a value is looked for inside longer base64 text. The parts of it
// that do not depend on the neighbouring bytes are too short to be told from other text below that.
const minBase64Length = 6

// encodings returns the other spellings of the value, without the value itself.
func encodings(value string) []string {
	raw := []byte(value)
	forms := []string{
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
	if len(raw) >= minBase64Length {
		forms = append(forms, embeddedBase64(base64.RawStdEncoding, raw)...)
		forms = append(forms, embeddedBase64(base64.RawURLEncoding, raw)...)
	}
	other := forms[:0]
	for _, form := range forms {
		if form != value {
			other = append(other, form)
		}
	}
	return other
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
func embeddedBase64(encoding *base64.Encoding, value []byte) []string {
	forms := make([]string, 0, 3)
	for offset := range 3 {
		padded := append(make([]byte, offset), value...)
		encoded := encoding.EncodeToString(padded)
		start := (offset*8 + 5) / 6
		end := len(padded) * 8 / 6
		forms = append(forms, encoded[start:end])
	}
	return forms
}
