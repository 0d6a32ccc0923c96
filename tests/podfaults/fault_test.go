package podfaults_test

import (
	"context"
	"math/rand/v2"
	"time"
)

// fault is a kind of fault.
type fault struct {
	kind string
	// shortest and longest are how long it lasts before it is healed.
	shortest, longest time.Duration
	// slow keeps it out of the short form.
	slow bool
	// inject makes the fault, and returns what ends it; nil when it ends by itself.
	inject func(ctx context.Context, on *target) (heal func(context.Context) error, err error)
}

// target is what a fault may hit.
type target struct {
	*scene
	apps []*app
	// victim is the app whose operation is in the phase that the fault is for.
	victim *app
	random *rand.Rand
	// missed is set by faults that find nothing to hit.
	missed bool
}

// catalogue lists all kinds.
func catalogue() []fault {
	var all []fault
	for _, some := range [][]fault{controllerFaults, podFaults, objectFaults, nodeFaults} {
		all = append(all, some...)
	}
	return all
}
