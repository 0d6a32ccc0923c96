package stage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Binaries are the paths of the product's executables.
type Binaries struct {
	Controller string
	Agent      string
}

// Build compiles the product into the repository's bin directory, as "make build" does. It takes seconds, less when
// nothing changed, and minutes when nothing was ever compiled; progress, when not nil, is then told how far it is.
func Build(ctx context.Context, progress func(string)) (Binaries, error) {
	root := tools.RepositoryRoot()
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("create %s: %w", bin, err)
	}
	// Test packages run at the same time.
	unlock, err := tools.Lock(ctx, filepath.Join(bin, ".lock"))
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()
	binaries := Binaries{Controller: filepath.Join(bin, "stack-controller"), Agent: filepath.Join(bin, "agent")}
	for path, pkg := range map[string]string{binaries.Controller: ".", binaries.Agent: "./cmd/agent"} {
		if err := tools.Compile(ctx, filepath.Base(path), root, pkg, path, []string{"-buildvcs=false", "-trimpath"}, progress); err != nil {
			return Binaries{}, err
		}
	}
	return binaries, nil
}
