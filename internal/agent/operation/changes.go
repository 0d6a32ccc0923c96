package operation

import (
	"maps"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/steps"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// changeList lists what a preview of any kind would change, for people and programs: the resources, and which of their properties, but
// never a value. It is bounded, and counts what does not fit.
type changeList struct {
	list    []*agentpb.ResourceChange
	size    int
	omitted int64
	// digest is that of the next step, for a plan; empty without a plan.
	digest string
}

// add takes one step into account. shown prepares a text for display: without secrets, and not longer than the given size, in bytes. URNs are
// not prepared: operations get them as targets. They are not secret: Pulumi stores them in clear, and they consist of names in the program.
func (c *changeList) add(event *stepEvent, shown func(text string, size int) string) {
	step := event.Metadata
	if isNoChange(step.Op, step.Type, step.URN, event.parent()) {
		return
	}
	change := &agentpb.ResourceChange{Operation: plaintext.Cut(step.Op, agentpb.MaxChangeKind), Urn: plaintext.Cut(step.URN, agentpb.MaxURN)}
	paths := step.Diffs
	if len(step.DetailedDiff) > 0 {
		paths = slices.Sorted(maps.Keys(step.DetailedDiff))
	}
	if step.Op != "delete" && step.Op != "create" {
		change.Paths = shownPaths(paths, shown)
		change.ReplacePaths = shownPaths(step.Keys, shown)
	}
	change.Digest = c.digest
	size := len(change.Operation) + len(change.Urn)
	for _, path := range slices.Concat(change.Paths, change.ReplacePaths) {
		size += len(path)
	}
	if len(c.list) >= agentpb.MaxChanges || c.size+size > agentpb.MaxChangesSize || len(step.URN) > agentpb.MaxURN {
		c.omitted++
		return
	}
	c.list, c.size = append(c.list, change), c.size+size
}

// isNoChange reports whether a step is of no interest: it changes nothing, is a part of a replacement, which is listed once, or is about the
// stack itself, or about a default provider that comes or goes. parent is the URN of the resource's parent.
func isNoChange(op, resourceType, resource, parent string) bool {
	kind := steps.Of(op)
	return !kind.Changes || kind.Part || resourceType == stackType ||
		parent == "" && (op == "create" || op == "delete") && hasNameOfDefault(resource)
}

// hasNameOfDefault reports whether the resource has the name of a provider that the engine creates itself, because no program asked for it.
// A program can give this name to a provider of its own, which has a parent unless the program hides it. The engine counts no steps of
// providers with such a name.
func hasNameOfDefault(resource string) bool {
	name := urn.Name(resource)
	return strings.HasPrefix(urn.Type(resource), providerPrefix) && (name == "default" || strings.HasPrefix(name, "default_"))
}

func shownPaths(paths []string, shown func(string, int) string) (list []string) {
	for _, path := range paths[:min(len(paths), agentpb.MaxChangePaths)] {
		list = append(list, shown(path, agentpb.MaxChangePath))
	}
	return list
}
