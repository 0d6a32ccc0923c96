package faults_test

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
	// onlyByName keeps it out of all runs that do not name it: it shows what is not defended against.
	onlyByName bool
	// mayMiss tells that it may find nothing to hit, and then does not count.
	mayMiss bool
	// inject makes the fault, and returns what ends it; nil when it ends by itself.
	inject func(ctx context.Context, on *target) (heal func(context.Context) error, err error)
}

// target is what a fault may hit.
type target struct {
	*scene
	apps   []*app
	random *rand.Rand
	// hit is set by faults that may find nothing to hit.
	hit bool
}

// victim chooses one of the apps.
func (t *target) victim() *app { return t.apps[t.random.IntN(len(t.apps))] }

// catalogue lists all kinds, in the order in which the short form takes them.
func catalogue() []fault {
	var all []fault
	for _, some := range [][]fault{controllerFaults, processFaults, clusterFaults, objectFaults, sourceFaults, backendFaults} {
		all = append(all, some...)
	}
	return all
}
