package cli_test

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"
)

// buffer is written to while it is read.
type buffer struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (b *buffer) Write(content []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(content)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}

// follow runs a command that goes on until the context ends, and returns its exit code.
func follow(ctx context.Context, out io.Writer, args ...string) int {
	return on(ctx, out, out, time.Now(), nil, args...)
}
