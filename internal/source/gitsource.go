package source

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/artifact/archive"
	"github.com/stack-controller/stack-controller/internal/git"
	"github.com/stack-controller/stack-controller/internal/notify"
)

const (
	// DefaultGitConcurrency is how many looks at repositories run at the same time.
	DefaultGitConcurrency = 16
	// maxPerHost is how many of them ask the same server.
	maxPerHost = 4

	// maxDescriptions bounds what is remembered of commits, about 500 bytes each; every commit takes two.
	maxDescriptions = 8192
)

// GitOptions are what a Git needs. Fields other than Live have a default.
type GitOptions struct {
	// Live reads Secrets and ConfigMaps from the API server.
	Live client.Reader
	// KnownHosts are the controller's own known hosts, in the format of OpenSSH.
	KnownHosts []byte
	// Timeout bounds one question to a server; default git.DefaultTimeout.
	Timeout time.Duration
	// CheckoutTimeout bounds one checkout; default git.DefaultCheckoutTimeout.
	CheckoutTimeout time.Duration
	// Concurrent is how many servers are asked at the same time; default DefaultGitConcurrency. No server is asked more than four
	// things at once.
	Concurrent int
	// Jitter spreads the looks: each interval is longer or shorter by up to this part of it, between 0 and 1.
	Jitter float64
	// Limits bounds a checkout.
	Limits archive.Limits
	// Dir is where checkouts are written; default is the system's directory for temporary files.
	Dir string
	// Log tells of problems with repositories; default is silence.
	Log logr.Logger
}

// gitClient is the part of git.Client that a Git uses.
type gitClient interface {
	Resolve(ctx context.Context, remote git.Remote, ref string) (git.Revision, error)
	Checkout(ctx context.Context, remote git.Remote, sha string) (*git.Checkout, error)
}

// Git finds the commits that refs of git repositories name, and makes artifacts of them. It looks at a ref once per interval,
// however many follow it, and remembers what it saw in memory only: after a restart everything is looked at once. It is a
// manager.Runnable.
type Git struct {
	options       GitOptions
	client        gitClient
	clock         clock.WithTicker
	subscriptions []*GitSubscription
	// descriptions has a CommitInfo by the key of the commit in its repository, and by its descriptionKey.
	descriptions *lru.Cache
	// wake is sent to when something is to be done earlier than the loop expects.
	wake chan struct{}

	mu        sync.Mutex
	polls     map[repositoryKey]*poll
	followers map[followerKey]*follower
	// users has the polls that read a Secret or ConfigMap.
	users map[objectReference]map[*poll]struct{}
	queue pollQueue
}

// NewGit makes a Git. It looks at nothing before it is started.
func NewGit(options GitOptions) *Git {
	if options.Concurrent <= 0 {
		options.Concurrent = DefaultGitConcurrency
	}
	if options.Timeout <= 0 {
		options.Timeout = git.DefaultTimeout
	}
	gitOptions := git.Options{
		Timeout: options.Timeout, CheckoutTimeout: options.CheckoutTimeout, KnownHosts: options.KnownHosts, Limits: options.Limits, Dir: options.Dir, Log: options.Log,
	}
	return newGit(options, git.NewClient(gitOptions), clock.RealClock{})
}

func newGit(options GitOptions, with gitClient, clock clock.WithTicker) *Git {
	return &Git{
		options:      options,
		client:       with,
		clock:        clock,
		descriptions: lru.New(maxDescriptions),
		wake:         make(chan struct{}, 1),
		polls:        map[repositoryKey]*poll{},
		followers:    map[followerKey]*follower{},
		users:        map[objectReference]map[*poll]struct{}{},
		queue:        newPollQueue(),
	}
}

// Subscribe returns what one controller asks, and is told, by. It has to be called before Start.
func (g *Git) Subscribe() *GitSubscription {
	s := &GitSubscription{
		git:     g,
		notices: notify.New(),
	}
	g.subscriptions = append(g.subscriptions, s)
	return s
}

// GitSubscription is how one controller follows refs for its objects.
type GitSubscription struct {
	git     *Git
	notices *notify.Notifier
}

// GitQuery asks for the commit that a ref names.
type GitQuery struct {
	// Waiter is the object that asks. It follows the ref until it asks for another one, or is forgotten.
	Waiter types.NamespacedName
	// Source has the repository and, as Ref, a branch, a tag, or a hash, full or in part. The Secrets that it names are in the
	// namespace of the Waiter.
	Source *autov1alpha1.GitSource
	// Interval is how old an answer may be; at least a second.
	Interval time.Duration
	// Token asks for an answer that is newer than the first call with this value. Empty asks for nothing.
	Token string
}

// Events sends the waiter of a Resolve, as an object that has only its namespace and name, when its answer has changed, or came
// after it was pending. A waiter that has not asked for a long time is sent once, too, to see whether it is still there. The
// channel is never closed.
func (s *GitSubscription) Events() <-chan event.GenericEvent {
	return s.notices.Events()
}

// Resolve returns the artifact of the commit that the ref names, as it was seen last. It never waits for a server, and follows the
// ref from then on: Events tells of the next answer. The digest is empty; the Reference has a Maker. A *Problem says why there is
// no artifact.
func (s *GitSubscription) Resolve(_ context.Context, query GitQuery) (*Artifact, error) {
	if problem := checkGitSource(query.Source); problem != nil {
		s.Forget(query.Waiter)
		return nil, problem
	}
	repo := repositoryOf(query.Waiter.Namespace, query.Source)
	if fullHash.MatchString(query.Source.Ref) {
		// There is nothing to look for.
		s.Forget(query.Waiter)
		return s.git.artifact(repo, query.Source, answer{revision: git.Revision{SHA: strings.ToLower(query.Source.Ref)}}), nil
	}
	found, problem := s.git.follow(s, repo, query)
	if problem != nil {
		return nil, problem
	}
	return s.git.artifact(repo, query.Source, found), nil
}

// Refresh is Resolve, and has the server asked soon whether the answer is still right: it may not be when the commit cannot be
// had. Events tells when it is not.
func (s *GitSubscription) Refresh(ctx context.Context, query GitQuery) (*Artifact, error) {
	found, err := s.Resolve(ctx, query)
	s.git.hurry(followerKey{s, query.Waiter})
	return found, err
}

// Forget ends the following of a ref for the waiter, which is deleted, suspended, or has another kind of source now.
func (s *GitSubscription) Forget(waiter types.NamespacedName) {
	s.git.forget(followerKey{s, waiter})
}

// artifact returns what the answer is for the source.
func (g *Git) artifact(repo gitRepository, source *autov1alpha1.GitSource, found answer) *Artifact {
	commit := source.DeepCopy()
	commit.Ref = found.revision.SHA
	return &Artifact{
		Reference:  artifact.Reference{Revision: found.revision.String(), Maker: g.maker(repo, found.revision.SHA)},
		Published:  found.since,
		Git:        commit,
		CommitInfo: g.commitInfo(repo, found.revision),
	}
}

// checkGitSource finds what can be found without asking anybody.
func checkGitSource(source *autov1alpha1.GitSource) *Problem {
	switch {
	case source == nil || source.URL == "":
		return invalidSource("the git source has no URL")
	case source.Ref == "":
		return invalidSource("the git source names no branch, tag or commit")
	}
	return nil
}

func invalidSource(format string, args ...any) *Problem {
	return permanent(pulumiv1.SpecInvalidReason, format, args...)
}
