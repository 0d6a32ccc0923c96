package rollout

import (
	"context"
	"fmt"
	"time"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/plaintext"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// maxSources is how many sources besides its own a StackRollout looks at: each tenant may have one of the same repository.
const maxSources = 1000

// sources are those of the Stacks of a StackRollout: the one in spec.sourceRef, and others of the same kind and repository. Each of these is
// polled at its own interval, so it may be behind or ahead.
type sources struct {
	resolve func(*pulumiv1.Stack) (*source.Artifact, error)
	keyOf   func(*pulumiv1.Stack) string
	// kind, key and repository are those of spec.sourceRef; repository is empty if it has none. unknown is true while that source offers nothing.
	kind, key, repository string
	unknown               bool
	// others are the other sources that were looked at, by their keys.
	others map[string]*otherSource
	// published is when one of them has last published something, and unwatched says that changes of one of them are not noticed.
	published time.Time
	unwatched bool
}

// otherSource is what another source offers, or why Stacks of it do not take part.
type otherSource struct {
	offer   autov1alpha1.RolloutRevision
	problem string
}

// sourcesLike returns the sources for one reconcile of the StackRollout, whose own source offers the artifact; nil when it offers none.
func (r *Reconciler) sourcesLike(ctx context.Context, rollout *autov1alpha1.StackRollout, offered *source.Artifact) *sources {
	s := &sources{
		resolve: func(stack *pulumiv1.Stack) (*source.Artifact, error) { return r.Sources.Resolve(ctx, stack) }, keyOf: r.Sources.Key,
		kind: rollout.Spec.SourceRef.Kind, key: r.Sources.Key(follower(rollout)), unknown: offered == nil, others: map[string]*otherSource{},
	}
	if offered != nil {
		s.repository = offered.Repository
	}
	return s
}

// check returns why the Stack cannot take part; empty when it can.
func (s *sources) check(stack *pulumiv1.Stack) string {
	key := s.keyOf(stack)
	switch {
	case key != "" && key == s.key:
		return ""
	case key == "" || stack.Spec.FluxSource == nil || stack.Spec.FluxSource.SourceRef.Kind != s.kind || s.repository == "" && !s.unknown:
		return "its source is not the one in spec.sourceRef"
	case s.unknown:
		return "" // nothing is released now
	}
	other := s.others[key]
	if other == nil {
		if len(s.others) >= maxSources {
			return fmt.Sprintf("the Stacks have more than %d other sources", maxSources)
		}
		other = &otherSource{}
		s.others[key] = other
		switch found, err := s.resolve(asNew(stack)); {
		case err != nil || found == nil:
			// It takes part, and its wave waits: without it, the next wave would begin.
		case found.Repository != s.repository:
			other.problem = plaintext.Cut(fmt.Sprintf("its source is of %s, and spec.sourceRef of %s", found.Repository, s.repository), 200)
		default:
			other.offer = autov1alpha1.RolloutRevision{Revision: found.Revision, Digest: found.Digest}
			if s.unwatched = s.unwatched || !found.Watched; found.Published.After(s.published) {
				s.published = found.Published
			}
		}
	}
	return other.problem
}

// asNew returns the Stack as if it had run nothing yet. What it has run makes a source look again, at the API server, and a StackRollout would do so
// for each of its sources, in each decision. A source of which the cache is behind is only behind for a moment longer.
func asNew(stack *pulumiv1.Stack) *pulumiv1.Stack {
	fresh := &pulumiv1.Stack{Namespace: stack.Namespace, Name: stack.Name, Spec: stack.Spec}
	fresh.Status.VerifiedDigest, fresh.Status.EarlierVerifiedDigests = stack.Status.VerifiedDigest, stack.Status.EarlierVerifiedDigests
	return fresh
}

// isBehind reports whether the source of the Stack does not offer the target: it was not polled since, or has something newer already.
func (s *sources) isBehind(stack *pulumiv1.Stack, status *autov1alpha1.StackRolloutStatus) bool {
	key := s.keyOf(stack)
	other := s.others[key]
	return key != s.key && (other == nil || status.Target == nil || !waves.Same(other.offer, status.Target.RolloutRevision))
}
