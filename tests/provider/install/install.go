// Package install puts the test provider where the pulumi CLI finds it.
package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/stack-controller/stack-controller/tests/tools"
)

const binary = "pulumi-resource-test"

// Install puts the provider into the PULUMI_HOME directory. It is built once per version of its source, into the cache of
// the tools, which takes some seconds.
func Install(ctx context.Context, pulumiHome string) error {
	built, err := build(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(pulumiHome, "plugins", "resource-test-v0.1.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the test provider: %w", err)
	}
	target := filepath.Join(dir, binary)
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if os.Link(built, target) == nil {
		return nil
	}
	return copyProgram(built, target)
}

// build returns the path of the provider, which it builds when it is not in the cache.
func build(ctx context.Context) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	source := filepath.Dir(filepath.Dir(file))
	digest, err := digestOf(source)
	if err != nil {
		return "", err
	}
	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "provider", digest, binary)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of the test provider: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open the build lock: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("take the build lock: %w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path+".new", ".")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test provider: %w\n%s", err, output)
	}
	return path, os.Rename(path+".new", path)
}

// digestOf is over everything that determines the program.
func digestOf(source string) (string, error) {
	files, err := filepath.Glob(filepath.Join(source, "*.*"))
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprint(hash, runtime.Version(), runtime.GOARCH)
	for _, file := range append(files, filepath.Join(source, "..", "..", "go.mod")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the source of the test provider: %w", err)
		}
		fmt.Fprint(hash, filepath.Base(file), len(content))
		hash.Write(content)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

func copyProgram(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("install the test provider: %w", err)
	}
	defer source.Close()
	target, err := os.OpenFile(to+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("install the test provider: %w", err)
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Close()); err != nil {
		return fmt.Errorf("install the test provider: %w", err)
	}
	return os.Rename(to+".new", to)
}
