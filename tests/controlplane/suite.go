package controlplane

import (
	"context"
	"fmt"
	"github.com/stack-controller/stack-controller/tests/suite"
	"os"
)

// RunTests is the body of a package's TestMain: it starts a control plane, hands it to setup, runs the tests, stops the
// control plane and returns the exit code. m is the *testing.M; logs of a failed start go to standard error.
//
//	var cluster *controlplane.ControlPlane
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.RunTests(m, controlplane.Options{}, func(cp *controlplane.ControlPlane) error {
//			cluster = cp
//			return nil
//		}))
//	}
func RunTests(m interface{ Run() int }, options Options, setup func(*ControlPlane) error) (code int) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	cp, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := cp.Stop(); err != nil {
			code = suite.Failed(err)
		}
	}()
	if err := setup(cp); err != nil {
		fmt.Fprintln(os.Stderr, "set up the tests:", err)
		return 1
	}
	return m.Run()
}
