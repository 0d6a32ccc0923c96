package faults_test

import (
	"context"
	"time"
)

var sourceFaults = []fault{
	{kind: "source-controller frozen", shortest: time.Second, longest: 5 * time.Second, inject: freezeServer("source-controller")},
	{kind: "source-controller restarted", short: true, inject: restartSource},
	{kind: "artifacts truncated", shortest: time.Second, longest: 5 * time.Second, mayMiss: true, inject: serve(servedTruncated)},
	{kind: "artifacts wrong", short: true, shortest: time.Second, longest: 5 * time.Second, mayMiss: true, inject: serve(servedWrong)},
	{kind: "artifacts unavailable", shortest: time.Second, longest: 5 * time.Second, mayMiss: true, inject: serve(servedNotAtAll)},
}

func restartSource(ctx context.Context, on *target) (func(context.Context) error, error) {
	return nil, on.restartSourceController(ctx, nil)
}

func serve(how int32) func(context.Context, *target) (func(context.Context) error, error) {
	return func(_ context.Context, on *target) (func(context.Context) error, error) {
		before := on.mirror.hits.Load()
		on.mirror.mode.Store(how)
		return func(context.Context) error {
			on.mirror.mode.Store(servedWell)
			on.hit = on.mirror.hits.Load() > before
			return nil
		}, nil
	}
}
