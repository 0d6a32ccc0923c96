package measure

import (
	"fmt"
	"io"
	"strings"
)

// Limits are what was held against a limit.
type Limits struct{ checked []limit }

type limit struct {
	what      string
	got, most float64
}

// Check holds a measurement against the most that it may be.
func (l *Limits) Check(what string, got, most float64) {
	l.checked = append(l.checked, limit{what: what, got: got, most: most})
}

// Judge prints how the measurements stand to their limits. It returns an error when one is exceeded, they are enforced and the
// machine was quiet: on a busy one the figures say little.
func (l *Limits) Judge(out io.Writer, machine *Machine, enforce bool) error {
	if len(l.checked) == 0 {
		return nil
	}
	t := NewTable(out, "limits", "measured", "limit", "")
	var exceeded []string
	for _, c := range l.checked {
		verdict := "kept"
		if c.got > c.most {
			verdict = "EXCEEDED"
			exceeded = append(exceeded, fmt.Sprintf("%s: %.2f, more than %.2f", c.what, c.got, c.most))
		}
		t.Cells(c.what, fmt.Sprintf("%.2f", c.got), fmt.Sprintf("%.2f", c.most), verdict)
	}
	t.Flush()
	fmt.Fprintln(out, machine.Description())
	switch {
	case len(exceeded) == 0:
		return nil
	case !machine.Quiet():
		fmt.Fprintln(out, "The machine was busy with other things: exceeded limits are not an error.")
		return nil
	case !enforce:
		return nil
	}
	return fmt.Errorf("limits are exceeded: %s", strings.Join(exceeded, "; "))
}
