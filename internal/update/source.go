package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/source"
)

// commitInterval is how old the answer of a git server may be while an Update waits. Its Update asked for a fresh one, and is to run what
// that said.
const commitInterval = time.Hour

// observeSource finds out which artifact the operation runs, and has it fetched or made when it is not in the store. The Update names
// it, else its Workspace does, else it is the one of the Update before. An operation whose program is elsewhere has none.
func (r *Reconciler) observeSource(ctx context.Context, o *observation) (err error) {
	spec := &o.workspace.Spec
	switch {
	case o.update.Spec.Source != nil:
		o.source = o.update.Spec.Source
	case spec.Flux != nil:
		o.source = &autov1alpha1.UpdateSource{URL: spec.Flux.URL, Digest: spec.Flux.Digest, Dir: spec.Flux.Dir}
	case spec.Local != nil || spec.ProjectInfo != nil:
	case spec.Git != nil:
		o.source, err = r.commitOf(ctx, o.update, spec.Git)
	default:
		o.source, err = r.inheritedSource(ctx, o.workspace, o.update)
	}
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		o.artifact = artifactView{err: problem}
		return nil
	}
	if err != nil {
		return err
	}
	return r.requestArtifact(ctx, o)
}

// commitOf returns the commit that the repository of a Workspace has for the Update. The Update keeps to one that it began with
// as long as this controller runs: it is looked for once.
func (r *Reconciler) commitOf(ctx context.Context, update *autov1alpha1.Update, git *autov1alpha1.GitSource) (*autov1alpha1.UpdateSource, error) {
	found, err := r.commits.Resolve(ctx, source.GitQuery{
		Waiter:   ctrlclient.ObjectKeyFromObject(update),
		Source:   git,
		Interval: commitInterval,
		Token:    string(update.UID),
	})
	if err != nil {
		return nil, err
	}
	return &autov1alpha1.UpdateSource{Git: found.Git, Digest: found.Digest, Revision: found.Revision, Dir: git.Dir, Commit: found.CommitInfo}, nil
}

// requestArtifact asks the store for the artifact of the operation, and starts to fetch or make it when it is not there.
func (r *Reconciler) requestArtifact(ctx context.Context, o *observation) error {
	if o.source == nil {
		o.artifact = artifactView{ready: true}
		return nil
	}
	if digest := o.source.Digest; digest != "" && r.store.Has(digest) {
		o.artifact = artifactView{ready: true, digest: digest}
		return nil
	}
	reference, err := r.referenceTo(ctx, o.update.Namespace, o.source)
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		o.artifact = artifactView{err: problem}
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the artifact of the update: %w", err)
	}
	stored, err := r.artifacts.Request(reference, ctrlclient.ObjectKeyFromObject(o.update))
	o.artifact = artifactView{ready: err == nil && stored != "", digest: stored, err: err}
	return nil
}

// referenceTo returns the artifact, and how it is made when nobody serves it.
func (r *Reconciler) referenceTo(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	switch {
	case from.Git != nil:
		return r.repositories.Reference(ctx, namespace, from.Git, from.Digest)
	case from.Program != nil:
		return r.programs.Reference(namespace, from.Program.Name, from.Digest), nil
	}
	return artifact.Reference{URL: from.URL, Digest: from.Digest, Revision: from.Revision, Size: from.Size}, nil
}
