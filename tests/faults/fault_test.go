package faults_test

import (
	"context"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
)

// What faults hold.
const (
	theController = "controller" // its processes
	theAPIServer  = "API server" // and etcd
	theSource     = "source-controller"
	theAgents     = "agents"
	theBackend    = "backend"
)

// target is what a fault may hit.
type target struct {
	*campaign.Target
	*scene
}

// injection makes a fault.
type injection = func(context.Context, *target) (campaign.Heal, error)

// hitting is the injection for the campaign.
func hitting(inject injection) func(context.Context, *campaign.Target) (campaign.Heal, error) {
	return func(ctx context.Context, on *campaign.Target) (campaign.Heal, error) {
		return inject(ctx, &target{Target: on, scene: on.World.System.(*scene)})
	}
}

// catalogue lists all kinds that can be had here, in the order in which the short form takes them.
func catalogue() []campaign.Fault {
	var all []campaign.Fault
	add := func(holds string, faults []campaign.Fault) {
		for _, f := range faults {
			if f.Holds == nil && holds != "" {
				f.Holds = []string{holds}
			}
			all = append(all, f)
		}
	}
	add(theController, controllerFaults)
	add(theAgents, processFaults)
	if isIsolated() {
		add("", processIDFaults)
	}
	add(theAPIServer, clusterFaults)
	add("", objectFaults)
	add(theSource, sourceFaults)
	add(theBackend, backendFaults)
	add(theAPIServer, requestFaults)
	if isIsolated() {
		add("", diskFaults)
	}
	return all
}
