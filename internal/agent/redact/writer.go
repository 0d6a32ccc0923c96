package redact

import (
	"bytes"
	"io"
)

// Writer redacts what is written to it and writes it to another writer. It finds a value no matter how the value is split between writes:
// it holds back the end of a write as long as that may be the beginning of a piece. It holds back at most maxPiece digits and the separators
// between them. A short value at the end is held back until it is known whether its word ends there.
//
// Close writes what is held back. It does not close the underlying writer.
//
// If the Redactor has too many values, the Writer writes Withheld on a line of its own once, and nothing after it.
type Writer struct {
	redactor *Redactor
	to       io.Writer

	// pending is what was not written yet, preceded by passed bytes that were: they show in which word pending begins.
	pending []byte
	passed  int
	masked  int
	// withheld is true once Withheld was written.
	withheld bool
}

// Writer returns a Writer that redacts to w.
func (r *Redactor) Writer(w io.Writer) *Writer {
	return &Writer{redactor: r, to: w}
}

// Write always consumes all of p unless the underlying writer fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.pending = append(w.pending, p...)
	if err := w.flush(false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes what is held back.
func (w *Writer) Close() error {
	return w.flush(true)
}

func (w *Writer) flush(final bool) error {
	var out bytes.Buffer
	w.redactor.mu.RLock()
	if w.redactor.withheld {
		w.redactor.mu.RUnlock()
		return w.withhold()
	}
	done, masked := w.redactor.known.index.scan(w.pending, w.passed, w.masked, final, &out)
	w.redactor.mu.RUnlock()
	w.masked, w.passed = masked, min(done, maxBefore)
	// Clone releases the memory of the beginning of a long write.
	w.pending = bytes.Clone(w.pending[done-w.passed:])
	if out.Len() == 0 {
		return nil
	}
	_, err := w.to.Write(out.Bytes())
	return err
}

func (w *Writer) withhold() error {
	text := len(w.pending) > w.passed
	w.pending, w.passed = nil, 0
	if w.withheld || !text {
		return nil
	}
	w.withheld = true
	_, err := io.WriteString(w.to, Withheld+"\n")
	return err
}
