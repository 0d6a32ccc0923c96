// Package backends_test runs stack-controller with real state backends and a real key management service, and shows what a
// Stack says when a backend refuses it or is away.
package backends_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/canary"
	"github.com/stack-controller/stack-controller/tests/controlplane"
	"github.com/stack-controller/stack-controller/tests/objectstore"
	"github.com/stack-controller/stack-controller/tests/postgres"
	"github.com/stack-controller/stack-controller/tests/stage"
	"github.com/stack-controller/stack-controller/tests/vault"
)

const (
	// patience bounds every wait. A failed update is tried again after ten seconds, then after thirty.
	patience = 90 * time.Second
	// logLines is how much of stack-controller's log a failed run shows.
	logLines = 150
)

// Secret values besides the servers' own passwords. Nothing that stack-controller writes may contain them.
const (
	configCanary     = "config-canary-3c77"
	credentialCanary = "credential-canary-b01f"
)

var (
	system   *stage.Stage
	store    *objectstore.Store
	database *postgres.Server
	keys     *vault.Server
	// vaultToken lets one encrypt and decrypt with the key "pulumi".
	vaultToken string
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx := context.Background()
	var err error
	if system, err = stage.Start(ctx, stage.Options{Log: os.Stderr, ControllerArgs: []string{"--concurrent=8"}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if code != 0 {
			fmt.Fprintln(os.Stderr, controlplane.Tail(system.ControllerLog(), logLines))
		}
		if err := system.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	if err := startServers(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code = m.Run()
	leaks, err := canary.Find(ctx, system, []string{"minio", "vault"},
		configCanary, credentialCanary, store.SecretKey, database.Password, vaultToken)
	if err != nil || len(leaks) > 0 {
		fmt.Fprintln(os.Stderr, "secrets were written to:", leaks, err)
		return 1
	}
	return code
}

func startServers(ctx context.Context) (err error) {
	store, err = objectstore.Start(ctx, system.ControlPlane)
	if err != nil {
		return err
	}
	if database, err = postgres.Start(ctx, system.ControlPlane); errors.Is(err, postgres.ErrMissing) && os.Getenv("CI_RUN") == "" {
		fmt.Fprintln(os.Stderr, err)
	} else if err != nil {
		return err
	}
	if keys, err = vault.Start(ctx, system.ControlPlane); err != nil {
		return err
	}
	vaultToken, err = keys.CreateKey(ctx, "pulumi")
	return err
}

// within is a context for what takes seconds.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// succeed fails the test on an error.
func succeed(t *testing.T, err error) {
	t.Helper()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}
