// Package suite divides the tests into two suites. The short one, "make test", proves each promise once, within minutes; the long one,
// "make test-all", runs everything: further cases, what needs pods and nodes, guides as they are written, and random faults.
//
// A test says itself that it is long, by calling Long or, for all tests of a package, LongPackage. "go test -short"
// leaves it out.
package suite

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Long leaves the test out of the short suite. why says what makes it long, or which test of the short suite proves the same promise.
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

// WithoutRaceDetector leaves the test out under the race detector: it has one goroutine and takes many times as long there, or it measures
// memory, which the detector needs much of. Both suites run such tests in a group without the detector, which finds them by this call.
func WithoutRaceDetector(t testing.TB) {
	t.Helper()
	if RaceDetector {
		t.Skip("only without the race detector")
	}
}

// Short reports whether the short suite runs, also before the testing package has parsed its flags: for TestMain.
func Short() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	return testing.Short()
}

func skipped(why string) string { return "only in the long suite: " + why }

// Problem is what a line begins with that says what is wrong around the tests of a package.
const Problem = "not excused: "

// Failed says what a TestMain found wrong, such as a secret in a log, and returns the exit code. Unlike a test that failed, it is wrong even
// when all is well the next time.
func Failed(err error) (code int) {
	fmt.Println(Problem + strings.ReplaceAll(err.Error(), "\n", " "))
	return 1
}

// EachPass calls run as often as -count says. run starts the servers of a package, runs its tests once and stops the servers: what one
// pass creates on them, such as a namespace, would be in the way of the next.
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
