package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

var processFaults = []fault{
	{kind: "agent killed", short: true, mayMiss: true, inject: killAgent},
	{kind: "pulumi killed", short: true, mayMiss: true, inject: killPulumi},
}

// hunt is how long a fault looks for a process to kill.
const hunt = 3 * time.Second

// workspaceDir is where the process runtime keeps what the app's agent works with.
func (a *app) workspaceDir() string {
	sum := sha256.Sum256([]byte(a.Key().String()))
	return filepath.Join(a.scene.system.Dir, "data", "workspaces", hex.EncodeToString(sum[:])[:12])
}

// agentPID returns the process of the app's agent, 0 when there is none.
func (a *app) agentPID() int {
	content, err := os.ReadFile(filepath.Join(a.workspaceDir(), "workspace.json"))
	if err != nil {
		return 0
	}
	var record struct {
		Agent struct {
			PID int `json:"pid"`
		} `json:"agent"`
	}
	if json.Unmarshal(content, &record) != nil || record.Agent.PID <= 1 {
		return 0
	}
	// The record outlives the agent, whose number may have been given to somebody else.
	if _, name := parentOf(filepath.Join("/proc", strconv.Itoa(record.Agent.PID))); name != "agent" {
		return 0
	}
	return record.Agent.PID
}

// pulumiPID returns the process of pulumi that the app's agent runs, 0 when it runs none.
func (a *app) pulumiPID() int {
	agent := a.agentPID()
	if agent == 0 {
		return 0
	}
	for _, pid := range childrenNamed(agent, "pulumi") {
		return pid
	}
	return 0
}

// killAgent prefers an agent that works.
func killAgent(ctx context.Context, on *target) (func(context.Context) error, error) {
	err := on.hunt(ctx, func(a *app) int {
		if a.pulumiPID() == 0 {
			return 0
		}
		return a.agentPID()
	})
	if err == nil && !on.hit {
		err = on.hunt(ctx, (*app).agentPID)
	}
	return nil, err
}

func killPulumi(ctx context.Context, on *target) (func(context.Context) error, error) {
	return nil, on.hunt(ctx, (*app).pulumiPID)
}

// hunt kills the first process of an app that it finds, if it finds one in time.
func (t *target) hunt(ctx context.Context, find func(*app) int) error {
	first := t.random.IntN(len(t.apps))
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); wait(ctx, pollInterval) {
		for i := range t.apps {
			a := t.apps[(first+i)%len(t.apps)]
			if pid := find(a); pid > 1 {
				a.killed()
				t.hit = true
				return syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	return nil
}
