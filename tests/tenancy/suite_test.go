// Package tenancy_test attacks the running system as a tenant: with the rights of a namespace's administrator, Flux's edit role and
// nothing else. Another tenant, who shares the cluster and the controller, must not notice.
//
// What is promised, and which attack stands for which promise, is in docs/security.md, which tests/security makes from the tables of
// attacks here.
package tenancy_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/podstage"
	"github.com/stack-controller/stack-controller/tests/suite"
)

const (
	// patience bounds what a test waits for on a machine that is busy with all attacks at once.
	patience = 3 * time.Minute
	// pollInterval is how often a test looks.
	pollInterval = 200 * time.Millisecond
	// atOnce is how many attacks go on at the same time. They wait most of the time.
	atOnce = "10"
)

// manyStacks is how many Stacks one of the attacks creates.
var manyStacks = flag.Int("stacks", 1000, "how many Stacks the tenant creates who has too many")

// system is the running system.
var system *podstage.Stage

func TestMain(m *testing.M) {
	suite.LongPackage("attacks in pods")
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	options := podstage.Options{
		// On, so that what it opens is attacked as well.
		ControllerArgs: []string{"--feature-gates=ExternalArtifact=true"},
	}
	os.Exit(podstage.RunTests(m, options, func(s *podstage.Stage) { system = s }))
}
