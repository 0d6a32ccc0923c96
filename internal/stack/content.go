package stack

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
)

// contentView is what is known of the content that the Stack is made of. It is empty while the content is looked at, and when there
// was no reason to.
type contentView struct {
	// digest identifies the content.
	digest string
	// unmatched are the paths of the spec that the source does not have.
	unmatched []string
	// problem is why the artifact, and so its content, is not there.
	problem error
}

// observeContent looks at the content of a new revision when that decides whether there is anything to do.
func (r *Reconciler) observeContent(ctx context.Context, o *observation) error {
	if !contentMatters(*o) {
		return nil
	}
	if o.desired.selection == nil && o.artifact.Digest != "" {
		o.content.digest = o.artifact.Digest
		return nil
	}
	stored, err := r.requestArtifact(ctx, o)
	if err != nil {
		o.content.problem = err
		return nil
	}
	if stored == "" {
		return nil
	}
	return r.readContent(o)
}

// requestArtifact returns the digest of the artifact when it is in the store, and notes it. Nothing and no error mean that it is on
// its way; its end wakes the Stack.
func (r *Reconciler) requestArtifact(ctx context.Context, o *observation) (stored string, err error) {
	waiter := client.ObjectKeyFromObject(o.stack)
	stored, err = r.Artifacts.Request(o.artifact.Reference, waiter)
	if kind, ok := fetchErrorKind(err); ok && kind == artifact.NotFound {
		// The artifact was replaced while it waited: what the source says now counts.
		found, refreshErr := r.Sources.Refresh(ctx, o.stack)
		if refreshErr == nil && found != nil && found.Digest != o.artifact.Digest {
			o.artifact = found
			stored, err = r.Artifacts.Request(found.Reference, waiter)
		}
	}
	if err == nil && stored != "" {
		// The observed one may be shared.
		made := *o.artifact
		made.Digest = stored
		o.artifact = &made
	}
	return stored, err
}

// readContent finds out what the stored artifact has of the Stack's part. It leaves the digest empty while the artifact is read; the
// end of that wakes the Stack.
func (r *Reconciler) readContent(o *observation) error {
	o.content = contentView{}
	found, err := r.Contents.Request(o.artifact.Digest, o.desired.selection, client.ObjectKeyFromObject(o.stack))
	if err != nil {
		return fmt.Errorf("compare the content of %s: %w", describeRevision(o.artifact), err)
	}
	if found == nil {
		return nil
	}
	o.content = contentView{digest: found.Digest, unmatched: found.Unmatched}
	return nil
}

// contentMatters tells whether an update depends on nothing but the content of a new revision. A Stack that did not record what
// its last update was made of is updated, and so is one that asks for it with every revision.
func contentMatters(o observation) bool {
	last := o.stack.Status.LastUpdate
	switch {
	case o.update != nil, o.stack.Spec.Suspend, !o.stack.DeletionTimestamp.IsZero(), blocked(o) != nil:
		return false
	case o.artifact == nil, last == nil, last.ContentDigest == "", o.stack.Spec.UpdateOn == pulumiv1.UpdateOnRevision:
		return false
	}
	return last.Generation == o.stack.Generation && unhandledRequest(o.stack) == "" && last.LastAttemptedCommit != commitOf(o.artifact)
}

// newContent tells whether the source offers something else than the last attempt ran. Of a revision whose content is not known yet it
// says no: see contentPending.
func newContent(o observation) bool {
	last := o.stack.Status.LastUpdate
	newCommit := last.LastAttemptedCommit != commitOf(o.artifact)
	switch {
	case o.stack.Spec.UpdateOn == pulumiv1.UpdateOnRevision:
		newRevision := o.artifact != nil && last.Revision != "" && last.Revision != o.artifact.Revision
		return newCommit || newRevision
	case !newCommit || last.ContentDigest == "" || o.artifact == nil:
		return newCommit
	}
	return o.content.digest != "" && o.content.digest != last.ContentDigest
}

// contentPending returns how to go on with a new revision whose content is not known yet; nil when it is known, or does not matter. It
// shows nothing but problems: most new revisions of a repository with many stacks are none of this one.
func contentPending(o observation) *decision {
	switch {
	case o.content.problem != nil:
		return fetchProblem(o, o.content.problem)
	case contentMatters(o) && o.content.digest == "":
		return &decision{action: actionFetch, wake: byFetch, message: "fetching the artifact " + describeRevision(o.artifact), quiet: true}
	}
	return nil
}

// advance notes that the last attempt stands for the source's revision, too: what the Stack is made of is the same in both.
func advance(o *observation) {
	if o.artifact == nil || !o.stack.DeletionTimestamp.IsZero() {
		return
	}
	status := &o.stack.Status
	status.LastAttemptedRevision = o.artifact.Revision
	status.LastUpdate.LastAttemptedCommit = commitOf(o.artifact)
	if status.LastUpdate.State == pulumiv1.StackUpdateSucceeded {
		status.LastAppliedRevision = o.artifact.Revision
		status.LastUpdate.LastSuccessfulCommit = commitOf(o.artifact)
	}
}
