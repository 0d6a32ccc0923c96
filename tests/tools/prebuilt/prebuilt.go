// Package prebuilt finds the programs that the demo runs without compiling them: programs of the user, and those that their makers built.
// What it downloads is pinned by digest in pins.txt, and nothing runs that was not verified. What cannot be had so is compiled, as package
// tools does.
//
// The tests compile everything, in exactly the versions of their modules. For the demo, a version is good enough that the controller works with.
package prebuilt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// WaysVariable is the environment variable that says in which ways a program may be had that is neither named by the user nor built before,
	// in their order, separated by commas. Without "download" no connection is made but those of the Go command.
	WaysVariable = "STACK_CONTROLLER_TOOLS"
	// MirrorVariable is the environment variable with an address, https://… or file:///…, that is put before the host and path of each address
	// of a download. Digests stay the same.
	MirrorVariable = "STACK_CONTROLLER_MIRROR"

	// The ways: a program on PATH, a download from its makers, a build from its Go module.
	onPath   = "path"
	download = "download"
	compile  = "compile"
)

// allWays is what WaysVariable is when it is not set.
const allWays = onPath + "," + download + "," + compile

// atOnce is how many files are downloaded at the same time.
const atOnce = 4

// Finder finds programs.
type Finder struct {
	pins    []*pin
	ways    []string
	fetcher *fetcher
	// progress is called with a line about what happens, from several goroutines.
	progress func(string)
	// compile builds a tool and returns its path.
	compile func(ctx context.Context, tool string) (string, error)
	// versionTimeout is how long a program on PATH may take to say its version.
	versionTimeout time.Duration
}

// New returns a Finder with the settings of the environment. pinFile has the pins; those of this package are used if it is empty. progress
// is called with lines about what happens, from several goroutines. compile builds a tool that cannot be had in another way.
func New(pinFile string, progress func(string), compile func(ctx context.Context, tool string) (string, error)) (*Finder, error) {
	text := makers
	if pinFile != "" {
		content, err := os.ReadFile(pinFile)
		if err != nil {
			return nil, fmt.Errorf("read the pins: %w", err)
		}
		text = string(content)
	}
	pins, err := parsePins(text)
	if err != nil {
		return nil, err
	}
	ways := strings.Split(cmp.Or(os.Getenv(WaysVariable), allWays), ",")
	for _, way := range ways {
		if !slices.Contains(strings.Split(allWays, ","), way) {
			return nil, fmt.Errorf("%s has %q; it may have %s", WaysVariable, way, allWays)
		}
	}
	fetcher, err := newFetcher(os.Getenv(MirrorVariable), defaultLimits)
	if err != nil {
		return nil, err
	}
	return &Finder{pins: pins, ways: ways, fetcher: fetcher, progress: progress, compile: compile, versionTimeout: tools.VersionTimeout}, nil
}

// Find returns the path of each of the tools, which package tools must know. A tool is had in the first way that works: the file that the
// user names, or an earlier build, as in tools.Path; an earlier download; and then the ways of WaysVariable.
func (f *Finder) Find(ctx context.Context, names []string) (paths map[string]string, err error) {
	paths = map[string]string{}
	var missing []string
	for _, name := range names {
		path, err := f.existing(ctx, name)
		if err != nil {
			return nil, err
		}
		if path == "" {
			missing = append(missing, name)
			continue
		}
		paths[name] = path
	}
	var problems []error
	for _, way := range f.ways {
		switch way {
		case onPath:
			f.searchPath(ctx, missing, paths)
		case download:
			problems = append(problems, f.downloadAll(ctx, missing, paths)...)
		case compile:
			for _, name := range missing {
				if paths[name], err = f.compile(ctx, name); err != nil {
					return nil, errors.Join(append(problems, err)...)
				}
			}
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return paths[name] != "" })
		if len(missing) == 0 {
			return paths, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.Join(append(problems, fmt.Errorf("%s cannot be had by %s", strings.Join(missing, ", "), strings.Join(f.ways, " or ")))...)
}

// existing returns the path of the tool if it is there already.
func (f *Finder) existing(ctx context.Context, name string) (path string, err error) {
	if path, err = tools.Existing(ctx, name, f.progress); path != "" || err != nil {
		return path, err
	}
	if p := find(f.pins, name); p != nil && slices.Contains(f.ways, download) {
		return p.downloaded(name)
	}
	return "", nil
}

// downloadAll downloads what it can of the tools, and adds their paths. Of the rest it returns why not.
func (f *Finder) downloadAll(ctx context.Context, names []string, paths map[string]string) (problems []error) {
	wanted := map[*pin][]string{}
	var pins []*pin
	for _, name := range names {
		p := find(f.pins, name)
		if p == nil {
			problems = append(problems, fmt.Errorf("no download of %s is known for this machine", name))
			continue
		}
		if wanted[p] == nil {
			pins = append(pins, p)
		}
		wanted[p] = append(wanted[p], name)
	}
	failures := make([]error, len(pins))
	group := &errgroup.Group{}
	group.SetLimit(atOnce)
	for i, p := range pins {
		group.Go(func() error {
			failures[i] = p.download(ctx, f.fetcher, f.progress)
			return nil
		})
	}
	_ = group.Wait() // it has no error
	for i, p := range pins {
		if failures[i] != nil {
			problems = append(problems, fmt.Errorf("%s: %w", p.title(), failures[i]))
			if ctx.Err() == nil {
				f.progress(fmt.Sprintf("%-40s %s", p.title(), failures[i]))
			}
			continue
		}
		for _, name := range wanted[p] {
			path, err := p.downloaded(name)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			paths[name] = path
		}
	}
	return problems
}
