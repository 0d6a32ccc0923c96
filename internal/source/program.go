package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/render"
)

// programTimeout bounds how long it may take to read a Program that is rendered.
const programTimeout = 30 * time.Second

// Programs resolves Programs. The Program controller writes the digest of the artifact to the status of a Program. The artifact itself is
// rendered when it is needed.
type Programs struct {
	// Client reads from a cache that has all Programs, APIReader from the API server.
	Client    client.Reader
	APIReader client.Reader
}

var _ Source = &Programs{}

// IsUsedBy implements Source.
func (p *Programs) IsUsedBy(stack *pulumiv1.Stack) bool { return stack.Spec.ProgramRef != nil }

// Handles implements Source.
func (p *Programs) Handles(from *autov1alpha1.UpdateSource) bool { return from.Program != nil }

// IsOwn implements Source.
func (p *Programs) IsOwn(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool {
	return from.Program != nil && from.Program.Name == stack.Spec.ProgramRef.Name && isSameDir(from.Dir, "")
}

// Forget implements Source.
func (p *Programs) Forget(types.NamespacedName) {}

// Key implements Source. The Program is in the namespace of the Stack.
func (p *Programs) Key(stack *pulumiv1.Stack) string {
	return programKey(types.NamespacedName{Namespace: stack.Namespace, Name: stack.Spec.ProgramRef.Name})
}

func programKey(name types.NamespacedName) string {
	return fluxKey{pulumiv1.GroupVersion.WithKind(pulumiv1.ProgramKind).GroupKind(), name}.String()
}

// ProgramCacheTransform removes from a Program what a cache must not keep, such as the program itself: it is rendered from an object that
// is read from the API server. Anybody who may create Programs can create thousands of one megabyte each.
func ProgramCacheTransform(object any) (any, error) {
	if found, ok := object.(*pulumiv1.Program); ok {
		found.Program = pulumiv1.ProgramSpec{}
	}
	return CacheTransform(object)
}

// Watch implements Source.
func (p *Programs) Watch(objects cache.Cache, stacksOf func(ctx context.Context, key string) []reconcile.Request) ctrlsource.Source {
	return ctrlsource.Kind(objects, &pulumiv1.Program{},
		handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, program *pulumiv1.Program) []reconcile.Request {
			return stacksOf(ctx, programKey(client.ObjectKeyFromObject(program)))
		}),
		predicate.TypedFuncs[*pulumiv1.Program]{UpdateFunc: func(e event.TypedUpdateEvent[*pulumiv1.Program]) bool {
			return programChanged(e.ObjectOld, e.ObjectNew)
		}})
}

// programChanged reports whether a Program offers another artifact, or none for another reason.
func programChanged(before, after *pulumiv1.Program) bool {
	was, is := before.Status.Artifact, after.Status.Artifact
	if (was == nil) != (is == nil) || is != nil && (was.Revision != is.Revision || was.Digest != is.Digest) {
		return true
	}
	return before.Generation != after.Generation || before.Status.ObservedGeneration != after.Status.ObservedGeneration ||
		conditions.GetMessage(before, meta.ReadyCondition) != conditions.GetMessage(after, meta.ReadyCondition)
}

// Resolve implements Source.
func (p *Programs) Resolve(ctx context.Context, stack *pulumiv1.Stack, live bool) (*Artifact, error) {
	reader := p.Client
	if live {
		reader = p.APIReader
	}
	key := types.NamespacedName{Namespace: stack.Namespace, Name: stack.Spec.ProgramRef.Name}
	found := &pulumiv1.Program{}
	if err := reader.Get(ctx, key, found); apierrors.IsNotFound(err) {
		return nil, programMissing(key)
	} else if err != nil {
		return nil, fmt.Errorf("read Program %s: %w", key, err)
	}
	published := found.Status.Artifact
	switch {
	case found.Status.ObservedGeneration != found.Generation || !conditions.Has(found, meta.ReadyCondition):
		// The Pulumi Kubernetes Operator sets observedGeneration of Programs too, but no condition.
		problem := programNotReady("Program %s has not been reconciled yet", key)
		problem.Pending = true
		return nil, problem
	case !conditions.IsReady(found) || published == nil:
		return nil, programNotReady("Program %s is not ready: %s", key, conditions.GetMessage(found, meta.ReadyCondition))
	}
	return &Artifact{
		Namespace: key.Namespace, URL: published.URL, Digest: published.Digest, Revision: published.Revision, Size: published.Size,
		Maker:     &programMaker{p.APIReader, key, published.Digest},
		Published: published.LastUpdateTime.Time,
		Watched:   true,
		Origin:    autov1alpha1.UpdateSource{Program: &autov1alpha1.ProgramSource{Name: key.Name}},
		Verification: Verification{Impossible: true,
			Problem: fmt.Sprintf("Program %s cannot be verified: use a GitRepository or an OCIRepository of Flux with spec.verify", key)},
	}, nil
}

func programMissing(key types.NamespacedName) *Problem {
	problem := waiting(pulumiv1.SourceNotFoundReason, "Program %s does not exist", key)
	problem.Watched = true
	return problem
}

func programNotReady(format string, args ...any) *Problem {
	problem := waiting(pulumiv1.SourceNotReadyReason, format, args...)
	problem.Watched = true
	return problem
}

// Reference implements Source. The artifact may be that of an earlier generation of the Program: then, or if the Program is deleted, its
// Maker fails with the kind NotFound.
func (p *Programs) Reference(namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	key := types.NamespacedName{Namespace: namespace, Name: from.Program.Name}
	return artifact.Reference{Namespace: namespace, Digest: from.Digest, Maker: &programMaker{p.APIReader, key, from.Digest}}, nil
}

// Locate implements Source.
func (p *Programs) Locate(_ context.Context, namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	return p.Reference(namespace, from)
}

// programMaker renders a Program, which it reads when the artifact is needed.
type programMaker struct {
	live    client.Reader
	program types.NamespacedName
	digest  string
}

// Key implements artifact.Maker.
func (m *programMaker) Key() string {
	return "program/" + m.program.String() + "@" + m.digest
}

// Make implements artifact.Maker.
func (m *programMaker) Make(ctx context.Context, to io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	found := &pulumiv1.Program{}
	if err := m.live.Get(ctx, m.program, found); apierrors.IsNotFound(err) {
		return artifact.NewMakeError(artifact.NotFound, programMissing(m.program))
	} else if err != nil {
		return fmt.Errorf("read Program %s: %w", m.program, err)
	}
	tarball, err := render.Program(found)
	var invalid *render.InvalidError
	switch {
	case errors.As(err, &invalid):
		return artifact.NewMakeError(artifact.NotFound, programNotReady("Program %s is not ready: %s", m.program, invalid))
	case err != nil:
		return artifact.NewMakeError(artifact.Unusable, fmt.Errorf("render Program %s: %w", m.program, err))
	case m.digest != "" && digest.FromBytes(tarball).String() != m.digest:
		return artifact.NewMakeError(artifact.NotFound, programNotReady("Program %s has been changed since", m.program))
	}
	_, err = to.Write(tarball)
	return err
}
