package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
)

// train has the Stacks of an environment that get each commit in waves. They follow directories of one repository, each with a GitRepository of
// its own, and a commit of one of them changes all.
type train struct {
	// app has the repository, and the namespace of the StackRollout and its GitRepository.
	app *localsystem.App

	mu      sync.Mutex
	members []*App         // in the order in which they came; some may be deleted
	first   map[*App]bool  // those in the first wave
	commits []map[*App]int // the version of each member that was there then
}

// tiers are the waves: the Stacks of the first one are updated before those of the last one.
var tiers = []string{"first", "last"}

// tierOf returns the wave of the Stack with the index in a run; none when it is empty.
func tierOf(index int) string {
	if index%2 != 0 {
		return ""
	}
	return tiers[index/2%len(tiers)]
}

const tierLabel = "tier"

// join makes the app a member of the environment's train, and returns its Stack without creating it.
func (w *Environment) join(ctx context.Context, a *App, name, tier string) (*localsystem.App, *pulumiv1.Stack, error) {
	if w.train == nil {
		t, err := w.newTrain(ctx, name+"-train")
		if err != nil {
			return nil, nil, err
		}
		w.train = t
	}
	t := w.train
	app, stack, err := w.ProvideFrom(ctx, name, t.app.Repository)
	if err != nil {
		return nil, nil, err
	}
	a.App, a.train = app, t
	t.mu.Lock()
	t.members = append(t.members, a)
	t.first[a] = tier == tiers[0]
	t.mu.Unlock()
	metav1.SetMetaDataLabel(&stack.ObjectMeta, tierLabel, tier)
	stack.Spec.FluxSource.Dir = name
	stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Namespace: t.app.Namespace, Name: t.app.Name}
	return app, stack, a.push(ctx, 1, a.renew)
}

func (w *Environment) newTrain(ctx context.Context, name string) (*train, error) {
	app, _, err := w.Provide(ctx, name, gitserver.Files{"README.md": "One directory for each Stack.\n"})
	if err != nil {
		return nil, err
	}
	rollout := &autov1alpha1.StackRollout{Namespace: app.Namespace, Name: app.Name, Spec: autov1alpha1.StackRolloutSpec{
		SourceRef:         autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: app.Name},
		AllowedNamespaces: &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll},
		Waves: []autov1alpha1.RolloutWave{
			{Name: tiers[0], Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{tierLabel: tiers[0]}}, Soak: &metav1.Duration{Duration: time.Second}},
			{Name: tiers[1]},
		},
	}}
	return &train{app: app, first: map[*App]bool{}}, w.Retry(ctx, func(ctx context.Context) error { return w.Client.Create(ctx, rollout) })
}

// living returns the members that were not deleted.
func (t *train) living() []*App {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.members), (*App).IsDeleted)
}

// sources returns the apps whose GitRepositories have to fetch a commit: that of the StackRollout comes first.
func (t *train) sources() []*localsystem.App {
	if t == nil {
		return nil
	}
	sources := []*localsystem.App{t.app}
	for _, member := range t.living() {
		sources = append(sources, member.App)
	}
	return sources
}

// push commits the next version of all members, for one of which next makes it. All resources get that version, so that what is done to one of
// them tells audit which commit was run.
func (t *train) push(of *App, next func()) error {
	living := t.living()
	t.mu.Lock()
	defer t.mu.Unlock()
	files, versions := gitserver.Files{}, map[*App]int{}
	for _, member := range living {
		member.note(func() {
			if member == of {
				member.advance(next)
			} else {
				member.advance(func() {})
			}
			member.renew()
			files[member.Name+"/Pulumi.yaml"] = member.program(member.Name)
			versions[member] = member.version
		})
	}
	t.commits = append(t.commits, versions)
	sha, err := t.app.Repository.Commit(files)
	for _, member := range living {
		member.note(func() { member.sha = sha })
	}
	return err
}

// audit returns an error if the app, which is not in the first wave, ran a commit that a Stack of that wave never ran.
func (t *train) audit(a *App) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first[a] {
		return nil
	}
	ran, err := a.versionsRan()
	if err != nil {
		return err
	}
	for _, versions := range t.commits {
		version, was := versions[a]
		if !was || !ran[version] {
			continue
		}
		for other, of := range versions {
			if !t.first[other] || other.IsDeleted() {
				continue
			}
			if before, err := other.versionsRan(); err != nil || !before[of] {
				return errors.Join(err, fmt.Errorf("%s ran version %d, and %s never ran version %d, which is in the same commit", a.Name, version, other.Name, of))
			}
		}
	}
	return nil
}

// versionsRan returns the versions of which something was done to a resource.
func (a *App) versionsRan() (map[int]bool, error) {
	_, byVersion, err := a.readJournals()
	ran := map[int]bool{}
	for name := range byVersion {
		_, number, _ := strings.Cut(name, ".")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("the journal %s names no version: %w", name, err)
		}
		ran[version] = true
	}
	return ran, err
}

// unconverged returns an error unless the StackRollout is complete with the commit.
func (t *train) unconverged(ctx context.Context, w *Environment, sha string) error {
	rollout, count := &autov1alpha1.StackRollout{}, len(t.living())
	switch err := w.get(ctx, t.app.Key(), rollout); {
	case err != nil:
		return NotConverged("%w", err)
	case !conditions.IsTrue(rollout, autov1alpha1.RolloutComplete) || rollout.Status.ObservedGeneration != rollout.Generation:
		return NotConverged("the StackRollout is not complete: %v", rollout.Status)
	case rollout.Status.Target == nil || !strings.HasSuffix(rollout.Status.Target.Revision, sha) || len(rollout.Status.Turns) > 0,
		rollout.Status.Done != fmt.Sprintf("%d/%d", count, count):
		return NotConverged("the StackRollout is complete with something else than %d Stacks with commit %q: %v", count, sha, rollout.Status)
	}
	return nil
}
