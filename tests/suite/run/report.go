package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/suite"
)

// slowest is how many tests the report lists.
const slowest = 20

// event is one line of "go test -json".
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// test is one of the tests of a package, or what runs around them when it has no name.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimPrefix(t.pkg, module) + " " + t.name }

// module is what the names of packages begin with.
const module = "github.com/stack-controller/stack-controller/"

// report is what the tests of all groups came to.
type report struct {
	to       io.Writer
	packages map[string]time.Duration
	tests    map[test]time.Duration // the last time that it ran
	runs     map[test][]bool        // for those that failed once: whether each run of it passed
	failures []string
}

func newReport(to io.Writer) *report {
	return &report{to: to, packages: map[string]time.Duration{}, tests: map[test]time.Duration{}, runs: map[test][]bool{}}
}

// read adds what gotestsum wrote about a group: all events of the first run, then those of the tests that were run again.
func (r *report) read(file string) error {
	content, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read what the tests reported: %w", err)
	}
	defer content.Close()
	failed := map[string]int{} // tests, by package, of the run that is read
	decoder := json.NewDecoder(bufio.NewReader(content))
	for {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what the tests reported in %s: %w", file, err)
		}
		of := test{e.Package, e.Test}
		elapsed := time.Duration(e.Elapsed * float64(time.Second))
		switch {
		case e.Test == "" && e.Action == "output":
			if problem, found := strings.CutPrefix(e.Output, suite.Problem); found {
				r.failures = append(r.failures, fmt.Sprintf("%s: %s", of, strings.TrimSpace(problem)))
			}
		case e.Test == "" && (e.Action == "pass" || e.Action == "fail"):
			r.packages[e.Package] += elapsed
			if e.Action == "fail" && failed[e.Package] == 0 {
				r.failures = append(r.failures, fmt.Sprintf("%s failed outside of its tests", of))
			}
			failed[e.Package] = 0
		case e.Action == "pass" || e.Action == "fail":
			r.tests[of] = elapsed
			if e.Action == "fail" {
				failed[e.Package]++
			}
			if _, again := r.runs[of]; again || e.Action == "fail" {
				r.runs[of] = append(r.runs[of], e.Action == "pass")
			}
		}
	}
}

// print writes the report, and the names of flaky tests into the file. The error says what failed.
func (r *report) print(flakyFile string) error {
	fmt.Fprintf(r.to, "\nThe slowest tests:\n")
	for _, t := range longest(r.tests)[:min(slowest, len(r.tests))] {
		fmt.Fprintf(r.to, "%8.1f s  %s\n", r.tests[t].Seconds(), t)
	}
	fmt.Fprintf(r.to, "\nThe packages:\n")
	for _, pkg := range longest(r.packages) {
		if r.packages[pkg] >= time.Second {
			fmt.Fprintf(r.to, "%8.1f s  %s\n", r.packages[pkg].Seconds(), strings.TrimPrefix(pkg, module))
		}
	}
	var flaky []string
	for t, runs := range r.runs {
		if runs[len(runs)-1] {
			flaky = append(flaky, fmt.Sprintf("flaky: %s failed %d of %d times", t, len(runs)-1, len(runs)))
		}
	}
	slices.Sort(flaky)
	text := strings.Join(append(flaky, ""), "\n")
	if err := os.WriteFile(flakyFile, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(r.to, "\n%s", text)
	if len(r.failures) > 0 {
		return errors.New(strings.Join(r.failures, "\n"))
	}
	return nil
}

// longest returns the keys, those with the longest durations first.
func longest[K comparable](durations map[K]time.Duration) []K {
	var keys []K
	for key := range durations {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b K) int {
		return cmp.Or(cmp.Compare(durations[b], durations[a]), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	return keys
}
