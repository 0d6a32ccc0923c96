package reasons

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// wakerFiles have the wakers of each reason. Tests of the controllers find them in all decisions that the controllers can make, and write the
// files.
//
//go:embed wakers/*.json
var wakerFiles embed.FS

// StalledReasons is the key, among the wakers, of the reasons with which decisions make an object Stalled.
const StalledReasons = "Stalled"

// wakerNames are the names, in texts, of the controllers' wakers.
var wakerNames = map[string]string{
	"edit": "an edit", "source": "the source", "fetch": "the download", "update": "the Update or Workspace", "dependencies": "the other Stacks",
	"dependents": "the dependents", "objects": "the object", "time": "time", "workspace": "the Workspace", "updates": "the other Updates",
	"approval": "an Approval", "stack": "the Stack", "observer": "the operation", "delivery": "the delivery", "turn": "its turn",
}

// Wakers returns what brings an object back, for each reason, and StalledReasons. The map is the caller's own.
func (t *Table) Wakers() map[string][]string {
	wakers := map[string][]string{}
	if t.wakers == "" {
		return wakers
	}
	content, err := wakerFiles.ReadFile("wakers/" + t.wakers + ".json")
	if err == nil {
		err = json.Unmarshal(content, &wakers)
	}
	if err != nil {
		panic(fmt.Sprintf("the wakers of a %s are not what a test has written: %v", t.Kind, err))
	}
	return wakers
}

// WakerNames returns a text with the names of the wakers. A waker without a name is written as it is.
func WakerNames(wakers []string) string {
	var names []string
	for _, waker := range wakers {
		name, known := wakerNames[waker]
		if !known {
			name = waker
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// Wakes returns a text about what brings an object back: the wakers of the reason, and When of the row, which replaces the waker "time".
func (r *Row) Wakes(wakers []string) string {
	if r.When != "" {
		wakers = slices.DeleteFunc(slices.Clone(wakers), func(waker string) bool { return waker == "time" })
	}
	text := WakerNames(wakers)
	switch {
	case text == "":
		return r.When
	case r.When == "":
		return text
	}
	return text + "; " + r.When
}
