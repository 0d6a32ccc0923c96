package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/stack-controller/stack-controller/tests/leftovers"
)

// recordKind is that of the records of demos.
const recordKind = "demo"

// cleanAll ends every demo of this user and removes what is left of those that crashed.
func cleanAll(out io.Writer) error {
	running, err := leftovers.Records(recordKind, true)
	if err != nil {
		return err
	}
	for _, r := range running {
		if err := r.End(); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out, "removed the demo in", strings.Join(r.Directories, ", "))
	}
	if err := leftovers.Sweep(out); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out, "nothing else to clean up")
	return nil
}
