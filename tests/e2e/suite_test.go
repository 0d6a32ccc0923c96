// Package e2e_test runs stack-controller as users do, a process beside real servers, and looks at it from outside.
package e2e_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stack-controller/stack-controller/tests/canary"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
)

// What the tests make wrong on purpose is small.
const (
	maxArtifactSize = 1 << 20
	maxUnpackedSize = 4 << 20
	maxEntries      = 1000
)

// Secret values that the tests plant. Whatever the tests made stack-controller write must not contain them.
const (
	passphraseCanary = "passphrase-canary-7f3b"
	secretCanary     = "secret-canary-91ac"
)

var (
	system    *stage.Stage
	artifacts *scene.Artifacts
	pulumi    *gate
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		pulumi, err = newGate(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	artifacts = scene.ServeArtifacts()
	defer artifacts.Close()
	suite := scene.Suite{
		Options: stage.Options{Pulumi: pulumi.path(), ControllerArgs: []string{
			"--feature-gates=ExternalArtifact=true",
			fmt.Sprintf("--artifact-max-size=%d", maxArtifactSize),
			fmt.Sprintf("--artifact-max-unpacked-size=%d", maxUnpackedSize),
			fmt.Sprintf("--artifact-max-entries=%d", maxEntries),
			"--concurrent=8",
		}},
		SetUp: func(_ context.Context, on *stage.Stage) error {
			system = on
			return nil
		},
		Leaks: func(ctx context.Context, on *stage.Stage) ([]string, error) {
			return canary.Find(ctx, on, nil, passphraseCanary, secretCanary)
		},
	}
	return suite.Run(m)
}
