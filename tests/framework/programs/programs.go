// Package programs builds the programs of this repository that tests run: the product and the programs that only tests use. "make test"
// builds all of them once, before the tests. A test that runs alone builds the programs that it needs.
package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Names of programs.
const (
	Controller  = "stack-controller"
	Agent       = "agent"
	CommandLine = "flux-pulumi"
	// StubAgent stands in for the agent. Its flags control what it does.
	StubAgent = "stub-agent"
	// LanguageHost runs programs in a language of the tests.
	LanguageHost = "pulumi-language-outputs"
	// PolicyPack has a policy that resources can violate.
	PolicyPack = "policypack"
	// Provider has resources whose operations take time or fail, as a program demands.
	Provider = "pulumi-resource-test"
)

// packages has the package of each program, relative to the root of the repository.
var packages = map[string]string{
	Controller: ".", Agent: "./cmd/agent", CommandLine: "./cmd/flux-pulumi", StubAgent: "./tests/framework/stubagent", LanguageHost: "./tests/framework/languagehost", PolicyPack: "./tests/framework/policypack", Provider: "./tests/framework/provider",
}

// variable is the environment variable with the directory of all programs.
const variable = "STACK_CONTROLLER_TEST_PROGRAMS"

// BuildAll builds all programs into the directory and returns the environment variable by which Path finds them.
func BuildAll(ctx context.Context, dir string) (environment string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the directory of the programs: %w", err)
	}
	for name := range packages {
		if err := build(ctx, dir, name, nil); err != nil {
			return "", err
		}
	}
	return variable + "=" + dir, nil
}

// Path returns the path of a program. Unless BuildAll built all programs before, Path builds it into the repository's directory bin, as
// "make build" does: this takes a second if nothing changed, and minutes if nothing was ever compiled. If progress is not nil, it is called
// with messages about the build.
func Path(ctx context.Context, name string, progress func(string)) (string, error) {
	if dir := os.Getenv(variable); dir != "" {
		return filepath.Join(dir, name), nil
	}
	bin := filepath.Join(tools.RepositoryRoot(), "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("create %s: %w", bin, err)
	}
	// Test packages run at the same time, so a build needs a lock.
	unlock, err := tools.Lock(ctx, filepath.Join(bin, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := build(ctx, bin, name, progress); err != nil {
		return "", err
	}
	return filepath.Join(bin, name), nil
}

func build(ctx context.Context, dir, name string, progress func(string)) error {
	pkg, known := packages[name]
	if !known {
		return fmt.Errorf("unknown program %q", name)
	}
	// Without -trimpath, what is compiled for these programs is shared with the tests and with the demo.
	flags := []string{"-buildvcs=false", "-ldflags=-s -w"}
	return tools.Compile(ctx, name, tools.RepositoryRoot(), pkg, filepath.Join(dir, name), flags, progress)
}

// Put puts a copy of the program, or a hard link to it, at the path, and replaces what was there.
func Put(ctx context.Context, name, path string) error {
	built, err := Path(ctx, name, nil)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".put-")
	if err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	defer os.RemoveAll(dir)
	staged := filepath.Join(dir, name)
	if os.Link(built, staged) != nil { // the paths are on different file systems
		err = copyProgram(built, staged)
	}
	if err == nil {
		err = os.Rename(staged, path)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	return nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// PutProvider puts the test provider where the CLI with this PULUMI_HOME finds it, and returns the path.
func PutProvider(ctx context.Context, pulumiHome string) (path string, err error) {
	path = filepath.Join(pulumiHome, "plugins", "resource-test-v0.1.0", Provider)
	return path, Put(ctx, Provider, path)
}
