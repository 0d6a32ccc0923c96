// Package handback makes the objects of this controller what the Pulumi Kubernetes Operator expects of them: for users who go back.
//
// The operator writes its statuses by server-side apply. It can neither change nor remove entries that it never applied: a condition of
// this controller would stay for ever. So afterwards every status is one that the operator could have written, and belongs to its field
// manager.
package handback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/handback/newfields"
	"github.com/stack-controller/stack-controller/internal/shard"
)

const (
	// pageSize is how many objects are read at once.
	pageSize = 100
	// maxErrors bounds how many failures the error tells.
	maxErrors = 10
	// maxListings bounds how often a list is begun anew because the API server forgot it while it was read.
	maxListings = 5
)

// Options say what is handed back, and how.
type Options struct {
	// Client reads from the API server, not from a cache.
	Client client.Client
	// Namespace is the one whose objects are handed back; empty means all.
	Namespace string
	// ControllerNamespace is where the controllers run, and hold their leases.
	ControllerNamespace string
	// DryRun only says what would be done. The API server checks it, and keeps none of it.
	DryRun bool
	// Out gets a line for each object.
	Out io.Writer
	// PollInterval is the time between two looks at what is being deleted.
	PollInterval time.Duration
}

// handBack is one run.
type handBack struct {
	Options
	// leaving are the Workspaces that are being deleted.
	leaving []*autov1alpha1.Workspace
	// failures are the errors about single objects, of which failed is the number.
	failures []error
	failed   int
}

// Run hands all objects back. What is handed back already is left as it is, so that it may be called again. It changes nothing while
// the controller runs, or while an operation does. A failure with one object does not keep the others back.
func Run(ctx context.Context, options Options) error {
	h := &handBack{Options: options}
	if h.DryRun {
		h.Client = client.NewDryRunClient(h.Client)
	}
	for _, step := range []func(context.Context) error{
		h.requireStoppedController,
		h.requireNoOperation,
		h.handBackUpdates,
		h.handBackWorkspaces,
		h.awaitWorkspaces,
		h.handBackStacks,
		h.handBackPrograms,
	} {
		if err := step(ctx); err != nil {
			return errors.Join(append(h.failures, err)...)
		}
	}
	if h.failed > maxErrors {
		h.failures = append(h.failures, fmt.Errorf("and %d more", h.failed-maxErrors))
	}
	return errors.Join(h.failures...)
}

// requireStoppedController fails while a controller holds its lease, that of a shard included: it would take back at once what is handed
// back.
func (h *handBack) requireStoppedController(ctx context.Context) error {
	leases := &coordinationv1.LeaseList{}
	if err := h.Client.List(ctx, leases, client.InNamespace(h.ControllerNamespace)); err != nil {
		return fmt.Errorf("list the leases in the namespace %s, which say whether stack-controller runs: %w", h.ControllerNamespace, err)
	}
	if holders := shard.Holders(leases.Items, time.Now()); len(holders) > 0 {
		return fmt.Errorf("stack-controller still runs: %s; scale its Deployments to 0 and try again, nothing was changed", strings.Join(holders, ", "))
	}
	return nil
}

// requireNoOperation fails when an Update was started and its result is not recorded: the operator would count it as failed, and
// start another one beside it.
func (h *handBack) requireNoOperation(ctx context.Context) error {
	running := 0
	err := h.each(ctx, &autov1alpha1.UpdateList{}, func(_ context.Context, object client.Object) error {
		if update := object.(*autov1alpha1.Update); isRunning(update) {
			running++
			h.say(update, "runs, or its result is not recorded")
		}
		return nil
	})
	if err == nil && running > 0 {
		err = fmt.Errorf("%d Updates run: start stack-controller again, wait until they are complete, and try again; nothing was changed", running)
	}
	return err
}

func isRunning(update *autov1alpha1.Update) bool {
	return !update.IsComplete() &&
		(update.HasStarted() || apimeta.IsStatusConditionTrue(update.Status.Conditions, autov1alpha1.UpdateProgressing))
}

// each calls do for every object of the kind. When somebody else changed an object meanwhile, it is read again and do is called again.
// What goes wrong with one object is remembered. A list is begun anew when the API server forgot it while it was read.
func (h *handBack) each(ctx context.Context, list client.ObjectList, do func(context.Context, client.Object) error) error {
	pages := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		into := list.DeepCopyObject().(client.ObjectList)
		return into, h.Client.List(ctx, into, &client.ListOptions{Namespace: h.Namespace, Limit: pageSize, Continue: page.Continue})
	})
	return retry.OnError(wait.Backoff{Steps: maxListings}, apierrors.IsResourceExpired, func() error {
		return pages.EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			object := item.(client.Object)
			if err := h.doLatest(ctx, object, do); err != nil {
				h.fail(fmt.Errorf("%s: %w", h.describe(object), err))
			}
			return ctx.Err()
		})
	})
}

// doLatest calls do until the object is not changed by others meanwhile. One that is gone needs nothing.
func (h *handBack) doLatest(ctx context.Context, object client.Object, do func(context.Context, client.Object) error) error {
	known := true
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if !known {
			if err := h.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
				return err
			}
		}
		known = false
		return do(ctx, object)
	})
	return client.IgnoreNotFound(err)
}

func (h *handBack) fail(err error) {
	if h.failed++; h.failed <= maxErrors {
		h.failures = append(h.failures, err)
	}
}

// say prints a line about the object. Nothing of its content is in it.
func (h *handBack) say(object client.Object, format string, args ...any) {
	fmt.Fprintf(h.Out, "%s: %s\n", h.describe(object), fmt.Sprintf(format, args...))
}

// sayNotes says what the operator does differently with the object because it does not know a field.
func (h *handBack) sayNotes(object client.Object, definition string) error {
	content, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("look for fields that the operator does not know: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(content, &fields); err != nil {
		return fmt.Errorf("look for fields that the operator does not know: %w", err)
	}
	for _, field := range newfields.Of(definition) {
		if field.Instead != "" && field.IsSetIn(fields) {
			h.say(object, "note: the operator does not know %s, and %s", field.Path, field.Instead)
		}
	}
	return nil
}

// did is say for what is done, or would be.
func (h *handBack) did(object client.Object, format string, args ...any) {
	if h.DryRun {
		format = "would be " + format
	}
	h.say(object, format, args...)
}

func (h *handBack) describe(object client.Object) string {
	kind, err := h.Client.GroupVersionKindFor(object)
	if err != nil {
		kind = object.GetObjectKind().GroupVersionKind()
	}
	return kind.Kind + " " + client.ObjectKeyFromObject(object).String()
}
