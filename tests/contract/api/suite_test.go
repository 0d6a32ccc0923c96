// Package api_test checks how the API server handles the API: which manifests it accepts and refuses, and what kubectl shows.
package api_test

import (
	"context"
	"os"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

var (
	cluster   *controlplane.ControlPlane
	apiServer client.Client
)

func TestMain(m *testing.M) {
	// setup installs the definitions, in the way that a user does it.
	os.Exit(suite.EachPass(func() int { return controlplane.RunTests(m, controlplane.Options{CRDs: []string{}}, setup) }))
}

// setup installs the product's definitions with client-side kubectl apply, and those of Flux's sources.
func setup(cp *controlplane.ControlPlane) error {
	ctx := context.Background()
	cluster = cp
	if _, err := cp.Kubectl(ctx, "apply", "-f", controlplane.ProductCRDs()); err != nil {
		return err
	}
	product, err := definitions()
	if err != nil {
		return err
	}
	if err := envtest.WaitForCRDs(cp.Config(), product, envtest.CRDInstallOptions{MaxTime: time.Minute, PollInterval: 50 * time.Millisecond}); err != nil {
		return err
	}
	sources, err := controlplane.SourceCRDs(ctx)
	if err != nil {
		return err
	}
	if err := cp.InstallCRDs(sources); err != nil {
		return err
	}
	apiServer, err = client.New(cp.Config(), client.Options{})
	return err
}
