package print

import "strings"

// Node is a node of a tree, with the nodes below it.
type Node struct {
	Text string
	// Status is shown after the text, in its style.
	Status Cell
	Below  []*Node
}

// Add puts a node below this one, and returns it.
func (n *Node) Add(text string, status Cell) *Node {
	node := &Node{Text: text, Status: status}
	n.Below = append(n.Below, node)
	return node
}

// Tree writes a node and all nodes below it.
func (p *Printer) Tree(root *Node) { p.branch(root, "", "") }

func (p *Printer) branch(node *Node, first, rest string) {
	line := first + Clean(node.Text)
	if status := Clean(node.Status.Text); status != "" {
		line += "  " + p.Paint(node.Status.Style, status)
	}
	p.Line("%s", line)
	for i, below := range node.Below {
		if i < len(node.Below)-1 {
			p.branch(below, rest+"├── ", rest+"│   ")
		} else {
			p.branch(below, rest+"└── ", rest+"    ")
		}
	}
}

const (
	// textWidth is the width of text without a terminal, and the maximum on a wider terminal.
	textWidth = 110
	// labelWidth is the width of the first column of a list of facts.
	labelWidth = 15
)

// Section is a title with the state of what it names, and the facts about it.
type Section struct {
	Title string
	State Cell
	Facts []Fact
}

// Fact is a text with a label. One without a text is not written.
type Fact struct {
	Label string
	Text  Cell
}

// Add adds a fact.
func (s *Section) Add(label string, text Cell) {
	s.Facts = append(s.Facts, Fact{Label: label, Text: text})
}

// Sections writes the sections, with an empty line between them.
func (p *Printer) Sections(sections []Section) {
	for i, section := range sections {
		if i > 0 {
			p.Line("")
		}
		p.Line("%s  %s", p.Paint(Strong, Clean(section.Title)), p.Paint(section.State.Style, Clean(section.State.Text)))
		for _, fact := range section.Facts {
			p.Fact(fact.Label, fact.Text)
		}
	}
}

// Fact writes a label and its text, in as many lines as the text needs. Without text it writes nothing.
func (p *Printer) Fact(label string, text Cell) {
	width := textWidth
	if p.width > 0 {
		width = min(width, p.width)
	}
	for i, line := range Wrap(Clean(text.Text), max(width-labelWidth-1, labelWidth)) {
		if i > 0 {
			label = ""
		}
		p.Line("%s %s", p.Paint(Faint, label+strings.Repeat(" ", max(labelWidth-len(label), 0))), p.Paint(text.Style, line))
	}
}

// Wrap breaks the text into lines of at most width characters, unless a word is longer. It returns no lines for an empty text.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
