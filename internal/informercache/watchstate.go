package informercache

import (
	"context"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
)

// refusedFor is how long a watch counts as refused after the API server refused it, if Works is not called. An informer tries again after 30 to
// 60 seconds, and says nothing when it succeeds.
const refusedFor = 2 * time.Minute

// WatchState says whether the API server refuses the watch of an informer. Its zero value is a watch that is not refused.
type WatchState struct {
	// refused is when the API server refused the watch last, by a clock that cannot be set; nil is never. since is when it began to.
	refused, since atomic.Pointer[time.Time]
}

// IsRefused reports whether the API server refuses the watch: what the informer has may be outdated.
func (s *WatchState) IsRefused() bool {
	last := s.refused.Load()
	return last != nil && time.Since(*last) <= refusedFor
}

// IsRefusedFor reports whether the API server has refused the watch for that long. One refusal may be an API server that has just started.
func (s *WatchState) IsRefusedFor(long time.Duration) bool {
	since := s.since.Load()
	return s.IsRefused() && since != nil && time.Since(*since) >= long
}

// Works notes that the API server has answered the informer: the watch is not refused any longer.
func (s *WatchState) Works() { s.refused.Store(nil) }

// ErrorHandler returns the handler for the errors of the informer. It calls onRefused when the API server begins to refuse the watch, for
// lack of rights, and onGone when the cluster no longer serves the version of the kind, which no informer recovers from. All other errors
// are left to the default handler: the informer tries again soon.
func (s *WatchState) ErrorHandler(onRefused func(error), onGone func()) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err):
			now, begins := time.Now(), !s.IsRefused()
			if begins {
				s.since.Store(&now)
			}
			if s.refused.Store(&now); begins {
				onRefused(err)
			}
		case apierrors.IsNotFound(err):
			onGone()
		default:
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		}
	}
}
