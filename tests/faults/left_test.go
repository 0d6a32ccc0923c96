package faults_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// Unsettled has nothing to add: a Stack whose agent is a process needs no Workspace that is ready.
func (s *scene) Unsettled(context.Context, *campaign.App, bool) error { return nil }

// LeftBehind tells of locks in the backend and of processes of pulumi, but for those of runs that failed.
func (s *scene) LeftBehind([]*campaign.App) error {
	if locks := s.locks(); len(locks) > 0 {
		return campaign.NotSettled("locks in the backend: %v", locks)
	}
	if left := s.processes(); len(left) > 0 {
		return campaign.NotSettled("processes: %v", left)
	}
	return nil
}

// Works reports whether pulumi works in the directory of the Stack's agent.
func (s *scene) Works(a *campaign.App) bool { return len(pulumiProcesses(s.workspaceDir(a), nil)) > 0 }

// Prepare has nothing to do: what runs goes on.
func (s *scene) Prepare(context.Context, []*campaign.App) error { return nil }

// Judge has nothing to add.
func (s *scene) Judge() error { return nil }

// Explain has nothing to add.
func (s *scene) Explain(context.Context, *campaign.App) string { return "" }

// locks returns the locks in the backend.
func (s *scene) locks() []string {
	abandoned := s.Abandoned()
	var found []string
	_ = filepath.WalkDir(filepath.Join(s.backend(), ".pulumi", "locks"), func(path string, entry os.DirEntry, err error) error {
		of := func(a *campaign.App) bool { return filepath.Base(filepath.Dir(filepath.Dir(path))) == a.Name }
		if err == nil && !entry.IsDir() && !slices.ContainsFunc(abandoned, of) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// processes returns the processes of pulumi, its plugins included, that work for this world.
func (s *scene) processes() []string {
	var others []string
	for _, a := range s.Abandoned() {
		others = append(others, s.workspaceDir(a))
	}
	return pulumiProcesses(s.system.Dir, others)
}

// Pulumi runs the CLI by hand, in a project of the app's name.
func (s *scene) Pulumi(ctx context.Context, a *campaign.App, args ...string) error {
	dir, err := os.MkdirTemp(s.system.Dir, "by-hand-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte("name: "+a.Name+"\nruntime: yaml\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.cli, append(args, "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PULUMI_HOME=" + filepath.Join(dir, "home"), "PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_BACKEND_URL=" + s.BackendURL, "PULUMI_CONFIG_PASSPHRASE=" + passphrase,
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pulumi %s by hand: %w\n%s", args[0], err, output)
	}
	return nil
}
