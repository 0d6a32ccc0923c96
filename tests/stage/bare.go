package stage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// Bare runs the pulumi CLI by hand on a program of its own with a state of its own: what stack-controller is measured by.
type Bare struct {
	program string // its directory
	pulumi  string
	env     []string
}

// NewBare prepares a stack and runs the first update of it, so that the ones that are measured are warm.
func (s *Stage) NewBare(ctx context.Context, files gitserver.Files) (*Bare, error) {
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
	if err := b.run(ctx, "stack", "init", "dev", "--non-interactive"); err != nil {
		return nil, err
	}
	_, err = b.Up(ctx, files)
	return b, err
}

// Up writes the files and returns how long "pulumi up" took.
func (b *Bare) Up(ctx context.Context, files gitserver.Files) (time.Duration, error) {
	if err := b.write(files); err != nil {
		return 0, err
	}
	start := time.Now()
	err := b.run(ctx, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev")
	return time.Since(start), err
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

func (b *Bare) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, b.pulumi, args...)
	cmd.Dir = b.program
	cmd.Env = b.env
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pulumi %s: %w\n%s", args[0], err, output)
	}
	return nil
}
