package app

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// actAsController is an environment variable that makes the test binary run as the controller.
const actAsController = "STACK_CONTROLLER_TEST_RUN"

// startCluster starts the control plane when the first test needs it.
var startCluster = sync.OnceValues(func() (*controlplane.ControlPlane, error) {
	return controlplane.Start(context.Background(), controlplane.Options{Log: os.Stderr})
})

var clusterWanted atomic.Bool

func TestMain(m *testing.M) {
	if os.Getenv(actAsController) != "" {
		os.Exit(Main(ctrl.SetupSignalHandler(), "dev", os.Args[1:], os.Stdout, os.Stderr))
	}
	code := m.Run()
	if clusterWanted.Load() {
		if cluster, err := startCluster(); err == nil {
			if err := cluster.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// cluster returns the control plane that the tests of this package share.
func cluster(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	clusterWanted.Store(true)
	started, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	return started
}
