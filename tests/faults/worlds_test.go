package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/stack-controller/stack-controller/tests/stage"
)

// startWorlds starts so many scenes at once. When it fails it returns those that run all the same, for their end.
func startWorlds(ctx context.Context, count int, cli string) ([]*scene, error) {
	started := make([]*scene, count)
	failed := make([]error, count)
	var starting sync.WaitGroup
	for i := range count {
		starting.Go(func() { started[i], failed[i] = startWorld(ctx, i+1, cli) })
	}
	starting.Wait()
	var running []*scene
	for _, s := range started {
		if s != nil {
			running = append(running, s)
		}
	}
	return running, errors.Join(failed...)
}

func startWorld(ctx context.Context, number int, cli string) (*scene, error) {
	system, err := stage.Start(ctx, stage.Options{Log: os.Stderr, Pulumi: cli, ControllerArgs: []string{"--concurrent=8"}})
	if err != nil {
		return nil, fmt.Errorf("start world %d: %w", number, err)
	}
	s, err := newScene(ctx, system, cli)
	if err != nil {
		(&scene{system: system}).unmountDisk()
		return nil, errors.Join(fmt.Errorf("start world %d: %w", number, err), system.Stop())
	}
	s.number = number
	return s, nil
}

// end ends a world, whatever state it is in.
func (s *scene) end() error {
	s.close()
	return s.system.Stop()
}

// keepLogs copies the logs to where a developer finds them, when asked to.
func (s *scene) keepLogs(occasion string) {
	target := os.Getenv("FAULTS_LOGS")
	if target == "" {
		return
	}
	target = filepath.Join(target, fmt.Sprintf("world-%d%s", s.number, occasion))
	if err := os.MkdirAll(target, 0o700); err != nil {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(s.system.Dir, "*.log"))
	for _, log := range logs {
		if content, err := os.ReadFile(log); err == nil {
			_ = os.WriteFile(filepath.Join(target, filepath.Base(log)), content, 0o600)
		}
	}
}
