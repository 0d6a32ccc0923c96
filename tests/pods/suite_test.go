// Package pods_test has the tests of the whole system on a real cluster, where every workspace is a pod of its own.
package pods_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/podstage"
)

// patience bounds what a test waits for: a pod starts within seconds, on a busy machine within a minute.
const patience = 5 * time.Minute

// system is the running system that all tests of the package share. Each test has namespaces of its own.
var system *podstage.Stage

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	// They wait for pods most of the time.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(podstage.RunTests(runner{m}, podstage.Options{WithNotificationController: true}, func(s *podstage.Stage) { system = s }))
}
