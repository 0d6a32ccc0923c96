package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// deleteNamespace takes the Stack, its source and its Secret away at the same time.
func deleteNamespace(ctx context.Context, on *target) (func(context.Context) error, error) {
	victim := on.living()
	if victim == nil {
		return nil, nil
	}
	victim.mu.Lock()
	victim.deleted, victim.evicted = true, true
	victim.mu.Unlock()
	on.hit = true
	return nil, on.remove(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victim.Namespace}})
}

// tolerate drops an error that comes from the end of the app's namespace.
func (a *app) tolerate(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.evicted && (apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) {
		return nil
	}
	return err
}

// helpEvicted does what a Stack in a namespace that is being deleted asks a person to do, because nothing can be created there
// to destroy its resources: it destroys them by hand and says that there is nothing left to do.
func (a *app) helpEvicted(ctx context.Context, stack *pulumiv1.Stack) error {
	if conditions.GetReason(stack, meta.ReadyCondition) != pulumiv1.NamespaceTerminatingReason || a.seenHelp == a.Namespace {
		return nil
	}
	if !strings.Contains(conditions.GetMessage(stack, meta.ReadyCondition), pulumiv1.OrphanAnnotation) {
		return fmt.Errorf("%w: the Stack does not say what to do: %s", errNotSettled, conditions.GetMessage(stack, meta.ReadyCondition))
	}
	if left := pulumiProcesses(a.workspaceDir(), nil); len(left) > 0 {
		return nil // whose end comes first
	}
	pending, err := a.pendingOperations()
	if err != nil {
		return err
	}
	_ = a.pulumi(ctx, "cancel", "--yes", "--stack", "dev") // there may be nothing to cancel
	if pending > 0 {
		if err := a.pulumi(ctx, "refresh", "--clear-pending-creates", "--yes", "--skip-preview", "--stack", "dev"); err != nil {
			return err
		}
	}
	if err := a.pulumi(ctx, "destroy", "--yes", "--skip-preview", "--stack", "dev"); err != nil {
		return err
	}
	a.seenHelp = a.Namespace
	if pending > 0 {
		if err := a.removeFiles(); err != nil {
			return err
		}
	}
	return a.tolerate(a.patch(ctx, func(stack *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&stack.ObjectMeta, pulumiv1.OrphanAnnotation, "true")
	}))
}

// pendingOperations is how many operations on resources pulumi began and does not know the end of.
func (a *app) pendingOperations() (int, error) {
	content, err := os.ReadFile(filepath.Join(a.scene.backend(), ".pulumi", "stacks", a.Name, "dev.json"))
	if err != nil {
		return 0, err
	}
	var state struct {
		Checkpoint struct {
			Latest struct {
				Pending []json.RawMessage `json:"pending_operations"`
			} `json:"latest"`
		} `json:"checkpoint"`
	}
	err = json.Unmarshal(content, &state)
	return len(state.Checkpoint.Latest.Pending), err
}

// removeFiles removes what a creation that was cut off may have left.
func (a *app) removeFiles() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".journal" {
			continue
		}
		if err := os.Remove(filepath.Join(a.dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
