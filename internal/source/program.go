package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/program"
)

// programTimeout bounds the reading of a Program that is to be rendered.
const programTimeout = 30 * time.Second

// Programs resolves Programs. Their controller says in the status which artifact a Program is; the artifact itself is rendered
// when somebody needs it.
type Programs struct {
	// Client reads from a cache that has all Programs, Live from the API server.
	Client client.Reader
	Live   client.Reader
}

// ProgramOf returns the name of the Program that the Stack runs, which is in its own namespace, and false when it runs none.
func ProgramOf(stack *pulumiv1.Stack) (types.NamespacedName, bool) {
	if stack.Spec.ProgramRef == nil {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: stack.Namespace, Name: stack.Spec.ProgramRef.Name}, true
}

// ProgramChanged tells whether Stacks have to look at the Program again: it offers something else, or nothing for another reason.
func ProgramChanged(before, after *pulumiv1.Program) bool {
	was, is := before.Status.Artifact, after.Status.Artifact
	if (was == nil) != (is == nil) || is != nil && (was.Revision != is.Revision || was.Digest != is.Digest) {
		return true
	}
	return before.Generation != after.Generation || before.Status.ObservedGeneration != after.Status.ObservedGeneration ||
		conditions.GetMessage(before, meta.ReadyCondition) != conditions.GetMessage(after, meta.ReadyCondition)
}

// Resolve returns the artifact of the Stack's Program. A *Problem says why there is none; any other error is a failure to ask.
func (p *Programs) Resolve(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	return p.resolve(ctx, p.Client, stack)
}

// Refresh is Resolve with the Program as the API server has it.
func (p *Programs) Refresh(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	return p.resolve(ctx, p.Live, stack)
}

func (p *Programs) resolve(ctx context.Context, reader client.Reader, stack *pulumiv1.Stack) (*Artifact, error) {
	key, ok := ProgramOf(stack)
	if !ok {
		return nil, fmt.Errorf("stack %s/%s has no Program", stack.Namespace, stack.Name)
	}
	found := &pulumiv1.Program{}
	if err := reader.Get(ctx, key, found); apierrors.IsNotFound(err) {
		return nil, programMissing(key)
	} else if err != nil {
		return nil, fmt.Errorf("read Program %s: %w", key, err)
	}
	published := found.Status.Artifact
	switch {
	case found.Status.ObservedGeneration != found.Generation || !conditions.Has(found, meta.ReadyCondition):
		// The Pulumi Kubernetes Operator observed Programs too, and left no condition.
		problem := waiting(pulumiv1.SourceNotReadyReason, "Program %s has not been looked at yet", key)
		problem.Pending, problem.Watched = true, true
		return nil, problem
	case !conditions.IsReady(found) || published == nil:
		return nil, programNotReady(key, conditions.GetMessage(found, meta.ReadyCondition))
	}
	reference := p.Reference(key.Namespace, key.Name, published.Digest)
	reference.URL, reference.Revision, reference.Size = published.URL, published.Revision, published.Size
	return &Artifact{
		Reference: reference,
		Published: published.LastUpdateTime.Time,
		Program:   &autov1alpha1.ProgramSource{Name: key.Name},
	}, nil
}

func programMissing(key types.NamespacedName) *Problem {
	problem := waiting(pulumiv1.SourceNotFoundReason, "Program %s does not exist", key)
	problem.Watched = true
	return problem
}

func programNotReady(key types.NamespacedName, why string) *Problem {
	problem := waiting(pulumiv1.SourceNotReadyReason, "Program %s is not ready: %s", key, why)
	problem.Watched = true
	return problem
}

// Reference returns the artifact with the digest that the Program is, or was. Making it fails with the kind NotFound when the
// Program is gone or has become another one.
func (p *Programs) Reference(namespace, name, digest string) artifact.Reference {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	return artifact.Reference{Digest: digest, Maker: &programMaker{live: p.Live, program: key, digest: digest}}
}

// programMaker renders a Program as it is when the artifact is needed.
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
func (m *programMaker) Make(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	found := &pulumiv1.Program{}
	if err := m.live.Get(ctx, m.program, found); apierrors.IsNotFound(err) {
		return nil, artifact.NewMakeError(artifact.NotFound, programMissing(m.program))
	} else if err != nil {
		return nil, fmt.Errorf("read Program %s: %w", m.program, err)
	}
	tarball, err := program.Render(found)
	var invalid *program.InvalidError
	switch {
	case errors.As(err, &invalid):
		return nil, artifact.NewMakeError(artifact.NotFound, programNotReady(m.program, invalid.Error()))
	case err != nil:
		return nil, artifact.NewMakeError(artifact.Unusable, fmt.Errorf("render Program %s: %w", m.program, err))
	case m.digest != "" && digest.FromBytes(tarball).String() != m.digest:
		problem := waiting(pulumiv1.SourceNotReadyReason, "Program %s has been changed since", m.program)
		problem.Watched = true
		return nil, artifact.NewMakeError(artifact.NotFound, problem)
	}
	return io.NopCloser(bytes.NewReader(tarball)), nil
}
