package main

import (
	"fmt"
	"io"
	"strings"
)

// The limits of what is measured in pods.
const (
	// maxCommitRatio is that of a new artifact's way to the success of the Stack to a bare update.
	maxCommitRatio = 3.0
	// maxManyRatio is that of the time that many Stacks take with one commit to the processor time of as many bare updates,
	// divided by the number of processors.
	maxManyRatio = 1.5
	// maxAgentMemory is the resident memory of an idle agent, in MB.
	maxAgentMemory = 25.0
)

// limits are what was held against a limit.
type limits struct{ checked []limit }

type limit struct {
	what      string
	got, most float64
}

func (l *limits) check(what string, got, most float64) {
	l.checked = append(l.checked, limit{what: what, got: got, most: most})
}

// judge prints how the measurements stand to their limits. It returns an error when one is exceeded, they are enforced and the
// machine was quiet: on a busy one the figures say little.
func (l *limits) judge(out io.Writer, machine *machine, enforce bool) error {
	if len(l.checked) == 0 {
		return nil
	}
	t := newTable(out, "limits", "measured", "limit", "")
	var exceeded []string
	for _, c := range l.checked {
		verdict := "kept"
		if c.got > c.most {
			verdict = "EXCEEDED"
			exceeded = append(exceeded, fmt.Sprintf("%s: %.2f, more than %.2f", c.what, c.got, c.most))
		}
		t.cells(c.what, fmt.Sprintf("%.2f", c.got), fmt.Sprintf("%.2f", c.most), verdict)
	}
	t.flush()
	fmt.Fprintln(out, machine.description())
	switch {
	case len(exceeded) == 0:
		return nil
	case !machine.quiet():
		fmt.Fprintln(out, "The machine was busy with other things: exceeded limits are not an error.")
		return nil
	case !enforce:
		return nil
	}
	return fmt.Errorf("limits are exceeded: %s", strings.Join(exceeded, "; "))
}
