package print

import (
	"strings"
	"unicode/utf8"
)

// gap separates the columns of a table.
const gap = "   "

// Cell is a cell of a table.
type Cell struct {
	Text  string
	Style Style
}

// Table writes rows in columns. Columns never get narrower, so that later rows fit.
type Table struct {
	printer *Printer
	widths  []int
	header  []Cell
}

// NewTable returns a table with these headings, which are written with the first row.
func NewTable(printer *Printer, headings ...string) *Table {
	table := &Table{printer: printer, widths: make([]int, len(headings))}
	for _, heading := range headings {
		table.header = append(table.header, Cell{Text: heading, Style: Strong})
	}
	return table
}

// Headless leaves out the headings.
func (t *Table) Headless() { t.header = nil }

// Write writes the rows. It removes escape sequences for terminals from the text, which may come from elsewhere.
func (t *Table) Write(rows ...[]Cell) {
	if len(rows) == 0 {
		return
	}
	if t.header != nil {
		rows = append([][]Cell{t.header}, rows...)
		t.header = nil
	}
	for _, row := range rows {
		for i := range row {
			row[i].Text = Clean(row[i].Text)
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i].Text))
		}
	}
	for _, row := range rows {
		t.printer.Line("%s", t.line(row))
	}
}

func (t *Table) line(row []Cell) string {
	var line strings.Builder
	for i, cell := range row {
		line.WriteString(t.printer.Paint(cell.Style, cell.Text))
		if i < len(row)-1 {
			line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell.Text)) + gap)
		}
	}
	return strings.TrimRight(line.String(), " ")
}
