package faults_test

import (
	"os"
	"path/filepath"
	"slices"
)

// abandon leaves apps alone from now on, with all that they leave behind.
func (s *scene) abandon(apps []*app) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range apps {
		if a != nil {
			s.abandoned = append(s.abandoned, a)
		}
	}
}

func (s *scene) isAbandoned(holds func(*app) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.abandoned, holds)
}

// locks returns the locks in the backend.
func (s *scene) locks() []string {
	var found []string
	_ = filepath.WalkDir(filepath.Join(s.backend(), ".pulumi", "locks"), func(path string, entry os.DirEntry, err error) error {
		of := func(a *app) bool { return filepath.Base(filepath.Dir(filepath.Dir(path))) == a.Name }
		if err == nil && !entry.IsDir() && !s.isAbandoned(of) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// processes returns the processes of pulumi, its plugins included, that work for this world.
func (s *scene) processes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var others []string
	for _, a := range s.abandoned {
		others = append(others, a.workspaceDir())
	}
	return pulumiProcesses(s.system.Dir, others)
}
