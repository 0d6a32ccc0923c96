package cli

import (
	"bytes"
	"strings"
)

// Tail keeps the last bytes that are written to it. It must not be read while another goroutine writes to it.
type Tail struct {
	size  int
	bytes []byte
	cut   bool
}

// NewTail returns a Tail that keeps size bytes.
func NewTail(size int) *Tail {
	return &Tail{size: size}
}

func (t *Tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p[max(0, len(p)-t.size):]...)
	t.cut = t.cut || len(p) > t.size
	// The buffer has at most twice the size, so that bytes are moved only once for each size bytes written.
	if len(t.bytes) > 2*t.size {
		t.bytes = append(t.bytes[:0], t.bytes[len(t.bytes)-t.size:]...)
		t.cut = true
	}
	return len(p), nil
}

// String returns the end of what was written. When the beginning is missing it starts with a whole line, unless that
// would leave nothing.
func (t *Tail) String() string {
	kept := t.bytes[max(0, len(t.bytes)-t.size):]
	if t.cut || len(kept) < len(t.bytes) {
		if _, whole, ok := bytes.Cut(kept, []byte("\n")); ok && len(whole) > 0 {
			kept = whole
		}
	}
	return strings.ToValidUTF8(string(kept), "\uFFFD")
}

// LastLines returns the last lines of the text that are not empty, one below the other, with their indentation.
func LastLines(text string, count int) string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return strings.TrimSuffix(strings.Join(lines[max(0, len(lines)-count):], ""), "\n")
}

// LineWriter calls Line for each line that is written to it. It splits a line that is longer than maxLine. It is for one goroutine, which
// closes it after the last Write.
type LineWriter struct {
	Line    func(string)
	pending []byte
}

// maxLine bounds what a LineWriter buffers, in bytes.
const maxLine = 16 << 10

func (w *LineWriter) Write(p []byte) (int, error) {
	w.pending = append(w.pending, p...)
	for {
		line, rest, ok := bytes.Cut(w.pending, []byte("\n"))
		if !ok {
			break
		}
		w.emit(line)
		w.pending = rest
	}
	for len(w.pending) > maxLine {
		w.emit(w.pending[:maxLine])
		w.pending = w.pending[maxLine:]
	}
	w.pending = bytes.Clone(w.pending)
	return len(p), nil
}

// Close passes on a last line without a newline.
func (w *LineWriter) Close() error {
	w.emit(w.pending)
	w.pending = nil
	return nil
}

func (w *LineWriter) emit(line []byte) {
	if text := strings.TrimRight(strings.ToValidUTF8(string(line), "\uFFFD"), " \t\r"); text != "" {
		w.Line(text)
	}
}
