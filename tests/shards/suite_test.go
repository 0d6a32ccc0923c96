// Package shards_test runs three stack-controllers that share the Stacks of one API server by their labels.
package shards_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// shardKey is the label by which Flux's controllers are sharded.
const shardKey = "sharding.fluxcd.io/key"

var (
	system    *stage.Stage
	artifacts *scene.Artifacts
	// commands is the directory of the CLI, which notes its calls in the file "calls", and waits while there is a file "held-STACK".
	commands string
	// controllers are those of the shards. The main one, of everything that has no label, is that of the stage.
	controllers = map[string]*supervise.Process{}
)

func TestMain(m *testing.M) {
	suite.LongPackage("three controllers share the Stacks of an API server")
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if commands, err = os.MkdirTemp("", "shards-"); err == nil {
		defer os.RemoveAll(commands)
		err = writeCLI(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	artifacts = scene.ServeArtifacts()
	defer artifacts.Close()
	suite := scene.Suite{
		Options: stage.Options{
			Pulumi: filepath.Join(commands, "pulumi"),
			ControllerArgs: []string{
				"--feature-gates=ExternalArtifact=true", "--watch-label-selector=!" + shardKey, "--requeue-dependency=1s",
			},
		},
		SetUp: func(ctx context.Context, on *stage.Stage) error {
			system = on
			for _, name := range []string{"one", "two"} {
				if err := startShard(ctx, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	return suite.Run(m)
}

func startShard(ctx context.Context, name string, flags ...string) (err error) {
	controllers[name], err = system.StartShard(ctx, name, shardKey+"="+name, flags...)
	return err
}

// writeCLI writes a script around the CLI.
func writeCLI(ctx context.Context) error {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return err
	}
	script := fmt.Sprintf(`#!/bin/sh
echo " $* " >> %[1]s/calls
case " $* " in *" up "*)
  for argument in "$@"; do
    if [ "$before" = --stack ]; then held=%[1]s/held-$argument; fi
    before=$argument
  done
  while [ -e "$held" ]; do touch "$held.now"; sleep 0.05; done;;
esac
exec %[2]s "$@"
`, commands, cli)
	return os.WriteFile(filepath.Join(commands, "pulumi"), []byte(script), 0o755)
}
