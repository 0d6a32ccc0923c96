package program

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// maxSimpleKey is how long a key may be, in bytes as it is written, without the mark of a complex key. YAML's limit is 1024
// characters.
const maxSimpleKey = 1000

// plainKey matches keys that need no quotes, unless they are reserved.
var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// yamlWriter writes a JSON value as YAML in block style. It is not a YAML library, whose next version may write the same value
// differently: what is written decides the digest. Strings are always quoted, so that none is taken for a number, a date or a
// boolean; numbers keep their digits; keys are sorted.
type yamlWriter struct {
	out bytes.Buffer
	// limit is the most bytes to write. Full tells that there were more.
	limit int
	full  bool
}

func (w *yamlWriter) write(text string) {
	if w.full = w.full || w.out.Len()+len(text) > w.limit; !w.full {
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
	if !plainKey.MatchString(key) || isReserved(key) {
		written = quote(key)
	}
	if len(written) > maxSimpleKey {
		w.write("? " + written + "\n")
		w.indent(indent)
		written = ""
	}
	w.write(written + ":")
	switch value := value.(type) {
	case map[string]any:
		if len(value) > 0 {
			w.write("\n")
			w.indent(indent + 2)
			w.object(value, indent+2)
			return
		}
	case []any:
		if len(value) > 0 {
			w.write("\n")
			w.indent(indent + 2)
			w.list(value, indent+2)
			return
		}
	}
	w.write(" ")
	w.scalar(value)
}

// list writes the elements of a list. The writer is at the column of its indent.
func (w *yamlWriter) list(value []any, indent int) {
	for i, element := range value {
		if i > 0 {
			w.indent(indent)
		}
		w.write("- ")
		switch element := element.(type) {
		case map[string]any:
			if len(element) > 0 {
				w.object(element, indent+2)
				continue
			}
		case []any:
			if len(element) > 0 {
				w.list(element, indent+2)
				continue
			}
		}
		w.scalar(element)
	}
}

// scalar writes what fits on a line, and ends the line.
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

// isReserved tells whether YAML, in any of its versions, reads the word as something else than a string.
func isReserved(word string) bool {
	switch strings.ToLower(word) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		return true
	}
	return false
}

// quote writes a string in double quotes. What people can read stays as it is, and all else is escaped.
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

// isShown tells whether a character is written as it is. These ranges are fixed, unlike the tables of the standard library, which
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
