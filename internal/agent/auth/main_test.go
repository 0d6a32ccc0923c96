package auth

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// cluster is the API server that the agents of these tests ask.
var cluster *controlplane.ControlPlane

func TestMain(m *testing.M) {
	// Fuzzing needs no API server, and each of its workers would start one.
	if slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz") && !strings.HasPrefix(arg, "-test.fuzzcachedir")
	}) {
		os.Exit(m.Run())
	}
	os.Exit(controlplane.RunTests(m, controlplane.Options{CRDs: []string{}}, func(cp *controlplane.ControlPlane) error {
		cluster = cp
		return nil
	}))
}
