package operation

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/file"
)

// always are variables that every process has, see baseEnvironment.
var always = append(slices.Collect(maps.Keys(switches)), "HOME", "PATH", "PULUMI_HOME", "TMPDIR", "USER", nodeCache)

// maxVariableNames bounds the names that are remembered, in bytes.
const maxVariableNames = 1 << 20

// dropRemoved removes the variables that an earlier operation had and this one does not have any longer. A container keeps the keys that a Secret
// had when it started, and so does what it starts; the requests have those that the Secret has now. Only names are remembered.
func (r *Runner) dropRemoved(env, user cli.Environment) {
	if !r.options.ExclusiveHost {
		return // the variables of a process do not come from Secrets
	}
	path, known := filepath.Join(r.options.Home, ".automation", "variables"), map[string]bool{}
	if content, err := file.Read(path, maxVariableNames); err == nil {
		for name := range strings.Lines(string(content)) {
			known[strings.TrimSuffix(name, "\n")] = true
		}
	}
	before := len(known)
	for name := range user {
		known[name] = true
	}
	if names := strings.Join(slices.Sorted(maps.Keys(known)), "\n") + "\n"; len(known) > before && len(names) <= maxVariableNames {
		if err := file.Write(path, []byte(names)); err != nil {
			r.log.Info("the names of the variables are not remembered", "error", err.Error())
		}
	}
	for name := range known {
		if _, has := user[name]; !has && !slices.Contains(always, name) {
			delete(env, name)
		}
	}
}
