package podfaults_test

import (
	"context"
	"syscall"
	"time"
)

// unnoticed and noticed are for how long the node is away: kube-controller-manager takes note after 50 s.
const (
	unnoticed = 10 * time.Second
	noticed   = 60 * time.Second
)

var nodeFaults = []fault{
	{kind: "node crashed, back at once", shortest: time.Second, longest: unnoticed, inject: crashNode},
	{kind: "node crashed, back after a minute", shortest: noticed, longest: noticed, slow: true, inject: crashNode},
	{kind: "node cut off, its pods deleted by force", shortest: time.Second, longest: unnoticed, slow: true, inject: cutNodeOff},
}

// crashNode has kubelet stand still and kills everything that runs in pods: workspaces, the controller, Flux.
func crashNode(_ context.Context, on *target) (func(context.Context) error, error) {
	on.node.Lock()
	if err := on.system.Cluster.LoseNode(); err != nil {
		on.node.Unlock()
		return nil, err
	}
	for _, a := range on.apps {
		a.killed()
	}
	for _, p := range on.observer.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // what has ended has ended
	}
	return on.findNode, nil
}

// cutNodeOff has kubelet stand still while what runs goes on, and deletes the pods as people do who believe that the node is gone.
func cutNodeOff(ctx context.Context, on *target) (func(context.Context) error, error) {
	on.node.Lock()
	if err := on.system.Cluster.LoseNode(); err != nil {
		on.node.Unlock()
		return nil, err
	}
	for _, a := range on.apps {
		a.killed()
	}
	return on.findNode, on.removeAllPods(ctx)
}

// findNode has the node come back, and waits for the controllers on it.
func (t *target) findNode(ctx context.Context) error {
	defer t.node.Unlock()
	if err := t.system.Cluster.FindNode(ctx); err != nil {
		return err
	}
	return t.healController(ctx)
}
