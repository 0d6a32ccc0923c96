package localsystem

import (
	"context"
	"fmt"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
)

// Rollout has the times at which the steps of a commit on its way into the Stack's status were seen, from outside and with one clock.
type Rollout struct {
	// SHA is the commit.
	SHA string
	// Digest is the digest of its artifact.
	Digest string

	// Pushed is when the git server had the commit.
	Pushed time.Time
	// Artifact is when the GitRepository had the new artifact.
	Artifact time.Time
	// UpdateCreated is when the Update for the artifact appeared.
	UpdateCreated time.Time
	// OperationStarted is when the Update reported that its operation is being prepared or is running.
	OperationStarted time.Time
	// OperationEnded is when the Update reported how its operation ended.
	OperationEnded time.Time
	// Succeeded is when the Stack's status reported success with this digest.
	Succeeded time.Time
}

// Duration is the time from the new artifact to the success in the Stack's status.
func (r *Rollout) Duration() time.Duration { return r.Succeeded.Sub(r.Artifact) }

// Rollout commits the files, announces the commit and follows it until the Stack has succeeded with it, as long as the
// context allows.
func (a *Apps) Rollout(ctx context.Context, app *App, files gitserver.Files) (*Rollout, error) {
	return a.RolloutBy(ctx, app, files, a.announce(app))
}

// RolloutBy does the same as Rollout, with another way to announce the commit.
func (a *Apps) RolloutBy(ctx context.Context, app *App, files gitserver.Files, announce func(context.Context) error) (*Rollout, error) {
	rollouts, err := a.rollouts(ctx, app, files, announce, app.Name)
	if err != nil {
		return nil, err
	}
	return rollouts[0], nil
}

// Rollouts does the same as Rollout for the named Stacks in the app's namespace, which all follow its GitRepository. The results are in the
// order of the names.
func (a *Apps) Rollouts(ctx context.Context, app *App, files gitserver.Files, stacks ...string) ([]*Rollout, error) {
	return a.rollouts(ctx, app, files, a.announce(app), stacks...)
}

// announce returns a function that makes source-controller fetch the app's repository.
func (a *Apps) announce(app *App) func(context.Context) error {
	return func(ctx context.Context) error { return a.Fetch(ctx, app) }
}

func (a *Apps) rollouts(ctx context.Context, app *App, files gitserver.Files, announce func(context.Context) error, stacks ...string) ([]*Rollout, error) {
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshots, err := a.watch(watchCtx, app.Namespace)
	if err != nil {
		return nil, err
	}
	sha, err := app.Repository.Commit(files)
	if err != nil {
		return nil, err
	}
	followers := make([]*follower, 0, len(stacks))
	for _, stack := range stacks {
		followers = append(followers, newFollower(app.Name, stack, sha))
	}
	if err := announce(ctx); err != nil {
		return nil, err
	}
	for {
		select {
		case <-ctx.Done():
			explanation := a.Explain(context.WithoutCancel(ctx), app)
			return nil, fmt.Errorf("follow commit %s of GitRepository %s: %w\n%s", sha, app.Key(), context.Cause(ctx), explanation)
		case seen := <-snapshots:
			rollouts, err := noteAll(followers, seen)
			if rollouts != nil || err != nil {
				return rollouts, err
			}
		}
	}
}

// noteAll passes the snapshot to all followers, and returns their rollouts once all have succeeded.
func noteAll(followers []*follower, seen snapshot) ([]*Rollout, error) {
	rollouts := make([]*Rollout, 0, len(followers))
	for _, f := range followers {
		f.note(seen)
		rollout, err := f.result()
		if err != nil {
			return nil, err
		}
		if rollout != nil {
			rollouts = append(rollouts, rollout)
		}
	}
	if len(rollouts) < len(followers) {
		return nil, nil
	}
	return rollouts, nil
}

// snapshot is a version of an object, and the time at which it was seen.
type snapshot struct {
	at     time.Time
	object any
}

// watch reports every version of the GitRepositories, Updates and Stacks of a namespace until the context ends.
func (a *Apps) watch(ctx context.Context, namespace string) (<-chan snapshot, error) {
	snapshots := make(chan snapshot)
	for _, list := range []client.ObjectList{&sourcev1.GitRepositoryList{}, &autov1alpha1.UpdateList{}, &pulumiv1.StackList{}} {
		watcher, err := a.Client.Watch(ctx, list, client.InNamespace(namespace))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		go forward(ctx, watcher, snapshots)
	}
	return snapshots, nil
}

func forward(ctx context.Context, watcher watch.Interface, snapshots chan<- snapshot) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		select {
		case snapshots <- snapshot{at: time.Now(), object: event.Object}:
		case <-ctx.Done():
			return
		}
	}
}

// follower finds the steps of one commit in snapshots. The watches are independent of each other, so an Update may be seen before the
// artifact that it was created for. So the follower records everything by digest, and selects what belongs to the commit once the digest of
// the commit is known.
type follower struct {
	source string // name of the GitRepository
	stack  string // name of the Stack, and of its Workspace
	pushed time.Time
	sha    string

	digest    string
	artifact  time.Time
	updates   map[string]*updateTimes // by the digest that they run
	succeeded map[string]time.Time    // by digest
	failed    map[string]string       // messages by digest
}

type updateTimes struct{ created, started, ended time.Time }

func newFollower(source, stack, sha string) *follower {
	return &follower{
		source:    source,
		stack:     stack,
		pushed:    time.Now(),
		sha:       sha,
		updates:   map[string]*updateTimes{},
		succeeded: map[string]time.Time{},
		failed:    map[string]string{},
	}
}

func (f *follower) note(seen snapshot) {
	switch object := seen.object.(type) {
	case *sourcev1.GitRepository:
		artifact := object.Status.Artifact
		if object.Name == f.source && f.digest == "" && artifact != nil && strings.HasSuffix(artifact.Revision, f.sha) {
			f.digest, f.artifact = artifact.Digest, seen.at
		}
	case *autov1alpha1.Update:
		if object.Spec.Source != nil && object.Spec.WorkspaceName == f.stack {
			f.noteUpdate(object, seen.at)
		}
	case *pulumiv1.Stack:
		if object.Name == f.stack && object.Status.LastUpdate != nil {
			f.noteOutcome(object.Status.LastUpdate, seen.at)
		}
	}
}

func (f *follower) noteUpdate(update *autov1alpha1.Update, at time.Time) {
	times, known := f.updates[update.Spec.Source.Digest]
	if !known {
		times = &updateTimes{created: at}
		f.updates[update.Spec.Source.Digest] = times
	}
	switch update.Status.State {
	case "", autov1alpha1.UpdateStateQueued:
	case autov1alpha1.UpdateStatePreparing, autov1alpha1.UpdateStateRunning:
		setOnce(&times.started, at)
	default:
		setOnce(&times.started, at)
		setOnce(&times.ended, at)
	}
}

func (f *follower) noteOutcome(last *pulumiv1.StackUpdateStatus, at time.Time) {
	switch last.State {
	case pulumiv1.StackUpdateSucceeded:
		if _, known := f.succeeded[last.LastSuccessfulCommit]; !known {
			f.succeeded[last.LastSuccessfulCommit] = at
		}
	case pulumiv1.StackUpdateFailed:
		f.failed[last.LastAttemptedCommit] = last.Message
	}
}

func setOnce(target *time.Time, at time.Time) {
	if target.IsZero() {
		*target = at
	}
}

// result returns the rollout once it has succeeded, and an error once it has failed.
func (f *follower) result() (*Rollout, error) {
	if f.digest == "" {
		return nil, nil
	}
	if message, failed := f.failed[f.digest]; failed {
		return nil, fmt.Errorf("the update of Stack %s to commit %s failed: %s", f.stack, f.sha, message)
	}
	succeeded, done := f.succeeded[f.digest]
	if !done {
		return nil, nil
	}
	times, known := f.updates[f.digest]
	if !known || times.ended.IsZero() {
		return nil, nil // the watch of Updates is behind the watch of Stacks
	}
	return &Rollout{
		SHA:              f.sha,
		Digest:           f.digest,
		Pushed:           f.pushed,
		Artifact:         f.artifact,
		UpdateCreated:    times.created,
		OperationStarted: times.started,
		OperationEnded:   times.ended,
		Succeeded:        succeeded,
	}, nil
}
