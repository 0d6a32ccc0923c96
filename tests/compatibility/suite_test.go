// Package compatibility_test holds the promise that manifests written for the Pulumi Kubernetes Operator work as they are:
// for each field of its API a test that uses it and one that misuses it, on real servers, and the table that lists them.
package compatibility_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// gitPassword is that of private repositories.
const gitPassword = "canary-of-the-git-server"

var (
	system *stage.Stage
	pulumi *recorder
	// host shows the repositories of the stage's git server to those who may see them.
	host *gitHost
	// programsCommit is the commit of the repository acmecorp/programs, privateCommit that of acmecorp/private. Both have the
	// directories of testdata/programs.
	programsCommit, privateCommit string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *updateDocs {
		os.Exit(m.Run()) // without servers
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "compatibility-")
	if err == nil {
		defer os.RemoveAll(dir)
		pulumi, err = newRecorder(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if host != nil {
			host.stop()
		}
	}()
	suite := scene.Suite{
		AtOnce: 3, // more of them only wait for each other
		Options: stage.Options{Pulumi: pulumi.path(), ControllerArgs: []string{
			"--concurrent=8",
			"--requeue-dependency=5s",
			"--workspace-idle-timeout=15s", // so that memory is enough for all
		}},
		SetUp: func(_ context.Context, on *stage.Stage) error {
			system = on
			return setUp(dir)
		},
		Leaks: func(ctx context.Context, _ *stage.Stage) ([]string, error) { return findCanaries(ctx) },
	}
	return suite.Run(m)
}

func setUp(dir string) error {
	files, err := gitserver.FilesFromDir("testdata/programs")
	if err != nil {
		return err
	}
	if _, programsCommit, err = system.Git.Create("acmecorp/programs", files); err != nil {
		return err
	}
	if _, _, err = system.Git.Create("acmecorp/flat", gitserver.Files{"Pulumi.yaml": "name: flat\nruntime: yaml\n"}); err != nil {
		return err
	}
	if _, privateCommit, err = system.Git.Create("acmecorp/private", files); err != nil {
		return err
	}
	if host, err = newGitHost(dir, strings.TrimSuffix(system.Git.URL(""), "/"), filepath.Join(system.Dir, "git")); err != nil {
		return err
	}
	host.protect("acmecorp/private", gitPassword)
	return nil
}
