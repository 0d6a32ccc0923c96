package source

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/notify"
	"github.com/stack-controller/stack-controller/internal/references"
	"github.com/stack-controller/stack-controller/internal/source/artifact"
	"github.com/stack-controller/stack-controller/internal/source/git"
)

// maxDescriptions is how many descriptions of commits are kept, of about 500 bytes each.
const maxDescriptions = 4096

// GitOptions are the options of a Git. Fields other than APIReader have a default.
type GitOptions struct {
	// Options are the options of the git client.
	git.Options
	// APIReader reads Secrets and ConfigMaps from the API server.
	APIReader client.Reader
	// Jitter spreads the polls: each interval is longer or shorter by up to this part of it, between 0 and 1.
	Jitter float64
	// StoreDir is a directory on the disk of the store of artifacts. The store makes room when that disk is full, and not when another one is.
	StoreDir string
	// Log receives problems with repositories. By default nothing is logged.
	Log logr.Logger
}

// gitClient is the part of git.Client that a Git uses.
type gitClient interface {
	Resolve(ctx context.Context, remote git.Remote, ref string) (git.Revision, error)
	ResolveName(ctx context.Context, remote git.Remote, ref string) (git.Revision, error)
	Archive(ctx context.Context, remote git.Remote, sha string, w io.Writer) (git.Commit, error)
}

// Git finds the commits that refs of git repositories name, and makes artifacts of them. It polls a ref once per interval, however many
// objects subscribe to it. It keeps the results only in memory, so after a restart every ref is polled once. It is a manager.Runnable.
type Git struct {
	options     GitOptions
	client      gitClient
	clock       clock.WithTicker
	concurrent  int
	subscribers []*GitSubscriber
	// descriptions has a CommitInfo by the key of the commit in its repository.
	descriptions *lru.Cache
	pauses       *pauses
	// wake wakes the loop when something is due earlier than the loop expects.
	wake chan struct{}

	mu            sync.Mutex
	polls         map[repositoryKey]*poll
	subscriptions map[subscriptionKey]*subscription
	// readers has the polls that read a Secret or ConfigMap.
	readers map[references.Key]sets.Set[*poll]
	queue   pollQueue
}

// NewGit returns a Git. It polls nothing before it is started.
func NewGit(options GitOptions) *Git {
	return newGit(options, git.NewClient(options.Options), clock.RealClock{})
}

func newGit(options GitOptions, with gitClient, clock clock.WithTicker) *Git {
	return &Git{
		options:       options,
		client:        with,
		clock:         clock,
		concurrent:    gitConcurrency,
		descriptions:  lru.New(maxDescriptions),
		pauses:        newPauses(clock),
		wake:          make(chan struct{}, 1),
		polls:         map[repositoryKey]*poll{},
		subscriptions: map[subscriptionKey]*subscription{},
		readers:       map[references.Key]sets.Set[*poll]{},
		queue:         newPollQueue(),
	}
}

// NewSubscriber returns the subscriber for one controller, which subscribes to refs and is notified through it. It has to be called before
// Start.
func (g *Git) NewSubscriber() *GitSubscriber {
	s := &GitSubscriber{git: g, notices: notify.New()}
	g.subscribers = append(g.subscribers, s)
	return s
}

// GitSubscriber subscribes the objects of one controller to refs. It is the Source of Stacks that name a git repository.
type GitSubscriber struct {
	git     *Git
	notices *notify.Notifier
}

var _ Source = &GitSubscriber{}

// GitQuery asks for the commit that a ref names.
type GitQuery struct {
	// Waiter is the object that asks. It is subscribed to the ref until it asks for another one, or is forgotten.
	Waiter types.NamespacedName
	// Source has the repository and, as Ref, a branch, a tag, or a hash, full or in part. The Secrets that it names are in the
	// namespace of the Waiter.
	Source *autov1alpha1.GitSource
	// NameOnly says that the Ref is a name and never a hash, whatever its letters are.
	NameOnly bool
	// Interval is how old an answer may be; at least a second.
	Interval time.Duration
	// Token asks for an answer that is newer than the first call with this value. Empty asks for nothing.
	Token string
}

// Events returns the channel of notifications. An event has the waiter of a query, as an object with only a namespace and a name. It is
// sent when the answer has changed, or has come after it was pending. A waiter that has not asked for a long time is also notified once, to
// find out whether it still exists. The channel is never closed.
func (s *GitSubscriber) Events() <-chan event.GenericEvent {
	return s.notices.Events()
}

// Subscribe returns the artifact of the commit that the ref named at the last poll. It never waits for a server. It subscribes the waiter
// to the ref, so Events notifies the waiter of the next answer. The digest is empty; the Reference has a Maker. A *Problem says why there
// is no artifact.
func (s *GitSubscriber) Subscribe(query GitQuery) (*Artifact, error) {
	if err := checkGitSource(query.Source); err != nil {
		s.Forget(query.Waiter)
		return nil, err
	}
	repo := repositoryOf(query.Waiter.Namespace, query.Source)
	found := answer{revision: git.Revision{SHA: strings.ToLower(query.Source.Ref)}}
	if fullHash.MatchString(query.Source.Ref) && !query.NameOnly {
		// There is nothing to poll.
		s.Forget(query.Waiter)
	} else {
		var problem *Problem
		if found, problem = s.git.subscribe(s, repo, query); problem != nil {
			return nil, problem
		}
	}
	commit := query.Source.DeepCopy()
	commit.Ref, commit.Dir = found.revision.SHA, ""
	return &Artifact{
		Namespace: query.Waiter.Namespace, Revision: found.revision.String(), Maker: &gitCommit{s.git, query.Waiter.Namespace, repo, found.revision.SHA},
		Published: found.since,
		Watched:   true,
		Origin:    autov1alpha1.UpdateSource{Git: commit, Commit: s.git.describe(repo, found.revision)},
		Verification: Verification{Impossible: true,
			Problem: "the repository in spec.projectRepo is not verified: use a GitRepository of Flux with spec.verify, and name it in spec.fluxSource"},
	}, nil
}

// Forget ends the subscription of the waiter, which is deleted, suspended, or has another kind of source now.
func (s *GitSubscriber) Forget(waiter types.NamespacedName) {
	s.git.forget(subscriptionKey{s, waiter})
}

// IsOwn implements Source. A git server serves commits that are not on the branch of the Stack, and those of forks, so the status of the Stack
// has to have the commit.
func (s *GitSubscriber) IsOwn(stack *pulumiv1.Stack, from *autov1alpha1.UpdateSource) bool {
	if from.Git == nil || from.Git.URL != stack.Spec.ProjectRepo || !isSameDir(from.Dir, stack.Spec.RepoDir) {
		return false
	}
	known := []string{stack.Spec.Commit}
	if last := stack.Status.LastUpdate; last != nil {
		known = append(known, last.LastAttemptedCommit, last.LastSuccessfulCommit)
	}
	if current := stack.Status.CurrentUpdate; current != nil {
		known = append(known, current.Commit)
	}
	if plan := stack.Status.Plan; plan != nil {
		known = append(known, plan.Commit)
	}
	return from.Git.Ref != "" && slices.Contains(known, from.Git.Ref)
}

// IsUsedBy implements Source.
func (s *GitSubscriber) IsUsedBy(stack *pulumiv1.Stack) bool { return stack.HasGitSource() }

// Resolve implements Source. With live, Resolve does not wait for the server either: the ref is polled soon, because the last answer may be
// outdated if its commit could not be fetched. Events notifies the Stack if the answer has changed.
func (s *GitSubscriber) Resolve(_ context.Context, stack *pulumiv1.Stack, live bool) (*Artifact, error) {
	waiter := client.ObjectKeyFromObject(stack)
	from, err := gitSourceOf(stack)
	if err != nil {
		s.Forget(waiter)
		return nil, err
	}
	found, err := s.Subscribe(GitQuery{
		Waiter: waiter, Source: from, NameOnly: stack.Spec.Branch != "", Interval: stack.GetResyncInterval(), Token: requestToken(stack)})
	if live {
		s.git.pollSoon(subscriptionKey{s, waiter})
	}
	return found, err
}

// requestToken returns the requests in the annotations that are not recorded as handled in the status; empty if there are none.
func requestToken(stack *pulumiv1.Stack) string {
	var tokens []string
	for _, request := range [][2]string{
		{stack.Annotations[meta.ReconcileRequestAnnotation], stack.Status.LastHandledReconcileAt},
		{stack.Annotations[pulumiv1.ReconcileRequestAnnotation], stack.Status.ObservedReconcileRequest},
		{stack.Annotations[pulumiv1.LastUpdateAnnotation], stack.Status.ObservedLastUpdateRequest},
	} {
		if token, handled := request[0], request[1]; token != "" && token != handled {
			tokens = append(tokens, token)
		}
	}
	return strings.Join(tokens, "\n")
}

// Key implements Source. It is empty, because Events name the Stacks themselves.
func (s *GitSubscriber) Key(*pulumiv1.Stack) string { return "" }

// Watch implements Source.
func (s *GitSubscriber) Watch(cache.Cache, func(context.Context, string) []reconcile.Request) ctrlsource.Source {
	return ctrlsource.Channel(s.Events(), &handler.EnqueueRequestForObject{})
}

// Handles implements Source.
func (s *GitSubscriber) Handles(from *autov1alpha1.UpdateSource) bool { return from.Git != nil }

// Reference implements Source. The ref of the git source is the full hash of the commit; the digest may be unknown.
func (s *GitSubscriber) Reference(namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	if err := checkGitSource(from.Git); err != nil {
		return artifact.Reference{}, err
	}
	if !fullHash.MatchString(from.Git.Ref) {
		return artifact.Reference{}, invalidSource("the commit %q of the git source is not a full hash", from.Git.Ref)
	}
	return artifact.Reference{Namespace: namespace, Maker: &gitCommit{s.git, namespace, repositoryOf(namespace, from.Git), from.Git.Ref}, Digest: from.Digest}, nil
}

// Locate implements Source. It reads the Secrets of the repository, and fails when one is missing.
func (s *GitSubscriber) Locate(ctx context.Context, namespace string, from *autov1alpha1.UpdateSource) (artifact.Reference, error) {
	reference, err := s.Reference(namespace, from)
	if err == nil {
		err = s.git.checkSecrets(ctx, repositoryOf(namespace, from.Git))
	}
	return reference, err
}
