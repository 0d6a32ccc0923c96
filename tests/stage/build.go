package stage

import (
	"context"

	"github.com/stack-controller/stack-controller/tests/programs"
)

// Binaries are the paths of the product's executables.
type Binaries struct {
	Controller string
	Agent      string
}

// Build returns the product's executables, and compiles them when that was not done for this run.
func Build(ctx context.Context, progress func(string)) (b Binaries, err error) {
	if b.Controller, err = programs.Path(ctx, programs.Controller, progress); err == nil {
		b.Agent, err = programs.Path(ctx, programs.Agent, progress)
	}
	return b, err
}
