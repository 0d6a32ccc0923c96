package faults_test

import (
	"context"
	"time"
)

var requestFaults = []fault{
	{
		kind: "writes refused as conflicts", shortest: time.Second, longest: 6 * time.Second,
		mayMiss: true, inject: spoilWrites(writesRefused),
	},
	{
		kind: "answers to writes lost", short: true, shortest: time.Second, longest: 6 * time.Second,
		mayMiss: true, inject: spoilWrites(writesUnanswered),
	},
}

// spoilWrites spoils each write of the controller, each second or each third one.
func spoilWrites(how int32) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, on *target) (func(context.Context) error, error) {
		before := on.gate.hits.Load()
		on.gate.spoil(how, 1+on.random.Int32N(3))
		return func(context.Context) error {
			on.gate.mode.Store(writesDone)
			on.hit = on.gate.hits.Load() > before
			return nil
		}, nil
	}
}
