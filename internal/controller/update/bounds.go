package update

import (
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
	"github.com/stack-controller/stack-controller/internal/jsonparts"
)

// Bounds of the values of one operation. Tenants choose the values, and every worker of the controller may hold such values at the same
// time.
const (
	// maxVariable is the largest size of an environment variable, in bytes, with which Linux starts a program: the name, "=" and the value.
	// Linux allows 128 KiB with the NUL at the end.
	maxVariable = 128<<10 - 1
	// maxProcess bounds the environment, the targets and the replacements of an operation together, in bytes, as Linux counts them: each has a
	// NUL at its end, and a pointer. Linux gives the arguments and the environment of a program a quarter of its stack, which has 8 MiB unless
	// the node has another limit.
	maxProcess = 2 << 20
	// pointerSize is what Linux counts for a variable or an argument besides its text, in bytes.
	pointerSize = 8
	// maxEntries bounds the number of environment variables, configuration values, imported environments, targets and replacements together.
	// An entry has at most entryFields fields in a request, and an agent refuses a request with more than agentpb.MaxRequestFields, see below.
	maxEntries, entryFields = 10_000, 6
	// maxValues bounds, in bytes, the environment and the configuration together, with valueCost for each value.
	maxValues = 8 << 20
	// valueCost is what a value takes in memory besides its text, in bytes: an entry of a map, which has room for up to twice as many, and the
	// fields of a message.
	valueCost = 256
)

// This does not compile if an agent could refuse an operation because it has too many entries.
const _ = uint(agentpb.MaxRequestFields - maxEntries*entryFields)

// budget counts what an operation uses. Its errors are *inputs.InvalidError; they name what was counted last.
type budget struct {
	// entries is the number of entries so far, and process the size of those that a process is started with, in bytes.
	entries, process int
	// used is the size of all values so far, in bytes.
	used int
	// parts is the number of keys and values in structured values.
	parts int
}

// addEntries counts n entries of an operation.
func (b *budget) addEntries(n int, what string) error {
	if b.entries += n; b.entries > maxEntries {
		return inputs.Invalidf("with %s, the operation has more than %d environment variables, configuration values, imported environments, targets and "+
			"replacements: use fewer", what, maxEntries)
	}
	return nil
}

// addText counts a variable or an argument of a process, which has the number of bytes. The number is negative if it is removed again.
func (b *budget) addText(bytes int, what string) error {
	if b.process += bytes; b.process > maxProcess {
		return inputs.Invalidf("with %s, the environment, the targets and the replacements of the operation have more than %d MiB, and Linux starts no "+
			"program with more: use fewer or shorter ones", what, maxProcess>>20)
	}
	return nil
}

// use counts the bytes of a value.
func (b *budget) use(bytes int) error {
	if b.used += bytes + valueCost; b.used > maxValues {
		return inputs.Invalidf("the environment and the configuration of the operation have more than %d MiB: use fewer or shorter values", maxValues>>20)
	}
	return nil
}

// addStructured counts the keys and values in a structured value.
func (b *budget) addStructured(document, what string) error {
	parts, depth := jsonparts.Count(document)
	switch b.parts += parts; {
	case depth > jsonparts.MaxDepth:
		return inputs.Invalidf("the value of %s is nested more than %d levels deep", what, jsonparts.MaxDepth)
	case b.parts > jsonparts.MaxParts:
		return inputs.Invalidf("with %s, the structured values of the configuration have more than %d keys and values: use fewer", what, jsonparts.MaxParts)
	}
	return nil
}
