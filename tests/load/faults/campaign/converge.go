package campaign

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

// ErrNotConverged means that something is not yet in its expected final state.
var ErrNotConverged = errors.New("it is not converged")

// NotConverged is an error that wraps ErrNotConverged.
func NotConverged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrNotConverged, fmt.Errorf(format, args...))
}

// AwaitConvergence waits until every app is in its expected state and nothing is left behind. It gives up when nothing changes for a while.
func (w *Environment) AwaitConvergence(ctx context.Context, apps []*App) error {
	ctx, cancel := context.WithTimeout(ctx, w.MaxConvergence)
	defer cancel()
	last, since := "", time.Now()
	for {
		err := w.CheckConverged(ctx, apps)
		if err == nil {
			return nil
		}
		if now := fmt.Sprint(w.watcher.seen(), err); now != last {
			last, since = now, time.Now()
		}
		if !Wait(ctx, 2*PollInterval) || time.Since(since) > w.Patience {
			return fmt.Errorf("nothing happened for %s: %w", time.Since(since).Round(time.Second), err)
		}
	}
}

// CheckConverged returns an error that names something that is not yet in its expected final state.
func (w *Environment) CheckConverged(ctx context.Context, apps []*App) error {
	for _, a := range apps {
		if err := a.unconverged(ctx); err != nil {
			return fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	return w.System.LeftBehind(apps)
}

func (a *App) unconverged(ctx context.Context) error {
	a.mu.Lock()
	deleted, sha, request := a.deleted, a.sha, a.request
	a.mu.Unlock()
	stack := &pulumiv1.Stack{}
	switch err := a.environment.get(ctx, a.Key(), stack); {
	case apierrors.IsNotFound(err) && deleted:
		return a.environment.System.Unconverged(ctx, a, true)
	case err != nil:
		return NotConverged("%w", err)
	}
	if err := errors.Join(a.help(ctx, stack), a.helpEvicted(ctx, stack)); err != nil {
		return err
	}
	if deleted {
		return NotConverged("it is not deleted: %s", statuscheck.Message(stack))
	}
	source := &sourcev1.GitRepository{}
	if err := a.environment.get(ctx, a.Key(), source); err != nil {
		return NotConverged("%w", err)
	}
	if source.Status.Artifact == nil || !strings.HasSuffix(source.Status.Artifact.Revision, sha) {
		return NotConverged("there is no artifact of commit %s yet", sha)
	}
	switch last := stack.Status.LastUpdate; {
	case !statuscheck.Ready("")(stack):
		return NotConverged("%v", conditions.Get(stack, meta.ReadyCondition))
	case last == nil || last.LastSuccessfulCommit != source.Status.Artifact.Digest || last.Generation != stack.Generation:
		return NotConverged("it is Ready with another update than that of the last change: %+v", last)
	case request != "" && stack.Status.LastHandledReconcileAt != request:
		return NotConverged("the request is not handled")
	}
	if a.train != nil {
		if err := a.train.unconverged(ctx, a.environment, sha); err != nil {
			return err
		}
	}
	updates := &autov1alpha1.UpdateList{}
	if err := a.environment.list(ctx, updates, client.InNamespace(a.Namespace)); err != nil {
		return NotConverged("%w", err)
	}
	for _, update := range updates.Items {
		if !update.IsComplete() || !update.DeletionTimestamp.IsZero() {
			return NotConverged("Update %s is %s", update.Name, update.Status.State)
		}
	}
	return a.environment.System.Unconverged(ctx, a, false)
}

// help does what the documentation asks a person to do when pulumi was killed while it created a resource: it forgets the attempt. The
// resources of the test provider can be created again without harm.
func (a *App) help(ctx context.Context, stack *pulumiv1.Stack) error {
	last := stack.Status.LastUpdate
	if !strings.Contains(statuscheck.Message(stack), "did not finish creating") || stack.Status.CurrentUpdate != nil || last == nil ||
		a.seenHelp == last.Name {
		return nil
	}
	if err := a.forgetCreations(ctx); err != nil {
		// The next attempt may have the lock, or the pod is being replaced. The next check tries again.
		return NotConverged("%w", err)
	}
	a.seenHelp = last.Name
	a.note(func() { a.forgotten++ })
	return a.annotate(ctx, pulumiv1.ReconcileRequestAnnotation, fmt.Sprint("helped-", a.forgotten))
}

func (a *App) forgetCreations(ctx context.Context) error {
	return a.environment.System.Pulumi(ctx, a, "refresh", "--clear-pending-creates", "--yes", "--skip-preview", "--stack", "dev")
}

// Tolerate returns nil for an error that is caused by the deletion of the app's namespace.
func (a *App) Tolerate(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.evicted && (apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) {
		return nil
	}
	return err
}

// helpEvicted does what a Stack in a terminating namespace asks a person to do, because nothing that could destroy its resources can be
// created there: it destroys the resources by hand, and sets the annotation with which the Stack is released.
func (a *App) helpEvicted(ctx context.Context, stack *pulumiv1.Stack) error {
	if conditions.GetReason(stack, meta.ReadyCondition) != pulumiv1.NamespaceTerminatingReason || a.seenHelp == a.Namespace {
		return nil
	}
	if !strings.Contains(statuscheck.Message(stack), pulumiv1.OrphanAnnotation) {
		return NotConverged("the Stack does not say what to do: %s", statuscheck.Message(stack))
	}
	if a.environment.System.Works(a) {
		return nil // the operation has to end first
	}
	pending, err := a.pendingOperations()
	if err != nil {
		return err
	}
	_ = a.environment.System.Pulumi(ctx, a, "cancel", "--yes", "--stack", "dev") // there may be nothing to cancel
	if pending > 0 {
		if err := a.forgetCreations(ctx); err != nil {
			return err
		}
	}
	if err := a.environment.System.Pulumi(ctx, a, "destroy", "--yes", "--skip-preview", "--stack", "dev"); err != nil {
		return err
	}
	a.seenHelp = a.Namespace
	if pending > 0 {
		if err := a.removeFiles(); err != nil {
			return err
		}
	}
	return a.Tolerate(a.annotate(ctx, pulumiv1.OrphanAnnotation, "true"))
}

// Audit checks the conditions that must hold after everything has converged.
func (w *Environment) Audit(apps []*App) error {
	problems := w.System.CheckInvariants()
	if _, err := w.watcher.take(); err != nil {
		problems = errors.Join(problems, fmt.Errorf("statuses that contradict themselves:\n%w", err))
	}
	for _, a := range apps {
		problems = errors.Join(problems, a.audit())
		if a.train != nil {
			problems = errors.Join(problems, a.train.audit(a))
		}
	}
	return problems
}
