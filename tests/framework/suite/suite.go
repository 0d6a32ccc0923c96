// Package suite divides the tests into two suites. The short one, "make test", proves each promise once, within minutes. The long one,
// "make test-all", runs everything: further cases, tests that need pods and nodes, the commands of the guides, and random faults.
//
// A long test declares itself as long: it calls Long or, for all tests of a package, LongPackage. "go test -short" leaves these tests out.
package suite

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// KubernetesVariable is the environment variable with the version of Kubernetes that the tests run with, if it is not the newest one.
const KubernetesVariable = "STACK_CONTROLLER_TEST_KUBERNETES"

// Long leaves the test out of the short suite. why is what makes the test long, or the test of the short suite that proves the same
// promise.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip(skipped(why))
	}
}

// LongPackage ends the test binary at once in the short suite. TestMain calls it before it starts a server.
func LongPackage(why string) {
	if Short() {
		fmt.Println(skipped(why))
		os.Exit(0)
	}
}

// WithoutRaceDetector leaves the test out under the race detector, because it has one goroutine and takes many times as long there, or
// because it measures memory, of which the detector needs a lot. Both suites run such tests in a group without the detector, which finds
// them by this call.
func WithoutRaceDetector(t testing.TB) {
	t.Helper()
	if RaceDetector {
		t.Skip("only without the race detector")
	}
}

// Short reports whether the short suite runs. TestMain can call it before the testing package has parsed its flags.
func Short() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	return testing.Short()
}

func skipped(why string) string { return "only in the long suite: " + why }

// Problem is the prefix of a line that reports a problem outside of the tests of a package.
const Problem = "not excused: "

// Failed prints a problem that a TestMain found, such as a secret in a log, and returns the exit code. Unlike a failed test, such a problem
// is not excused if the test passes the next time.
func Failed(err error) (code int) {
	fmt.Println(Problem + strings.ReplaceAll(err.Error(), "\n", " "))
	return 1
}

// EachPass calls run as often as -count says. run starts the servers of a package, runs its tests once and stops the servers. Each pass
// needs new servers, because objects of an earlier pass, such as a namespace, would be in the way.
func EachPass(run func() (code int)) (code int) {
	if !flag.Parsed() {
		flag.Parse()
	}
	count := flag.Lookup("test.count")
	passes, err := strconv.Atoi(count.Value.String())
	if err == nil {
		err = count.Value.Set("1")
	}
	if err != nil {
		return Failed(err)
	}
	for range passes {
		code = max(code, run())
	}
	return code
}
