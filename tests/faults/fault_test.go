package faults_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// fault is a kind of fault.
type fault struct {
	kind string
	// holds names what the fault needs for itself: two that name the same thing come one after another, all others at any time.
	holds []string
	// shortest and longest are how long it lasts before it is healed.
	shortest, longest time.Duration
	// short takes it into the short form, which has one kind of each sort at least.
	short bool
	// rare is for one that takes minutes: only one run of rareEvery has it, unless it is asked for by name.
	rare bool
	// needsMounts is for one that can be had only with mounts of the test's own.
	needsMounts bool
	// mayMiss tells that it may find nothing to hit, and then does not count.
	mayMiss bool
	// inject makes the fault, and returns what ends it; nil when it ends by itself.
	inject func(ctx context.Context, on *target) (heal func(context.Context) error, err error)
}

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
	*scene
	apps   []*app
	random *rand.Rand
	// hit is set by faults that may find nothing to hit.
	hit bool
}

// victim chooses one of the apps.
func (t *target) victim() *app { return t.apps[t.random.IntN(len(t.apps))] }

// living chooses one of the apps that were not deleted, nil when there is none.
func (t *target) living() *app {
	left := slices.DeleteFunc(slices.Clone(t.apps), (*app).isDeleted)
	if len(left) == 0 {
		return nil
	}
	return left[t.random.IntN(len(left))]
}

// catalogue lists all kinds that can be had here, in the order in which the short form takes them.
func catalogue() []fault {
	var all []fault
	for _, some := range []struct {
		holds  string
		faults []fault
	}{
		{theController, controllerFaults},
		{theAgents, processFaults},
		{theAPIServer, clusterFaults},
		{"", objectFaults},
		{theSource, sourceFaults},
		{theBackend, backendFaults},
		{theAPIServer, requestFaults},
		{"", statusFaults},
		{"", diskFaults},
	} {
		for _, f := range some.faults {
			if f.holds == nil && some.holds != "" {
				f.holds = []string{some.holds}
			}
			all = append(all, f)
		}
	}
	return slices.DeleteFunc(all, func(f fault) bool { return f.needsMounts && !hasOwnMounts() })
}

// hold waits until nobody else holds any of it, and returns what lets go.
func (s *scene) hold(what []string) (release func()) {
	var locks []*sync.Mutex
	for _, name := range slices.Sorted(slices.Values(what)) { // in the same order for everybody
		s.mu.Lock()
		if s.held == nil {
			s.held = map[string]*sync.Mutex{}
		}
		if s.held[name] == nil {
			s.held[name] = &sync.Mutex{}
		}
		lock := s.held[name]
		s.mu.Unlock()
		lock.Lock()
		locks = append(locks, lock)
	}
	return func() {
		for _, lock := range locks {
			lock.Unlock()
		}
	}
}
