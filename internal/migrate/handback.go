// Package migrate changes the objects of this controller into what the Pulumi Kubernetes Operator expects, for users who go back to the
// operator.
//
// The operator writes its statuses by server-side apply. It can neither change nor remove entries that it never applied, so a condition of
// this controller would stay for ever. Therefore handback replaces every status by one that the operator could have written, with the
// operator's field manager as its owner.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

const (
	// pageSize is how many objects are read at once.
	pageSize = 100
	// maxErrors bounds how many failures the error lists.
	maxErrors = 10
	// maxListings bounds how often a list is started again because it expired on the API server while it was read.
	maxListings = 5
)

// Options say what is handed back, and how.
type Options struct {
	// Client reads from the API server, not from a cache.
	Client client.Client
	// Namespace is the namespace whose objects are handed back; empty means all.
	Namespace string
	// ControllerNamespace is where the controllers run. Their leases are looked for there, or in all namespaces when it or Namespace is empty.
	ControllerNamespace string
	// DryRun only reports what would be done. The API server checks the requests, but stores nothing.
	DryRun bool
	// Accept names the objects, as KIND/NAMESPACE/NAME, with which the operator may do what they forbid: see newfields.Field.Forbids.
	Accept []string
	// Out gets a line for each object.
	Out io.Writer
	// PollInterval is how often the Workspaces that are being deleted are read.
	PollInterval time.Duration
}

// handBack is one run.
type handBack struct {
	Options
	// leaving are the Workspaces that are being deleted.
	leaving []*autov1alpha1.Workspace
	// failures are the first errors about single objects, at most maxErrors; failed counts all of them.
	failures []error
	failed   int
}

// Run hands all objects back. It does not change objects that are handed back already, so it can be run again. It changes nothing while the
// controller or an operation runs, or while an object that forbids something is not accepted. If one object fails, the others are still handed back.
func Run(ctx context.Context, options Options) error {
	h := &handBack{Options: options}
	if h.DryRun {
		h.Client = client.NewDryRunClient(h.Client)
	}
	for _, step := range []func(context.Context) error{
		h.requireStoppedController,
		h.requireNoOperation,
		h.requireAnswers,
		h.handBackUpdates,
		h.handBackWorkspaces,
		h.awaitWorkspaces,
		h.handBackStacks,
		h.handBackPrograms,
		h.sayLeftovers,
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

// requireNoOperation fails if an Update was started and its result is not recorded. The operator would count this Update as failed, and
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

// each calls do for every object of the kind. If an object was changed meanwhile, it is read again and do is called again. The error of an
// object is kept, and the next object follows. A list that expired on the API server while it was read is started again.
func (h *handBack) each(ctx context.Context, list client.ObjectList, do func(context.Context, client.Object) error,
	options ...client.ListOption) error {
	pages := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		into := list.DeepCopyObject().(client.ObjectList)
		all := append([]client.ListOption{client.InNamespace(h.Namespace), client.Limit(pageSize), client.Continue(page.Continue)}, options...)
		return into, h.Client.List(ctx, into, all...)
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

// doLatest calls do again, with the latest object, as long as it fails with a conflict. For an object that no longer exists, there
// is nothing to do.
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

// say prints a line about the object. The line must not contain the object's content.
func (h *handBack) say(object client.Object, format string, args ...any) {
	fmt.Fprintf(h.Out, "%s: %s\n", h.describe(object), fmt.Sprintf(format, args...))
}

// did prints what was done to the object, or in a dry run what would be done.
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
