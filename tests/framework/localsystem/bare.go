package localsystem

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// Bare runs the pulumi CLI by hand, with its own program and its own state. Measurements compare stack-controller with it.
type Bare struct {
	program string // its directory
	pulumi  string
	env     []string
}

// NewBare prepares a stack and runs its first update, so that later, measured updates find warm caches.
func (s *System) NewBare(ctx context.Context, files gitserver.Files) (*Bare, error) {
	pulumi, err := tools.Path(ctx, "pulumi", s.progress)
	if err != nil {
		return nil, err
	}
	path, err := programPath(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.Dir, "bare-")
	if err != nil {
		return nil, fmt.Errorf("create the directory of the bare program: %w", err)
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the bare state: %w", err)
	}
	b := &Bare{
		program: filepath.Join(dir, "program"),
		pulumi:  pulumi,
		env: []string{
			"HOME=" + dir,
			"PATH=" + path,
			"PULUMI_HOME=" + filepath.Join(dir, "home"),
			"PULUMI_BACKEND_URL=file://" + state,
			"PULUMI_CONFIG_PASSPHRASE=correct horse battery staple",
			"PULUMI_SKIP_UPDATE_CHECK=true",
		},
	}
	if err := b.write(files); err != nil {
		return nil, err
	}
	if _, err := b.run(ctx, "stack", "init", "dev", "--non-interactive"); err != nil {
		return nil, err
	}
	_, err = b.Up(ctx, files)
	return b, err
}

// Up writes the files and returns how long "pulumi up" took.
func (b *Bare) Up(ctx context.Context, files gitserver.Files) (time.Duration, error) {
	wall, _, err := b.Measure(ctx, files)
	return wall, err
}

// Measure does the same as Up, and also returns the processor time, including that of the plugins.
func (b *Bare) Measure(ctx context.Context, files gitserver.Files) (wall, cpu time.Duration, err error) {
	if err := b.write(files); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	cpu, err = b.run(ctx, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev")
	return time.Since(start), cpu, err
}

// LookForDrift runs "pulumi refresh --preview-only", and returns the processor time.
func (b *Bare) LookForDrift(ctx context.Context) (cpu time.Duration, err error) {
	return b.run(ctx, "refresh", "--preview-only", "--non-interactive", "--stack", "dev")
}

func (b *Bare) write(files gitserver.Files) error {
	for name, content := range files {
		path := filepath.Join(b.program, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("write the bare program: %w", err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return fmt.Errorf("write the bare program: %w", err)
		}
	}
	return nil
}

// run runs the CLI, and returns the processor time that it used.
func (b *Bare) run(ctx context.Context, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, b.pulumi, args...)
	cmd.Dir = b.program
	cmd.Env = b.env
	if output, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("pulumi %s: %w\n%s", args[0], err, output)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
