package compatibility_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// recorder is the real pulumi CLI behind a script that notes each call with its arguments, its environment and its
// configuration, in a file for each workspace. It brings the test provider along.
type recorder struct {
	dir string
}

func newRecorder(ctx context.Context, dir string) (*recorder, error) {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "home")
	if _, err := programs.PutProvider(ctx, home); err != nil {
		return nil, err
	}
	r := &recorder{dir: dir}
	script := fmt.Sprintf(`#!/bin/sh
if [ ! -e "$PULUMI_HOME/plugins" ]; then cp -rl %[3]s "$PULUMI_HOME/" || cp -r %[3]s "$PULUMI_HOME/"; fi
workspace=${PWD#*/workspaces/}
{
  echo "pulumi $*"
  env
  previous=
  for argument; do
    if [ "$previous" = --config-file ]; then cat "$argument"; fi
    case "$argument" in --config-file=*) cat "${argument#*=}";; esac
    previous=$argument
  done
} >> %[1]s/"${workspace%%%%/*}" 2> /dev/null
# No process lives long enough to need its memory back.
GOGC=off GOMEMLIMIT=300MiB exec %[2]s "$@"
`, dir, cli, filepath.Join(home, "plugins"))
	return r, os.WriteFile(r.path(), []byte(script), 0o755)
}

func (r *recorder) path() string { return filepath.Join(r.dir, "pulumi") }

// of returns what was noted for the Stack; nothing when pulumi never ran for it.
func (r *recorder) of(s *play, stack *pulumiv1.Stack) string {
	content, err := os.ReadFile(filepath.Join(r.dir, filepath.Base(s.Directory(stack.Name))))
	if err != nil {
		return ""
	}
	return string(content)
}
