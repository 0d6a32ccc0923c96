package faults_test

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/tools"
)

var (
	nextMu     sync.Mutex
	nextBinary *stage.Binaries
)

// nextBuild returns another build of the product, with another version, which all worlds use.
func nextBuild(ctx context.Context) (stage.Binaries, error) {
	nextMu.Lock()
	defer nextMu.Unlock()
	if nextBinary != nil {
		return *nextBinary, nil
	}
	dir := filepath.Join(world.system.Dir, "next")
	next := stage.Binaries{Controller: filepath.Join(dir, "stack-controller"), Agent: filepath.Join(dir, "agent")}
	flags := []string{"-buildvcs=false", "-trimpath", "-ldflags=-X main.version=v99.0.0-next"}
	for path, pkg := range map[string]string{next.Controller: ".", next.Agent: "./cmd/agent"} {
		if err := tools.Compile(ctx, filepath.Base(path), tools.RepositoryRoot(), pkg, path, flags, nil); err != nil {
			return stage.Binaries{}, err
		}
	}
	nextBinary = &next
	return next, nil
}

// use has the command start other executables.
func (c *commandLine) use(binaries stage.Binaries) {
	c.args[0] = binaries.Controller
	c.setFlag(agentPathFlag, binaries.Agent)
}
