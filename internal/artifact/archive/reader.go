package archive

import (
	"context"
	"io"
)

// sourceReader reads until its context ends, and remembers a failure that is not the fault of what is read.
type sourceReader struct {
	ctx     context.Context
	source  io.Reader
	failure error
}

func (r *sourceReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		r.failure = err
		return 0, err
	}
	n, err := r.source.Read(p)
	if err != nil && err != io.EOF {
		r.failure = err
	}
	return n, err
}

// boundedReader fails when its source has more than the remaining bytes.
type boundedReader struct {
	source    io.Reader
	remaining int64
	exceeded  error
}

func (r *boundedReader) Read(p []byte) (int, error) {
	// One byte more than remains, to tell a source that ends exactly at the limit from one that goes on.
	if int64(len(p))-1 > r.remaining {
		p = p[:r.remaining+1]
	}
	n, err := r.source.Read(p)
	if int64(n) > r.remaining {
		return int(r.remaining), r.exceeded
	}
	r.remaining -= int64(n)
	return n, err
}
