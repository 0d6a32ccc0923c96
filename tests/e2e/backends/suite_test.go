// Package backends_test runs stack-controller with real state backends and a real key management service, and checks the messages of a
// Stack when a backend refuses it or is not reachable.
package backends_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/canary"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/postgres"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/framework/vault"
)

// patience bounds every wait. A failed update is retried after ten seconds, then after thirty.
const patience = 90 * time.Second

// Secret values in addition to the servers' own passwords. Nothing that stack-controller writes may contain them.
const (
	configCanary     = "config-canary-3c77"
	credentialCanary = "credential-canary-b01f"
)

var (
	system   *localsystem.System
	store    *objectstore.Store
	database *postgres.Server
	keys     *vault.Server
	// vaultToken permits encryption and decryption with the key "pulumi".
	vaultToken string
)

func TestMain(m *testing.M) {
	suite.LongPackage("each kind of state backend, on its own server")
	shared := systemtest.Suite{
		Options: localsystem.Options{ControllerArgs: []string{"--concurrent=8"}},
		SetUp: func(ctx context.Context, on *localsystem.System) error {
			system = on
			return startServers(ctx)
		},
		Leaks: func(ctx context.Context, on *localsystem.System) ([]string, error) {
			return canary.Find(ctx, on, []string{"minio", "vault"},
				configCanary, credentialCanary, store.SecretKey, database.Password, vaultToken)
		},
	}
	os.Exit(shared.Run(m))
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
