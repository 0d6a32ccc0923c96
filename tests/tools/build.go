package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// heartbeat is how often a running build reports its progress.
	heartbeat = 20 * time.Second
	// lockPoll is how often this process tries to take a lock that another process holds.
	lockPoll = 100 * time.Millisecond
	// failureTail is how many bytes of a failed build's output its error shows.
	failureTail = 4096
)

// build compiles the tool, unless another process has done so while this process waited for the lock.
func build(ctx context.Context, name string, t tool, target string, progress func(string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("create the cache of %s: %w", name, err)
	}
	unlock, err := Lock(ctx, target+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	start := time.Now()
	progress(fmt.Sprintf("building %s (once for this machine)", name))
	ldflags, err := linkerFlags(t)
	if err != nil {
		return err
	}
	flags := []string{"-trimpath", "-tags", t.tags, "-ldflags", strings.TrimSpace("-s -w " + ldflags)}
	module := filepath.Join(sourceDir(), t.module)
	if t.lacking != "" || len(t.embedded) > 0 {
		staging, err := os.MkdirTemp("", "stack-controller-"+name+"-")
		if err != nil {
			return fmt.Errorf("create the directory for the source of %s: %w", name, err)
		}
		defer os.RemoveAll(staging)
		prepare := complete
		if len(t.embedded) > 0 {
			prepare = overlay
		}
		flag, err := prepare(ctx, module, t, staging)
		if err != nil {
			return fmt.Errorf("complete the source of %s: %w", name, err)
		}
		flags = append(flags, flag)
	}
	if err := Compile(ctx, name, module, t.pkg, target+".new", flags, progress); err != nil {
		return err
	}
	if err := os.Rename(target+".new", target); err != nil {
		return fmt.Errorf("install %s: %w", name, err)
	}
	progress(fmt.Sprintf("built %s in %s", name, time.Since(start).Round(time.Second)))
	return nil
}

// complete copies the upstream module into the staging directory and adds the missing file. It returns the flag of a build that uses the
// copy: Go does not accept an overlay for files of the module cache.
func complete(ctx context.Context, module string, t tool, staging string) (flag string, err error) {
	upstream, err := download(ctx, module, t)
	if err != nil {
		return "", err
	}
	source := filepath.Join(staging, "source")
	if err := os.CopyFS(source, os.DirFS(upstream)); err != nil {
		return "", fmt.Errorf("copy the module %s: %w", t.upstream, err)
	}
	lacking := filepath.Join(source, filepath.FromSlash(t.lacking))
	if err := os.MkdirAll(filepath.Dir(lacking), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(lacking, nil, 0o600); err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		if name == "go.mod" {
			content = fmt.Appendf(content, "\nreplace %s => %s\n", t.upstream, source)
		}
		if err := os.WriteFile(filepath.Join(staging, name), content, 0o600); err != nil {
			return "", err
		}
	}
	return "-modfile=" + filepath.Join(staging, "go.mod"), nil
}

// overlay returns the flag of a build in which the embedded files of upstream are beside our main package.
func overlay(ctx context.Context, module string, t tool, staging string) (flag string, err error) {
	upstream, err := download(ctx, module, t)
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	for _, file := range t.embedded {
		replaced[filepath.Join(module, path.Base(file))] = filepath.Join(upstream, filepath.FromSlash(file))
	}
	content, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(staging, "overlay.json")
	return "-overlay=" + file, os.WriteFile(file, content, 0o600)
}

// download returns the directory of the upstream module.
func download(ctx context.Context, module string, t tool) (dir string, err error) {
	list := exec.CommandContext(ctx, "go", "mod", "download", "-json", t.upstream)
	list.Dir = module
	list.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	output, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w\n%s", t.upstream, err, output)
	}
	var found struct{ Dir string }
	if err := json.Unmarshal(output, &found); err != nil {
		return "", fmt.Errorf("read where the module %s is: %w", t.upstream, err)
	}
	return found.Dir, nil
}

// Compile runs go build without cgo, in the directory, for the package. If progress is not nil, it is called every now and then with the
// number of packages compiled so far; name is the name of the program in these messages.
func Compile(ctx context.Context, name, dir, pkg, path string, flags []string, progress func(string)) error {
	// -v names each package as it is compiled.
	args := append([]string{"build", "-v", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	output := &buildOutput{}
	cmd.Stdout, cmd.Stderr = output, output
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", name, err, output.tail())
			}
			return nil
		case <-ticker.C:
			if progress == nil {
				continue
			}
			progress(fmt.Sprintf("  %s: %s, %s", name, output.summary(), time.Since(start).Round(time.Second)))
		}
	}
}

// buildOutput collects the output of go build: a line per downloaded module and per compiled package.
type buildOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buildOutput) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buildOutput) summary() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	downloads := bytes.Count(b.text.Bytes(), []byte("go: downloading "))
	packages := bytes.Count(b.text.Bytes(), []byte("\n")) - downloads
	if packages == 0 {
		return fmt.Sprintf("%d modules downloaded", downloads)
	}
	return fmt.Sprintf("%d packages compiled", packages)
}

func (b *buildOutput) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.text.Bytes()
	return string(text[max(0, len(text)-failureTail):])
}

// Lock takes an exclusive advisory lock on the file, which it creates if necessary. It waits for the lock until the context ends. The lock
// is released at the latest when the process ends.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock %s: %w", path, err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = file.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("take the lock %s: %w", path, err), file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the lock %s: %w", path, context.Cause(ctx)), file.Close())
		case <-time.After(lockPoll):
		}
	}
}
