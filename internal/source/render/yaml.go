package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

// maxSimpleKey is how long a written key may be, in bytes, without the mark of a complex key ("? "). YAML's limit is 1024 characters.
const maxSimpleKey = 1000

// plainKey matches keys that need no quotes, unless they are reserved.
var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// reservedWords are words, in any case, that some version of YAML does not read as a string.
var reservedWords = []string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}

// yamlWriter writes a JSON value as YAML in block style. It replaces a YAML library, whose next version may write the same value
// differently and so change the digest. Strings are always quoted, so that none is read as a number, a date or a boolean; numbers keep
// their digits; keys are sorted.
type yamlWriter struct {
	out bytes.Buffer
	// failure says why nothing more is written: the value is too large, or nested too deeply.
	failure string
}

func (w *yamlWriter) write(text string) {
	if w.failure == "" && w.out.Len()+len(text) > maxRendered {
		w.failure = fmt.Sprintf("is larger than %d bytes as a %s", maxRendered, fileName)
	}
	if w.failure == "" {
		w.out.WriteString(text)
	}
}

// object writes the entries of an object. The writer is at the column of its indent.
func (w *yamlWriter) object(value map[string]any, indent int) {
	for i, key := range slices.Sorted(maps.Keys(value)) {
		if i > 0 {
			w.indent(indent)
		}
		w.entry(key, value[key], indent)
	}
}

// entry writes one entry of an object and ends its last line.
func (w *yamlWriter) entry(key string, value any, indent int) {
	written := key
	if !plainKey.MatchString(key) || slices.Contains(reservedWords, strings.ToLower(key)) {
		written = quote(key)
	}
	if len(written) > maxSimpleKey {
		w.write("? " + written + "\n")
		w.indent(indent)
		written = ""
	}
	w.write(written + ":")
	if isBlock(value) {
		w.write("\n")
		w.indent(indent + 2)
	} else {
		w.write(" ")
	}
	w.value(value, indent+2)
}

// value writes a value and ends its last line. If the value has lines of its own, the writer is at the column of their indent.
func (w *yamlWriter) value(value any, indent int) {
	switch {
	case w.failure != "":
		return
	case !isBlock(value):
		w.scalar(value)
		return
	case indent > 2*jsonparts.MaxDepth:
		w.failure = fmt.Sprintf("is nested more than %d levels deep", jsonparts.MaxDepth)
		return
	}
	if object, ok := value.(map[string]any); ok {
		w.object(object, indent)
		return
	}
	for i, element := range value.([]any) {
		if i > 0 {
			w.indent(indent)
		}
		w.write("- ")
		w.value(element, indent+2)
	}
}

// isBlock reports whether the value has lines of its own: an object or a list that is not empty.
func isBlock(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return len(value) > 0
	case []any:
		return len(value) > 0
	}
	return false
}

// scalar writes a value that fits on the line, and ends the line.
func (w *yamlWriter) scalar(value any) {
	switch value := value.(type) {
	case nil:
		w.write("null\n")
	case bool:
		w.write(fmt.Sprintf("%t\n", value))
	case json.Number:
		w.write(value.String() + "\n")
	case string:
		w.write(quote(value) + "\n")
	case map[string]any:
		w.write("{}\n")
	case []any:
		w.write("[]\n")
	}
}

func (w *yamlWriter) indent(columns int) {
	w.write(strings.Repeat(" ", columns))
}

// quote returns the string in double quotes. Readable characters stay as they are, and all others are escaped.
func quote(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, char := range text {
		switch {
		case char == '"' || char == '\\':
			out.WriteByte('\\')
			out.WriteRune(char)
		case char == '\n':
			out.WriteString(`\n`)
		case char == '\t':
			out.WriteString(`\t`)
		case isShown(char):
			out.WriteRune(char)
		case char <= 0xff:
			fmt.Fprintf(&out, `\x%02x`, char)
		case char <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, char)
		default:
			fmt.Fprintf(&out, `\U%08x`, char)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// isShown reports whether a character is written as it is. These ranges are fixed, unlike the tables of the standard library, which
// follow Unicode: another table would change digests.
func isShown(char rune) bool {
	switch {
	case char < 0x80:
		return char >= ' ' && char <= '~'
	case char == 0xad, char >= 0x2000 && char <= 0x206f, char >= 0xfe00 && char <= 0xfe0f, char == 0xfeff:
		return false // invisible, or a line break for YAML
	}
	return char >= 0xa1 && char <= 0xd7ff || char >= 0xf900 && char <= 0xffef || char >= 0x10000 && char <= 0x1ffff
}
