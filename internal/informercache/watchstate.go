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
	// refused is when the API server refused the watch last, in nanoseconds; 0 is never.
	refused atomic.Int64
}

// IsRefused reports whether the API server refuses the watch: what the informer has may be outdated.
func (s *WatchState) IsRefused() bool {
	return time.Since(time.Unix(0, s.refused.Load())) <= refusedFor
}

// Works notes that the API server has answered the informer: the watch is not refused any longer.
func (s *WatchState) Works() { s.refused.Store(0) }

// ErrorHandler returns the handler for the errors of the informer. It calls onRefused when the API server begins to refuse the watch, for
// lack of rights, and onGone when the cluster no longer serves the version of the kind, which no informer recovers from. All other errors
// are left to the default handler: the informer tries again soon.
func (s *WatchState) ErrorHandler(onRefused func(error), onGone func()) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		switch {
		case apierrors.IsForbidden(err):
			begins := !s.IsRefused()
			if s.refused.Store(time.Now().UnixNano()); begins {
				onRefused(err)
			}
		case apierrors.IsNotFound(err):
			onGone()
		default:
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		}
	}
}
