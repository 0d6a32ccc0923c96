package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func (s *session) reconcile() *cobra.Command {
	var options waiting
	var withSource bool
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Run an update of a Stack now",
		Long: "Run an update of a Stack now, whether anything changed or not, and wait for it. It has the annotation\n" +
			meta.ReconcileRequestAnnotation + " on the Stack and, with --with-source, on its source first.",
		Example: fmt.Sprintf("  %s reconcile stack network --with-source", invocation(s.Program)),
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.reconcileStack(ctx, c, stack, options, withSource)
	})
	options.addFlags(cmd)
	cmd.Flags().BoolVar(&withSource, "with-source", false, "Let Flux fetch the source first.")
	return group("reconcile", "Run an update now", cmd)
}

func (s *session) reconcileStack(ctx context.Context, c *cluster, stack *pulumiv1.Stack, options waiting, withSource bool) error {
	if stack.Spec.Suspend {
		return fmt.Errorf("the Stack %q is suspended: resume it first", stack.Name)
	}
	if withSource {
		if err := s.reconcileSource(ctx, c, stack, options.timeout); err != nil {
			return err
		}
		if err := c.read(ctx, c.key(stack.Name), stack); err != nil {
			return err
		}
	}
	request, err := s.request(ctx, c, stack)
	if err != nil {
		return err
	}
	return s.finish(ctx, c, stack, request, options)
}

// request asks the controller of an object to reconcile it. It returns the value that the status has as soon as the controller has seen the
// request.
func (s *session) request(ctx context.Context, c *cluster, object client.Object) (string, error) {
	kind, request := c.kindOf(object), s.Now().Format(time.RFC3339Nano)
	s.log.Step("annotating %s %s in %s namespace", kind, object.GetName(), object.GetNamespace())
	before, annotations := object.DeepCopyObject().(client.Object), map[string]string{}
	maps.Copy(annotations, object.GetAnnotations())
	annotations[meta.ReconcileRequestAnnotation] = request
	object.SetAnnotations(annotations)
	if err := c.change(ctx, before, object); err != nil {
		return "", err
	}
	s.log.Success("%s annotated", kind)
	return request, nil
}

// finish waits until the Stack, as the API server returned it for the request, has done what that asks for, and logs the result.
func (s *session) finish(ctx context.Context, c *cluster, asked *pulumiv1.Stack, request string, options waiting) error {
	if !options.wait {
		return nil
	}
	s.log.Waiting("waiting for Stack %s", asked.Name)
	stack, err := s.awaitStack(ctx, c, asked, options.timeout, request)
	if err != nil {
		return err
	}
	result := ""
	if last := stack.Status.LastUpdate; last != nil && counts(last.ResourceChanges) != "" {
		result = " (" + counts(last.ResourceChanges) + ")"
	}
	s.log.Success("Stack %s is ready: applied revision %s%s", stack.Name, short(stack.Status.LastAppliedRevision), result)
	return nil
}

func nameOfLast(stack *pulumiv1.Stack) string {
	if stack.Status.LastUpdate == nil {
		return ""
	}
	return stack.Status.LastUpdate.Name
}

// sourceOf is like the function sourceOf, with a version of the kind that the API server serves. As for the controller, the version in the
// Stack does not matter.
func (c *cluster) sourceOf(stack *pulumiv1.Stack) *unstructured.Unstructured {
	source := sourceOf(stack)
	if source != nil {
		source.SetGroupVersionKind(c.served(source.GroupVersionKind()))
	}
	return source
}

// served returns the version of the kind that the API server prefers; the kind as it is if it serves none, or does not answer.
func (c *cluster) served(kind schema.GroupVersionKind) schema.GroupVersionKind {
	if mapping, err := c.client.RESTMapper().RESTMapping(kind.GroupKind()); err == nil {
		return mapping.GroupVersionKind
	}
	return kind
}

// sourceOf returns the object that the Stack takes its program from, with its name only; nil when there is none.
func sourceOf(stack *pulumiv1.Stack) *unstructured.Unstructured {
	source := &unstructured.Unstructured{}
	source.SetNamespace(stack.Namespace)
	switch {
	case stack.Spec.FluxSource != nil:
		reference := stack.Spec.FluxSource.SourceRef
		source.SetGroupVersionKind(schema.FromAPIVersionAndKind(cmp.Or(reference.APIVersion, "source.toolkit.fluxcd.io/v1"), reference.Kind))
		source.SetName(reference.Name)
		source.SetNamespace(cmp.Or(reference.Namespace, stack.Namespace))
	case stack.Spec.ProgramRef != nil:
		source.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind("Program"))
		source.SetName(stack.Spec.ProgramRef.Name)
	default:
		return nil
	}
	return source
}

// reconcileSource makes Flux fetch the source of the Stack.
func (s *session) reconcileSource(ctx context.Context, c *cluster, stack *pulumiv1.Stack, timeout time.Duration) error {
	source := c.sourceOf(stack)
	if source == nil || stack.Spec.FluxSource == nil {
		s.log.Step("Stack %s has no Flux source: its request checks what it is made of", stack.Name)
		return nil
	}
	key := client.ObjectKeyFromObject(source)
	if err := c.read(ctx, key, source); err != nil {
		return err
	}
	if suspended, _, _ := unstructured.NestedBool(source.Object, "spec", "suspend"); suspended {
		return fmt.Errorf("%s %q is suspended: resume it first", source.GetKind(), source.GetName())
	}
	if source.GetKind() == sourcev1.ExternalArtifactKind {
		s.log.Step("%s %s is published by another controller, which decides when", source.GetKind(), source.GetName())
		return nil
	}
	request, err := s.request(ctx, c, source)
	if err != nil {
		return err
	}
	s.log.Waiting("waiting for %s %s", source.GetKind(), source.GetName())
	err = s.await(ctx, timeout, fmt.Sprintf("%s %s", source.GetKind(), key), func(ctx context.Context) (progress, error) {
		if err := c.read(ctx, key, source); err != nil {
			return progress{}, err
		}
		return fetched(source, request)
	})
	if err != nil {
		return err
	}
	revision, _, _ := unstructured.NestedString(source.Object, "status", "artifact", "revision")
	s.log.Success("fetched revision %s", short(revision))
	return nil
}

// fetched returns the progress of the source with the request.
func fetched(source *unstructured.Unstructured, request string) (progress, error) {
	handled, _, _ := unstructured.NestedString(source.Object, "status", "lastHandledReconcileAt")
	if !isHandled(handled, request, source) {
		return progress{state: "waiting for the controller of the source"}, nil
	}
	result, err := status.Compute(source)
	if err != nil {
		return progress{}, fmt.Errorf("read the status of %s %s: %w", source.GetKind(), source.GetName(), err)
	}
	if result.Status == status.FailedStatus || hasFailed(source) {
		return progress{}, failed(exitNotReady, "%s %q is not ready: %s", source.GetKind(), source.GetName(), causeOf(source, result))
	}
	return progress{state: "fetching", detail: causeOf(source, result), done: result.Status == status.CurrentStatus}, nil
}

// hasFailed reports whether the last attempt of the source's controller has failed. It then tries again at its own intervals, which can take
// longer than anybody waits. While it tries, Ready is Unknown, or Reconciling has another reason.
func hasFailed(source *unstructured.Unstructured) bool {
	getter := conditions.UnstructuredGetter(source)
	retries := conditions.GetReason(getter, meta.ReconcilingCondition)
	return conditions.IsFalse(getter, meta.ReadyCondition) && (retries == "" || retries == meta.ProgressingWithRetryReason)
}
