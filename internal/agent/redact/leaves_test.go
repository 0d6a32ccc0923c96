package redact_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/redact"
)

func TestLeavesAreTheStringsAndNumbersOfADocument(t *testing.T) {
	for document, want := range map[string][]string{
		`"a\"b"`: {`a"b`},
		`{"name": [1.50, "text", {"y": 12345678901234567890, "z": {}}, []], "b": null, "c": true}`: {"1.50", "text", "12345678901234567890"},
		`["before", {"a": 1`: {"before", "1"},
		`["before" "after"]`: {"before"},
		`{1: 2}`:             nil,
		``:                   nil,
		strings.Repeat("[", 10_000) + "1" + strings.Repeat("]", 10_000): {"1"},
		strings.Repeat("[", 10_001) + "1" + strings.Repeat("]", 10_001): nil,
		strings.Repeat(`{"":`, 1<<20):                                   nil,
	} {
		NewWithT(t).Expect(slices.Collect(redact.Leaves(document))).To(Equal(want), "%.100s", document)
	}
	for leaf := range redact.Leaves(`["first", "second"]`) {
		NewWithT(t).Expect(leaf).To(Equal("first"))
		break
	}
}

func TestLeavesOfALargeDocumentAreNotHeld(t *testing.T) {
	g := NewWithT(t)
	document := "[" + strings.Repeat(`"abc",1,`, 100_000) + `{"a":["` + strings.Repeat("x", 1000) + `"]}]`
	_, kept := memory(func() any {
		redactor, leaves := redact.New(), 0
		for leaf := range redact.Leaves(document) {
			leaves++
			redactor.Add(leaf)
		}
		g.Expect(leaves).To(Equal(200_001))
		return redactor
	})
	g.Expect(kept).To(BeNumerically("<", fixed))
}

// FuzzLeaves checks that no string and no number of the decoded document is missing.
func FuzzLeaves(f *testing.F) {
	f.Add(`{"a": [1, "b", {"c": -1.5e3}], "d": "e"}`)
	f.Add(`[[[]], {}, "\ud800", null]`)
	f.Fuzz(func(t *testing.T, document string) {
		var value any
		decoder := json.NewDecoder(strings.NewReader(document))
		decoder.UseNumber()
		if !json.Valid([]byte(document)) || decoder.Decode(&value) != nil {
			return
		}
		got := slices.Collect(redact.Leaves(document))
		// Of two values with one name, the decoded document has only the last one.
		for _, leaf := range decoded(value) {
			if !slices.Contains(got, leaf) {
				t.Fatalf("%q of %q are without %q", got, document, leaf)
			}
		}
	})
}

func decoded(value any) (leaves []string) {
	switch value := value.(type) {
	case string:
		leaves = append(leaves, value)
	case json.Number:
		leaves = append(leaves, value.String())
	case []any:
		for _, element := range value {
			leaves = append(leaves, decoded(element)...)
		}
	case map[string]any:
		for _, element := range value {
			leaves = append(leaves, decoded(element)...)
		}
	}
	return leaves
}
