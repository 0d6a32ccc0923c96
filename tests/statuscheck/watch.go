package statuscheck

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
)

// maxProblems bounds what a Watcher keeps.
const maxProblems = 20

// Watcher checks every status that is written to the Stacks, Programs, Workspaces and Updates of a namespace.
type Watcher struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	checked  int
	problems []error
}

// Watch starts a Watcher, which ends with its Stop or with the context. The namespace need not exist yet.
func Watch(ctx context.Context, from client.WithWatch, namespace string) (*Watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{cancel: cancel}
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &pulumiv1.ProgramList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}} {
		watcher, err := from.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			cancel()
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		w.running.Go(func() { w.follow(ctx, watcher) })
	}
	return w, nil
}

// Stop ends the Watcher and returns how many statuses it has checked, and what was wrong with them.
func (w *Watcher) Stop() (checked int, err error) {
	w.cancel()
	w.running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checked, errors.Join(w.problems...)
}

// follow checks what the watch reports. A version of an object whose status is that of the version before was written by
// somebody else than its controller, which may not have seen it yet.
func (w *Watcher) follow(ctx context.Context, watcher watch.Interface) {
	defer watcher.Stop()
	last := map[types.UID]any{}
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watcher.ResultChan():
			if ctx.Err() != nil {
				// That the watch was ended is the last that it reports.
				return
			}
			if !open {
				w.note(errors.Join(errors.New("the watch ended early"), ctx.Err()))
				return
			}
			object, ok := event.Object.(conditions.Setter)
			if !ok {
				w.note(fmt.Errorf("watch statuses: %v", event.Object))
				return
			}
			status := statusOf(object)
			if event.Type == watch.Deleted || len(object.GetConditions()) == 0 || equality.Semantic.DeepEqual(last[object.GetUID()], status) {
				continue
			}
			last[object.GetUID()] = status
			err := Lint(ctx, object)
			if err != nil {
				err = fmt.Errorf("%T %s, version %s: %w\nits status: %+v", object, client.ObjectKeyFromObject(object), object.GetResourceVersion(), err, status)
			}
			w.note(err)
		}
	}
}

func statusOf(object any) any {
	switch object := object.(type) {
	case *pulumiv1.Stack:
		return object.Status
	case *pulumiv1.Program:
		return object.Status
	case *autov1alpha1.Workspace:
		return object.Status
	case *autov1alpha1.Update:
		return object.Status
	}
	return nil
}

// note counts a status that was checked, and keeps its problem.
func (w *Watcher) note(problem error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checked++
	if problem != nil && len(w.problems) < maxProblems {
		w.problems = append(w.problems, problem)
	}
}
