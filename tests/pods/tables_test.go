package pods_test

import (
	"bytes"
	"context"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
)

// table is what "kubectl get --watch" printed.
type table struct {
	columns []string
	// rows by the name of the object, in the order in which they were printed, without repetitions. A row has the cells of
	// all columns but the first, and empty ones where nothing was printed.
	rows map[string][][]string
	// order has the names as they appeared.
	order []string
}

// watchTable runs "kubectl get --watch" for the kind in the namespace, and returns when it watches. The function that it returns
// ends it and returns what was printed.
func watchTable(ctx context.Context, g *WithT, namespace, kind string) func() table {
	watching, stop := context.WithCancel(ctx)
	// From this verbosity on, kubectl tells of the answers that it gets.
	cmd, err := kubectlCommand(watching, "get", kind, "--namespace="+namespace, "--watch", "-v=6")
	g.Expect(err).NotTo(HaveOccurred())
	var printed bytes.Buffer
	answers := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = &printed, answers
	g.Expect(cmd.Start()).To(Succeed())
	eventually(ctx, g, func(g Gomega) { g.Expect(answers.String()).To(ContainSubstring("watch=true")) })
	return func() table {
		stop()
		_ = cmd.Wait() // it ends by force, so there is an error in any case
		g.Expect(printed.String()).To(HaveSuffix("\n"))
		return parseTable(printed.String())
	}
}

// lockedBuffer is a buffer that is read while it is written.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// parseTable reads columns that begin where their headers do: kubectl prints the first row together with the header, and cells
// that come later are not wider than that, but in the last column.
func parseTable(printed string) table {
	lines := strings.Split(strings.TrimSuffix(printed, "\n"), "\n")
	header := lines[0]
	result := table{columns: strings.Fields(header), rows: map[string][][]string{}}
	var starts []int
	for _, column := range result.columns {
		starts = append(starts, strings.Index(header, column))
	}
	for _, line := range lines[1:] {
		cells := make([]string, len(starts))
		for i, start := range starts {
			end := len(line)
			if i+1 < len(starts) {
				end = min(end, starts[i+1])
			}
			if start < end {
				cells[i] = strings.TrimSpace(line[start:end])
			}
		}
		result.add(cells[0], cells[1:])
	}
	return result
}

func (t *table) add(name string, cells []string) {
	rows, known := t.rows[name]
	if !known {
		t.order = append(t.order, name)
	}
	if !known || strings.Join(rows[len(rows)-1], "|") != strings.Join(cells, "|") {
		t.rows[name] = append(rows, cells)
	}
}
