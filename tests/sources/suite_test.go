// Package sources_test runs stack-controller with every kind of Flux source, published by source-controller from a real OCI
// registry and a real object store, or by a producer of its own.
package sources_test

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
	"github.com/stack-controller/stack-controller/tests/ociregistry"
	"github.com/stack-controller/stack-controller/tests/stage"
)

const (
	// patience bounds every wait; what is waited for takes a few seconds.
	patience = 60 * time.Second
	// logLines is how much of stack-controller's log a failed run shows.
	logLines = 100
	// passphraseCanary is the passphrase of every Stack. Nothing that stack-controller writes may contain it.
	passphraseCanary = "passphrase-canary-5d0e"
)

var (
	system   *stage.Stage
	registry *ociregistry.Registry
	store    *objectstore.Store
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
	leaks, err := canary.Find(ctx, system, []string{"minio", "crane"}, passphraseCanary, store.SecretKey)
	if err != nil || len(leaks) > 0 {
		fmt.Fprintln(os.Stderr, "secrets were written to:", leaks, err)
		return 1
	}
	return code
}

func startServers(ctx context.Context) (err error) {
	var registryErr, storeErr error
	registry, registryErr = ociregistry.Start(ctx, system.ControlPlane)
	store, storeErr = objectstore.Start(ctx, system.ControlPlane)
	return errors.Join(registryErr, storeErr)
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
