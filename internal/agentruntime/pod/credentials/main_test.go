package credentials_test

import (
	"os"
	"testing"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// cluster is the API server that issues the tokens of these tests.
var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{CRDs: []string{}}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}
