// Package source finds the artifact that a Stack names. A source of any kind becomes an artifact: a revision, a digest, and a place to get
// a tarball from.
//
// Each kind of source implements Source in a file of its own: GitSubscriber, Flux and Programs. Controllers use a Set of them and
// do not know the kinds. CONTRIBUTING.md has the steps to add one.
package source

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
)

// Source is a kind of source. An error of type *Problem says why there is no artifact. Any other error means that the source could not be
// read.
type Source interface {
	// IsUsedBy reports whether the Stack takes its program from a source of this kind.
	IsUsedBy(stack *pulumiv1.Stack) bool
	// Resolve returns the artifact that the source of the Stack offers now, from a cache unless live is set.
	Resolve(ctx context.Context, stack *pulumiv1.Stack, live bool) (*Artifact, error)
	// Forget is called when the Stack does not need a source of this kind, or no longer needs it.
	Forget(stack types.NamespacedName)
	// Key identifies the source of the Stack in an index; empty when Watch does not need the index.
	Key(stack *pulumiv1.Stack) string
	// Watch returns a source of events that wakes the Stacks of a source that has changed. stacksOf returns the Stacks with that Key.
	Watch(objects cache.Cache, stacksOf func(ctx context.Context, key string) []reconcile.Request) ctrlsource.Source

	// IsOwn reports whether the artifact that an Update runs comes from the source that the Stack names, of this kind, and the program from
	// the directory that the Stack names. If a source serves more than what it publishes, as a git server does, only artifacts that the
	// Stack has run, or is about to run, count.
	IsOwn(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool
	// Handles reports whether the Update runs an artifact of this kind of source.
	Handles(from *autov1alpha1.UpdateSource) bool
	// Reference returns the reference by which the artifact is found in the store. The namespace must be allowed to use the source.
	// Reference reads nothing from the cluster or from a server.
	Reference(namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error)
	// Locate returns a Reference that also has what is needed to get an artifact that is not stored.
	Locate(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error)
}

// verifier is a Source whose artifacts Flux can verify.
type verifier interface {
	// Verification returns what the source reports now about the artifact that the Update in the namespace runs.
	Verification(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (Verification, error)
}

// Artifact is what a source offers now.
type Artifact struct {
	artifact.Reference
	// Origin names the source as an Update does, and the commit as far as it is known. UpdateSource completes it.
	Origin autov1alpha1.UpdateSource
	// Repository is the URL that the source fetches from, with what it fetches there; empty for a source of a kind that has no repository.
	Repository string
	// Published is when the source last changed, to the second.
	Published time.Time
	// Verification says whether Flux has verified the artifact.
	Verification Verification
	// Watched is true when a change of the source wakes the Stack; otherwise the caller has to resolve the source again after some time.
	Watched bool
}

// UpdateSource returns the source of an Update that runs the artifact, with the project in the directory.
func (a *Artifact) UpdateSource(dir string) *autov1alpha1.UpdateSource {
	from := a.Origin.DeepCopy()
	from.Digest, from.Revision, from.Size, from.Dir = a.Digest, a.Revision, a.Size, dir
	return from
}

// Commit returns what the status of a Stack records as its commit.
func (a *Artifact) Commit() string {
	return CommitOf(a.UpdateSource(""))
}

// CommitOf returns what the status of a Stack records as the commit of an Update: the hash of a git commit, and the digest for all other
// sources.
func CommitOf(from *autov1alpha1.UpdateSource) string {
	if from.Git != nil {
		return from.Git.Ref
	}
	return from.Digest
}

// Set has the kinds of sources that a controller uses.
type Set struct {
	// Sources are the kinds. If a Stack names sources of several kinds, the first one is used.
	Sources []Source
	// RequireVerified allows every Stack to run only artifacts that Flux has verified.
	RequireVerified bool

	// seen has, by the key of a source, the digest of the artifact that it had when the API server was asked last, for maxSeen sources.
	seen     *lru.Cache
	makeSeen sync.Once
}

// maxSeen bounds what is remembered of sources. What is forgotten costs a request.
const maxSeen = 10_000

// Resolve returns the artifact that the source of the stack offers now, or nil for a stack without a source. A *Problem says why the source
// offers no artifact, or none that the stack may run. Any other error means that the source could not be read.
func (s *Set) Resolve(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	return s.resolve(ctx, stack, false)
}

// Refresh is like Resolve, but reads from the API server instead of a cache: when the download of an artifact fails with "not found", the
// cache may be behind. A git server is polled soon, but Refresh does not wait for it.
func (s *Set) Refresh(ctx context.Context, stack *pulumiv1.Stack) (*Artifact, error) {
	return s.resolve(ctx, stack, true)
}

func (s *Set) resolve(ctx context.Context, stack *pulumiv1.Stack, live bool) (*Artifact, error) {
	used := s.of(stack)
	for _, kind := range s.Sources {
		if kind != used {
			kind.Forget(client.ObjectKeyFromObject(stack))
		}
	}
	if used == nil {
		return nil, nil
	}
	found, err := used.Resolve(ctx, stack, live)
	if err == nil && !live && mayBeOutdated(stack, found) && s.lastSeen(used.Key(stack)) != found.Digest {
		live = true
		found, err = used.Resolve(ctx, stack, true)
	}
	if err == nil && live {
		s.seenDigests().Add(used.Key(stack), found.Digest)
	}
	if err == nil && s.RequiresVerified(stack) {
		err = found.Verification.check(found.Digest, stack.Status.VerifiedDigests()...)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// lastSeen returns the digest of the artifact that the source with the key had when the API server was asked last; empty if it is not known.
// A cache that has the same is not behind.
func (s *Set) lastSeen(key string) string {
	known, _ := s.seenDigests().Get(key)
	digest, _ := known.(string)
	return digest
}

func (s *Set) seenDigests() *lru.Cache {
	s.makeSeen.Do(func() { s.seen = lru.New(maxSeen) })
	return s.seen
}

// mayBeOutdated reports whether the artifact, which comes from a cache, is another one than the Stack has run or is running, and may be older. A
// cache that has just been filled may be behind, because the API server that filled it is: without a second look, a Stack would be rolled back, or
// would lose an update that waits, or the approvals of its plan.
func mayBeOutdated(stack *pulumiv1.Stack, found *Artifact) bool {
	last, current, plan := stack.Status.LastUpdate, stack.Status.CurrentUpdate, stack.Status.Plan
	switch {
	case !found.Watched || found.Digest == "": // it was read just now, or is a commit of a git server
		return false
	case current != nil && current.Commit == found.Digest, plan != nil && plan.Commit == found.Digest:
		return false
	case current != nil && current.Commit != "", stack.Spec.Approval != nil && plan != nil && slices.Contains(openStates, plan.State):
		return true // when their artifact was published is not known
	case last == nil || last.LastAttemptedCommit == found.Digest:
		return false
	}
	return !found.Published.After(last.LastResyncTime.Time)
}

// openStates are the states of a plan that is still to be carried out, or whose approvals may count for the next one.
var openStates = []pulumiv1.PlanState{pulumiv1.PlanPending, pulumiv1.PlanApproved, pulumiv1.PlanRejected, pulumiv1.PlanStale}

// Earlier returns an artifact that the source of the offer offered before, with its commit, see CommitOf, and its revision. Whether the
// artifact can still be had is not known.
func (s *Set) Earlier(namespace string, offer *Artifact, commit, revision string) (*Artifact, error) {
	from := offer.UpdateSource("")
	from.Digest, from.Revision, from.Size, from.Commit = commit, revision, nil, nil
	if from.Git != nil {
		from.Digest, from.Git.Ref = "", commit
	}
	reference, err := s.OfUpdate(from).Reference(namespace, from)
	if err != nil {
		return nil, err
	}
	reference.Revision = revision
	return &Artifact{Reference: reference, Origin: *from, Watched: offer.Watched}, nil
}

func (s *Set) of(stack *pulumiv1.Stack) Source {
	for _, kind := range s.Sources {
		if kind.IsUsedBy(stack) {
			return kind
		}
	}
	return nil
}

// Forget is called when a stack no longer needs its source, because it is deleted or suspended.
func (s *Set) Forget(stack types.NamespacedName) {
	for _, kind := range s.Sources {
		kind.Forget(stack)
	}
}

// Key identifies the source of the Stack in an index; empty when the index does not need the source.
func (s *Set) Key(stack *pulumiv1.Stack) string {
	if used := s.of(stack); used != nil {
		return used.Key(stack)
	}
	return ""
}

// Watches returns the sources of events that wake the Stacks whose source has changed. stacksOf returns the Stacks with a Key.
func (s *Set) Watches(objects cache.Cache, stacksOf func(ctx context.Context, key string) []reconcile.Request) []ctrlsource.Source {
	var watches []ctrlsource.Source
	for _, kind := range s.Sources {
		watches = append(watches, kind.Watch(objects, stacksOf))
	}
	return watches
}

// OfUpdate returns the kind of source whose artifact the Update runs; nil when there is none.
func (s *Set) OfUpdate(from *autov1alpha1.UpdateSource) Source {
	for _, kind := range s.Sources {
		if from != nil && kind.Handles(from) {
			return kind
		}
	}
	return nil
}

// IsOwn reports whether what an Update runs comes from the source of the Stack, see Source.
func (s *Set) IsOwn(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool {
	kind := s.OfUpdate(from)
	return kind != nil && from.URL == "" && kind == s.of(stack) && kind.IsOwn(stack, from)
}

// isSameDir reports whether two directories of an artifact are the same.
func isSameDir(a, b string) bool {
	return path.Join("/", a) == path.Join("/", b)
}

// Verification is what a source reported, in one read, about the signature of its artifact.
type Verification struct {
	// Verified says that Flux has verified the artifact.
	Verified bool
	// Lasting says that an artifact that was verified before still counts as verified: the source names a key or an identity, and does not
	// refuse what it publishes.
	Lasting bool
	// Revoked says that the source refuses what it publishes, or verifies nothing: what was verified before no longer counts, also later.
	Revoked bool
	// Impossible says that no source of this kind is ever verified.
	Impossible bool
	// Problem names the source and what to do; empty when the artifact is verified.
	Problem string
}

// check returns a *Problem unless Flux has verified the artifact with the digest, or the digest is one of those that were recorded as verified.
// So a verified artifact may still run while its source is getting the next revision.
func (v Verification) check(digest string, remembered ...string) error {
	if v.Verified || v.Lasting && digest != "" && slices.Contains(remembered, digest) {
		return nil
	}
	return &Problem{Reason: pulumiv1.SourceNotVerifiedReason, Message: v.Problem, Permanent: v.Impossible, Revoked: v.Revoked}
}

// RequiresVerified reports whether the Stack may run only artifacts that Flux has verified.
func (s *Set) RequiresVerified(stack *pulumiv1.Stack) bool {
	return s.RequireVerified || stack.Spec.RequireVerified
}

// CheckUnsourced returns a *Problem if the stack must not run the program that comes with its workspace, because Flux does not verify such
// a program.
func (s *Set) CheckUnsourced(stack *pulumiv1.Stack) error {
	if !s.RequiresVerified(stack) {
		return nil
	}
	return permanent(pulumiv1.SourceNotVerifiedReason,
		"the program comes with the workspace, and is not verified: name a GitRepository or an OCIRepository of Flux with spec.verify in spec.fluxSource")
}

// CheckVerified returns a *Problem unless Flux has verified the artifact that an Update in the namespace runs, now or when its digest was
// recorded (remembered).
func (s *Set) CheckVerified(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource, remembered ...string) error {
	kind, ok := s.OfUpdate(from).(verifier)
	if !ok {
		return permanent(pulumiv1.SourceNotVerifiedReason,
			"only what Flux has verified may run: name a GitRepository or an OCIRepository with spec.verify in spec.source.sourceRef")
	}
	verification, err := kind.Verification(ctx, namespace, from)
	if err != nil {
		return err
	}
	return verification.check(from.Digest, remembered...)
}

// Problem says why a Stack has no artifact to run. It is not a failure of the Stack's program: waiting for a source never consumes an
// attempt. Callers must not modify it.
type Problem struct {
	// Reason is the condition reason, one of the source reasons of the Stack API.
	Reason string
	// Message is for the user: it names the object and what is wrong with it.
	Message string
	// Permanent is true when only an edit by a human can solve the problem.
	Permanent bool
	// Watched is true when a change of the source wakes the Stack; otherwise the caller has to resolve the source again after some time.
	Watched bool
	// Pending is true when the answer is not there yet and nothing is wrong: the source is being polled for the first time or on request,
	// or a Program was not reconciled yet.
	Pending bool
	// Revoked is true when a digest that was recorded as verified no longer counts, see Verification.
	Revoked bool
}

// Error implements error.
func (p *Problem) Error() string {
	return p.Message
}

func waiting(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func permanent(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Permanent: true}
}

func invalidSource(format string, args ...any) *Problem {
	return permanent(pulumiv1.SpecInvalidReason, format, args...)
}
