package campaign

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// maxProblems bounds what a watcher keeps.
const maxProblems = 20

// watcher checks every status that it sees against the rules of kstatus, as statuscheck.Watch does, but of all namespaces, and
// beyond the end of the API server.
type watcher struct {
	running sync.WaitGroup
	gate    *gate

	mu       sync.Mutex
	checked  int
	writes   int // versions of objects that were seen
	problems []error
	last     map[types.UID]any
}

func startWatcher(ctx context.Context, from client.WithWatch, gate *gate) *watcher {
	w := &watcher{gate: gate, last: map[types.UID]any{}}
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}} {
		w.running.Go(func() {
			for Wait(ctx, PollInterval) {
				watcher, err := from.Watch(ctx, list)
				if err != nil {
					continue
				}
				w.follow(ctx, watcher)
				watcher.Stop()
			}
		})
	}
	return w
}

func (w *watcher) follow(ctx context.Context, watcher watch.Interface) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watcher.ResultChan():
			if !open {
				return
			}
			if object, ok := event.Object.(conditions.Setter); ok {
				w.check(ctx, event.Type, object)
			}
		}
	}
}

// check takes a version whose status is that of the version before for one of somebody else than the controller, which may not
// have seen it yet.
func (w *watcher) check(ctx context.Context, kind watch.EventType, object conditions.Setter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	status := statusOf(object)
	w.writes++
	if kind == watch.Deleted || len(object.GetConditions()) == 0 || equality.Semantic.DeepEqual(w.last[object.GetUID()], status) {
		return
	}
	w.last[object.GetUID()] = status
	w.checked++
	if update, is := object.(*autov1alpha1.Update); is {
		if err := w.gate.judge(update); err != nil && len(w.problems) < maxProblems {
			w.problems = append(w.problems, err)
		}
	}
	if err := statuscheck.Lint(ctx, object); err != nil && ctx.Err() == nil && len(w.problems) < maxProblems {
		w.problems = append(w.problems, fmt.Errorf("%T %s, version %s: %w\nits status: %+v",
			object, client.ObjectKeyFromObject(object), object.GetResourceVersion(), err, status))
	}
}

func statusOf(object any) any {
	switch object := object.(type) {
	case *pulumiv1.Stack:
		return object.Status
	case *autov1alpha1.Workspace:
		return object.Status
	case *autov1alpha1.Update:
		return object.Status
	}
	return nil
}

// take returns how many statuses were checked so far, and what was wrong since it was asked last.
func (w *watcher) take() (checked int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err = errors.Join(w.problems...)
	w.problems = nil
	return w.checked, err
}

// seen is how many versions of objects there were so far: while it grows, there is progress.
func (w *watcher) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}
