package informercache

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
)

// fields is a tree of names of fields. A name without names below it stands for the whole field.
type fields map[string]fields

// document is the text of a JSON value, with the extents of its large parts. What is kept of it is written to out.
type document struct {
	text  []byte
	large map[int]extent
	out   *bytes.Buffer
	// reduced has the sizes of objects without their unread fields, by their positions.
	reduced map[int]int
	// around is reused by scanners. scanned counts the characters that were scanned again.
	around  []container
	scanned int
}

// document returns the text that was scanned.
func (s *scanner) document(out *bytes.Buffer) *document {
	return &document{text: s.text[:s.at:s.at], large: s.large, out: out, reduced: map[int]int{}, around: s.around}
}

// member is a field of an object, or an item of a list.
type member struct {
	// key has quotation marks; it is empty in a list.
	key []byte
	// at is where the value begins.
	at int
	extent
}

// valueAt returns the value at the position.
func (d *document) valueAt(at int) member {
	if at < len(d.text) && d.text[at] == '"' {
		if end, ended := endOfText(d.text, at+1); ended {
			d.scanned += end - at
			return member{at: at, extent: extent{end + 1, valueSize + end - at - 1}}
		}
	}
	if known, ok := d.large[at]; ok {
		return member{at: at, extent: known}
	}
	s := scanner{text: d.text, at: at, quote: -1, around: d.around[:0]}
	s.scan()
	d.around = s.around
	d.scanned += s.at - at
	return member{at: at, extent: extent{s.at, s.size()}}
}

// skip returns the position of the next key, value or end.
func (d *document) skip(at int) int {
	for at < len(d.text) {
		switch d.text[at] {
		case ' ', '\t', '\n', '\r', ',', ':':
			at++
		default:
			return at
		}
	}
	return at
}

// members returns the members of the object at the position; none if there is no object.
func (d *document) members(at int) iter.Seq[member] {
	return func(yield func(member) bool) {
		if !d.isObject(at) {
			return
		}
		for at = d.skip(at + 1); at < len(d.text) && d.text[at] == '"'; {
			end, _ := endOfText(d.text, at+1)
			value := d.skip(end + 1)
			if value >= len(d.text) {
				return
			}
			d.scanned += end - at
			found := d.valueAt(value)
			if found.key = d.text[at : end+1]; !yield(found) {
				return
			}
			at = d.skip(found.end)
		}
	}
}

// items returns the items of the list at the position.
func (d *document) items(at int) iter.Seq[member] {
	return func(yield func(member) bool) {
		for at = d.skip(at + 1); at < len(d.text) && d.text[at] != ']'; {
			found := d.valueAt(at)
			if found.end == at || !yield(found) {
				return
			}
			at = d.skip(found.end)
		}
	}
}

func (d *document) isObject(at int) bool { return at < len(d.text) && d.text[at] == '{' }

// below returns what is unread below the member, and whether the whole member is unread.
func (m member) below(unread fields) (below fields, all bool) {
	if len(unread) == 0 || len(m.key) < 2 {
		return nil, false
	}
	below, found := unread[string(m.key[1:len(m.key)-1])]
	return below, found && len(below) == 0
}

// without returns the member with the size that it has without its unread fields.
func (d *document) without(item member, unread fields) member {
	if len(unread) == 0 || !d.isObject(item.at) {
		return item
	}
	if size, known := d.reduced[item.at]; known {
		item.size = size
		return item
	}
	item.size = valueSize
	for part := range d.members(item.at) {
		if below, all := part.below(unread); !all {
			item.size += d.without(part, below).sizeWithKey()
		}
	}
	d.reduced[item.at] = item.size
	return item
}

// sizeWithKey is what the member takes in its object, in bytes.
func (m member) sizeWithKey() int { return len(m.key) - 2 + m.size }

// smallest returns the members of the object, the smallest first. Of an object with very many members, it returns only the first ones of
// the text, which are more than fit.
func (d *document) smallest(at int, unread fields) []member {
	var found []member
	for item := range d.members(at) {
		below, all := item.below(unread)
		if all {
			continue
		}
		if found = append(found, d.without(item, below)); len(found) == MaxSize/valueSize {
			break
		}
	}
	slices.SortFunc(found, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.sizeWithKey(), b.sizeWithKey()), bytes.Compare(a.key, b.key))
	})
	return found
}

// keep writes the value without its unread fields and without the parts that do not fit: it leaves out the largest members of an object and
// the last items of a list. A text is kept whole or not at all, so that no name becomes another one. keep subtracts what it wrote from
// left, and reports whether it wrote anything.
func (d *document) keep(item member, left *int, depth int, unread fields) bool {
	if len(unread) == 0 && item.size <= *left {
		*left -= item.size
		d.out.Write(d.text[item.at:item.end])
		return true
	}
	if *left -= valueSize; *left <= 0 || depth == maxDepth {
		return false
	}
	switch d.text[item.at] {
	case '{':
		d.keepMembers(d.smallest(item.at, unread), left, depth, unread, "")
		return true
	case '[':
		d.keepItems(item.at, left, depth)
		return true
	}
	return false
}

// keepMembers writes an object with the members that fit. With a mark it is the metadata of a Kubernetes object, and gets the mark as an
// annotation.
func (d *document) keepMembers(members []member, left *int, depth int, unread fields, mark string) {
	d.out.WriteByte('{')
	first := d.out.Len()
	for _, item := range members {
		if *left -= len(item.key) - 2; *left <= 0 {
			break
		}
		below, _ := item.below(unread)
		before := d.out.Len()
		d.separate(first)
		if mark != "" && string(item.key) == `"annotations"` && d.isObject(item.at) {
			d.writeMark(mark, d.smallest(item.at, below), left, depth+1)
			mark = ""
			continue
		}
		d.out.Write(item.key)
		d.out.WriteByte(':')
		if !d.keep(item, left, depth+1, below) {
			d.out.Truncate(before)
		}
	}
	if mark != "" {
		d.separate(first)
		d.writeMark(mark, nil, left, depth+1)
	}
	d.out.WriteByte('}')
}

// writeMark writes the field annotations with the mark and with those annotations that fit.
func (d *document) writeMark(mark string, annotations []member, left *int, depth int) {
	d.out.WriteString(`"annotations":`)
	d.keepMembers(annotations, left, depth, nil, "")
	d.out.Truncate(d.out.Len() - 1)
	if d.out.Bytes()[d.out.Len()-1] != '{' {
		d.out.WriteByte(',')
	}
	d.out.WriteString(`"` + ShortenedAnnotation + `":"` + mark + `"}`)
}

// keepItems writes a list with the items that fit.
func (d *document) keepItems(at int, left *int, depth int) {
	d.out.WriteByte('[')
	first := d.out.Len()
	for item := range d.items(at) {
		if *left <= 0 {
			break
		}
		before := d.out.Len()
		if d.separate(first); !d.keep(item, left, depth+1, nil) {
			d.out.Truncate(before)
		}
	}
	d.out.WriteByte(']')
}

// separate writes a comma if something was written since first.
func (d *document) separate(first int) {
	if d.out.Len() > first {
		d.out.WriteByte(',')
	}
}

// keepParts writes what fits of the Kubernetes object at the position: of metadata, spec, status and of all other fields together up to the
// limit each, so that none can displace another. It adds the mark.
func (d *document) keepParts(at, limit int, unread fields, mark string) {
	others := limit
	d.out.WriteByte('{')
	first := d.out.Len()
	for _, item := range d.smallest(at, unread) {
		below, _ := item.below(unread)
		own, left := limit, &others
		before := d.out.Len()
		d.separate(first)
		d.out.Write(item.key)
		d.out.WriteByte(':')
		switch string(item.key) {
		case `"metadata"`:
			d.keepMembers(d.smallest(item.at, below), &own, 0, below, mark)
			continue
		case `"spec"`, `"status"`:
			left = &own
		}
		if mark == tooLarge && left == &own || !d.keep(item, left, 0, below) {
			d.out.Truncate(before)
		}
	}
	d.out.WriteByte('}')
}

// keepBounded writes the Kubernetes object at the position: the whole object without its unread fields if it is small, and otherwise what
// an informer keeps of it.
func (d *document) keepBounded(at int, unread fields) {
	switch object := d.without(d.valueAt(at), unread); {
	case object.size <= MaxSize:
		left := MaxSize + 1
		d.keep(object, &left, 0, unread)
	case object.size <= MaxMemory:
		d.keepParts(at, maxPart, unread, shortened)
	default:
		d.keepParts(at, identityPart, unread, tooLarge)
	}
}
