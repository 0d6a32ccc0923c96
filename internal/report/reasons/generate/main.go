// Command generate writes the constants of the reasons into the API. It runs in the root of the repository.
package main

import (
	"fmt"
	"go/format"
	"os"
	"strings"

	"github.com/stack-controller/stack-controller/internal/report/reasons"
)

func main() {
	for path, pkg := range map[string]string{reasons.StackConstants: "v1", reasons.UpdateConstants: "v1alpha1"} {
		content, err := format.Source([]byte(constants(path, pkg)))
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// constants returns the content of a file with constants.
func constants(path, pkg string) string {
	var content strings.Builder
	fmt.Fprintf(&content, "// Code generated from internal/report/reasons by make generate. DO NOT EDIT.\n\npackage %s\n", pkg)
	written := map[string]bool{}
	for _, table := range reasons.Tables() {
		if table.Constants != path {
			continue
		}
		fmt.Fprintf(&content, "\n// Reasons of the conditions of %ss.\nconst (\n", table.Kind)
		for _, row := range table.Rows {
			name := row.Name()
			if name == "" || written[name] {
				continue
			}
			written[name] = true
			state := strings.ReplaceAll(string(row.State), "*", "")
			fmt.Fprintf(&content, "\t// %s (%s): %s\n\t%s = %q\n", name, state, reasons.Plain(row.Means), name, row.Reason)
		}
		content.WriteString(")\n")
	}
	return content.String()
}
