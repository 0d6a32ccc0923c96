// Package jsonparts counts what a JSON document consists of, without decoding it. A decoded document takes a hundred times the memory of its
// text if it has very many small parts: an empty object is two bytes of text, and an object with one entry takes more than 300 bytes of
// memory.
package jsonparts

// Bounds of what a tenant may write as JSON and the project decodes: a Program, and the structured values of an operation together.
const (
	// MaxParts is how many keys and values there may be. An object in the cluster has room for half a million, each of which may take more than
	// 100 bytes of memory when it is decoded.
	MaxParts = 100_000
	// MaxDepth is how deep objects and lists may be nested. Real ones stay below 20. Where they are written as YAML, the bytes of indentation
	// grow with the square of the depth.
	MaxDepth = 100
)

// Count returns how many keys and values the document has, and how deep its objects and lists are nested: 0 for a number, 1 for a list of
// numbers. The document need not be valid. Count reads it once and allocates nothing. A key or a value of a valid document is counted at
// most once; of an empty object or list, the place for a first item is counted as well.
func Count[Text string | []byte](document Text) (parts, depth int) {
	parts = 1
	level, quoted := 0, false
	for i := 0; i < len(document); i++ {
		switch char := document[i]; {
		case quoted && char == '\\':
			i++
		case char == '"':
			quoted = !quoted
		case quoted:
		case char == '{' || char == '[':
			parts++
			level++
			depth = max(depth, level)
		case char == '}' || char == ']':
			level--
		case char == ',' || char == ':':
			parts++
		}
	}
	return parts, depth
}
