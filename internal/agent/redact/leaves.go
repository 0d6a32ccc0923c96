package redact

import (
	"encoding/json"
	"iter"
	"strings"
)

// maxDepth is how many objects and arrays may be around a value. It is the limit of encoding/json.
const maxDepth = 10_000

// Leaves returns the strings and numbers in a JSON document, except the names in objects: a program that uses the parts of a secret object
// may print these. Numbers are returned as they are written. It keeps none of them, and ends where the document is malformed.
func Leaves(document string) iter.Seq[string] {
	return func(yield func(string) bool) {
		decoder := json.NewDecoder(strings.NewReader(document))
		decoder.UseNumber()
		walk(decoder, 0, yield)
	}
}

// walk passes the leaves of the next value to yield, and reports whether to go on.
func walk(decoder *json.Decoder, depth int, yield func(string) bool) bool {
	token, err := decoder.Token()
	if err != nil || depth > maxDepth {
		return false
	}
	switch token := token.(type) {
	case string:
		return yield(token)
	case json.Number:
		return yield(token.String())
	case json.Delim:
		for decoder.More() {
			if token == '{' {
				if _, err := decoder.Token(); err != nil {
					return false
				}
			}
			if !walk(decoder, depth+1, yield) {
				return false
			}
		}
		_, err := decoder.Token()
		return err == nil
	}
	return true
}
