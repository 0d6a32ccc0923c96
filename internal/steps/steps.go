// Package steps has what is known about the steps in which the Pulumi engine changes resources. Events of the engine, counts of changes and
// lists of changes name the kind of a step: "create", "update".
package steps

import (
	"maps"
	"slices"
)

// Kind is a kind of step.
type Kind struct {
	// Name of the kind, as the engine writes it.
	Name string
	// Sign stands for the step where there is little room, as in the output of Pulumi.
	Sign string
	// New is true if the resource was not in the state before.
	New bool
	// Changes is true if the step changes a resource, or makes Pulumi manage one.
	Changes bool
	// Destroys is true if a resource is deleted by the step, or is replaced.
	Destroys bool
	// Replaces is true for a replacement and for its parts. Part is true for the parts that are not listed, because the replacement is. The
	// summary of the engine counts no parts: what a part destroys is counted by the replacement.
	Replaces, Part bool
}

const (
	// Same is the name of the step of a resource that stays as it is.
	Same = "same"
	// Unknown is the sign of a kind that is not known.
	Unknown = "*"
)

// kinds are the kinds that are known, in the order in which they are shown. They are those of the engine that are about a resource, see OpSame
// in github.com/pulumi/pulumi/pkg/v3/resource/deploy.
var kinds = []Kind{
	{Name: "create", Sign: "+", New: true, Changes: true},
	{Name: "import", Sign: "=", New: true, Changes: true},
	{Name: "update", Sign: "~", Changes: true},
	{Name: "replace", Sign: "+-", Changes: true, Destroys: true, Replaces: true},
	{Name: "create-replacement", Sign: "++", Changes: true, Destroys: true, Replaces: true, Part: true},
	// It is listed although it is a part, because only it has the ID of the resource that takes the place.
	{Name: "import-replacement", Sign: "=>", Changes: true, Destroys: true, Replaces: true},
	{Name: "delete-replaced", Sign: "--", Changes: true, Destroys: true, Replaces: true, Part: true},
	// The resource was deleted before, by an update that did not get to create another one.
	{Name: "remove-pending-replace", Sign: "~", Changes: true, Replaces: true, Part: true},
	{Name: "delete", Sign: "-", Changes: true, Destroys: true},
	// The program reads a resource that Pulumi does not manage, and forgets one that it read before. The engine counts only a read whose
	// result is not that of the last one.
	{Name: "read", Sign: ">"},
	{Name: "read-replacement", Sign: ">>", Replaces: true, Part: true},
	{Name: "discard", Sign: "<"},
	{Name: "discard-replaced", Sign: "<<"},
	{Name: "refresh", Sign: "↻"},
	{Name: Same, Sign: " "},
}

// Of returns the kind with the name. A kind that is not known may do anything, so it counts as one that changes and destroys.
func Of(name string) Kind {
	if i := slices.IndexFunc(kinds, func(kind Kind) bool { return kind.Name == name }); i >= 0 {
		return kinds[i]
	}
	return Kind{Name: name, Sign: Unknown, Changes: true, Destroys: true}
}

// Count is how many steps of a kind there are.
type Count struct {
	Kind
	Steps int64
}

// Counts returns the counts by name that are more than zero, in the order in which they are shown: kinds that are not known come last.
func Counts(byName map[string]int64) (counts []Count) {
	add := func(kind Kind) {
		if steps := byName[kind.Name]; steps > 0 {
			counts = append(counts, Count{kind, steps})
		}
	}
	for _, kind := range kinds {
		add(kind)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if kind := Of(name); !slices.Contains(kinds, kind) {
			add(kind)
		}
	}
	return counts
}

// Change reports whether any of the steps, by the names of their kinds, changes a resource.
func Change(byName map[string]int64) bool {
	return slices.ContainsFunc(Counts(byName), func(count Count) bool { return count.Changes })
}
