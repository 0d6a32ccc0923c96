// Package compatibility_test holds the promise that manifests written for the Pulumi Kubernetes Operator work as they are:
// for each field of its API a test that uses it and one that misuses it, on real servers, and the table that lists them.
package compatibility_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// patience bounds every wait. What is waited for takes a few seconds, in the company of many others.
	patience = 60 * time.Second
	// pollInterval is how often a test looks.
	pollInterval = 200 * time.Millisecond
	// logLines is how much of stack-controller's log a failed run shows.
	logLines = 100
	// gitPassword is that of private repositories.
	gitPassword = "canary-of-the-git-server"
	// parallel is how many tests run at the same time. They wait most of the time.
	parallel = 12
)

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
	ctrl.SetLogger(logr.Discard())
	log.SetOutput(io.Discard) // the git server tells every request
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *updateDocs {
		os.Exit(m.Run()) // without servers
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "compatibility-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := setUp(ctx, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if system != nil {
		defer func() {
			if code != 0 {
				fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
			}
			if err := system.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
	}
	if host != nil {
		defer host.stop()
	}
	if code != 0 {
		return code
	}
	code = m.Run()
	if leaks, err := findCanaries(ctx); err != nil || len(leaks) > 0 {
		fmt.Fprintln(os.Stderr, "secrets were written to:", leaks, err)
		return 1
	}
	return code
}

func setUp(ctx context.Context, dir string) (err error) {
	if pulumi, err = newRecorder(ctx, dir); err != nil {
		return err
	}
	system, err = stage.Start(ctx, stage.Options{Log: os.Stderr, Pulumi: pulumi.path(), ControllerArgs: []string{
		"--concurrent=8",
		"--requeue-dependency=5s",
		"--workspace-idle-timeout=15s", // so that memory is enough for all
	}})
	if err != nil {
		return err
	}
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
