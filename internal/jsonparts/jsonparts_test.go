package jsonparts_test

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

func TestKeysAndValuesAreCounted(t *testing.T) {
	for document, want := range map[string][2]int{
		`1`:                              {1, 0},
		`"[{,:\"[{,:\\"`:                 {1, 0},
		`[]`:                             {2, 1},
		`[1, 2]`:                         {3, 1},
		`{"a": {"b": [1, "x,y", null]}}`: {8, 3},
		strings.Repeat("[", 1000):        {1001, 1000},
		`]]]]`:                           {1, 0},
		`"\`:                             {1, 0},
		``:                               {1, 0},
	} {
		parts, depth := jsonparts.Count(document)
		NewWithT(t).Expect([2]int{parts, depth}).To(Equal(want), document)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	document := []byte(`[` + strings.Repeat(`{"":0},`, 10_000) + `0]`)
	NewWithT(t).Expect(testing.AllocsPerRun(10, func() { jsonparts.Count(document) })).To(BeZero())
}

// FuzzCount compares the count with the decoded document.
func FuzzCount(f *testing.F) {
	for _, document := range []string{`{"a": [1, {}, "x,y\\", null]}`, `[[[]]]`, ` {"\"": "[", "b" : -1e5 } `, `"\ud800"`} {
		f.Add(document)
	}
	f.Fuzz(func(t *testing.T, document string) {
		parts, depth := jsonparts.Count(document)
		var value any
		if json.Unmarshal([]byte(document), &value) != nil {
			return
		}
		// Equal keys of an object are one key when they are decoded.
		if wantParts, wantDepth := count(value); depth != wantDepth && !strings.Contains(document, ":") || parts < wantParts {
			t.Fatalf("%q has %d parts and depth %d, counted were %d and %d", document, wantParts, wantDepth, parts, depth)
		}
	})
}

// count returns the keys and values of a decoded document, and its depth.
func count(value any) (parts, depth int) {
	inner := func(item any) {
		more, below := count(item)
		parts, depth = parts+more, max(depth, below)
	}
	switch value := value.(type) {
	case map[string]any:
		for _, item := range value {
			parts++
			inner(item)
		}
	case []any:
		for _, item := range value {
			inner(item)
		}
	default:
		return 1, 0
	}
	return parts + 1, depth + 1
}
