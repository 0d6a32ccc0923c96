package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// perTeam is the number of Stacks of a team, which follow one GitRepository in a namespace of their own.
	perTeam = 100
	// requesters is how many of our requests to the API server run at the same time.
	requesters = 8
	// patience is the time without any change after which a wait for all Stacks fails.
	patience = 3 * time.Minute
	// pollInterval is the time between two checks of the progress of the Stacks.
	pollInterval = 50 * time.Millisecond
)

// fleet is a large number of Stacks. Each perTeam of them are a team, with a namespace and a repository.
type fleet struct {
	system *localsystem.System
	teams  []*team
	value  int // value of the last commit, of any team

	mu      sync.Mutex
	seen    map[types.NamespacedName]stackState
	changed time.Time // when a Stack was last written or deleted
}

// team is a namespace with a GitRepository of the same name.
type team struct {
	app    *localsystem.App
	stacks []string
	value  int // value of the team's last commit
}

// stackState is what a Stack's status shows.
type stackState struct {
	value string // output of the program
	ready bool
	held  bool      // it says that it waits for something that its source offers
	at    time.Time // when the Stack got this state
}

// watch starts to watch all Stacks, until the context ends.
func (f *fleet) watch(ctx context.Context) error {
	f.seen = map[types.NamespacedName]stackState{}
	stacks, err := cache.New(f.system.ControlPlane.Config(), cache.Options{Scheme: f.system.Client.Scheme(), DefaultTransform: strip})
	if err != nil {
		return fmt.Errorf("watch the Stacks: %w", err)
	}
	informer, err := stacks.GetInformer(ctx, &pulumiv1.Stack{})
	if err != nil {
		return fmt.Errorf("watch the Stacks: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    f.note,
		UpdateFunc: func(_, object any) { f.note(object) },
		DeleteFunc: f.forget,
	})
	if err != nil {
		return fmt.Errorf("watch the Stacks: %w", err)
	}
	go func() { _ = stacks.Start(ctx) }()
	if !stacks.WaitForCacheSync(ctx) {
		return context.Cause(ctx)
	}
	return nil
}

// strip removes the fields of a Stack that the benchmark does not read.
func strip(object any) (any, error) {
	stack, ok := object.(*pulumiv1.Stack)
	if !ok {
		return object, nil
	}
	kept := &pulumiv1.Stack{}
	kept.Namespace, kept.Name, kept.ResourceVersion, kept.UID = stack.Namespace, stack.Name, stack.ResourceVersion, stack.UID
	kept.Status.Outputs, kept.Status.Conditions = stack.Status.Outputs, stack.Status.Conditions
	return kept, nil
}

func (f *fleet) note(object any) {
	stack, ok := object.(*pulumiv1.Stack)
	if !ok {
		return
	}
	now := stackState{
		value: strings.Trim(string(stack.Status.Outputs["value"].Raw), `"`),
		ready: meta.IsStatusConditionTrue(stack.Status.Conditions, fluxmeta.ReadyCondition),
		held:  meta.IsStatusConditionTrue(stack.Status.Conditions, pulumiv1.HeldCondition),
		at:    time.Now(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = now.at
	key := client.ObjectKeyFromObject(stack)
	if before := f.seen[key]; before.value == now.value && before.ready == now.ready && before.held == now.held {
		return
	}
	f.seen[key] = now
}

func (f *fleet) forget(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	stack, ok := object.(*pulumiv1.Stack)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = time.Now()
	delete(f.seen, client.ObjectKeyFromObject(stack))
}

// lastChange returns when a Stack was last written or deleted.
func (f *fleet) lastChange() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// awaitQuiet waits until no Stack was written or deleted for quietTime.
func (f *fleet) awaitQuiet(ctx context.Context) error {
	for start := time.Now(); time.Since(start) < quietTime || time.Since(f.lastChange()) < quietTime; {
		if time.Since(start) > patience {
			return fmt.Errorf("after %s, Stacks are written still", patience)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// grow creates Stacks until there are that many, a multiple of perTeam.
func (f *fleet) grow(ctx context.Context, stacks int) error { return f.growTeams(ctx, stacks, perTeam) }

// growTeams does the same with teams of another size.
func (f *fleet) growTeams(ctx context.Context, stacks, each int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for len(f.teams)*each < stacks {
		name := fmt.Sprintf("team-%03d", len(f.teams))
		app, template, err := f.system.Provide(ctx, name, f.files(name, f.value))
		if err != nil {
			return err
		}
		t := &team{app: app, value: f.value}
		f.teams = append(f.teams, t)
		for i := range each {
			stack := template.DeepCopy()
			stack.Name = fmt.Sprintf("stack-%02d", i)
			stack.Spec.Stack, stack.Spec.DestroyOnFinalize = stack.Name, true
			t.stacks = append(t.stacks, stack.Name)
			group.Go(func() error { return f.system.Client.Create(ctx, stack) })
		}
	}
	return group.Wait()
}

// files returns a program with the output.
func (f *fleet) files(team string, value int) gitserver.Files {
	return gitserver.Files{"Pulumi.yaml": fmt.Sprintf("name: %s\nruntime: yaml\noutputs:\n  value: v%d\n", team, value)}
}

// commit makes a commit with a new value for each team.
func (f *fleet) commit(ctx context.Context, teams []*team) error {
	f.value++
	for _, t := range teams {
		t.value = f.value
	}
	return f.push(ctx, teams)
}

// push makes a commit with the value of each team in its repository, and announces it to source-controller.
func (f *fleet) push(ctx context.Context, teams []*team) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for _, t := range teams {
		group.Go(func() error {
			if _, err := t.app.Repository.Commit(f.files(t.app.Name, t.value)); err != nil {
				return err
			}
			return f.system.Fetch(ctx, t.app)
		})
	}
	return group.Wait()
}

// await waits until all Stacks of the teams are ready with the last commit, and do not say that they wait for another one. It returns when each of
// them became so.
func (f *fleet) await(ctx context.Context, teams []*team) ([]time.Time, error) {
	var times []time.Time
	err := f.poll(ctx, func() int {
		times = times[:0]
		open := 0
		for _, t := range teams {
			want := fmt.Sprintf("v%d", t.value)
			for _, stack := range t.stacks {
				switch s := f.seen[types.NamespacedName{Namespace: t.app.Namespace, Name: stack}]; {
				case s.ready && s.value == want && !s.held:
					times = append(times, s.at)
				default:
					open++
				}
			}
		}
		return open
	})
	return times, err
}

// delete deletes the Stacks of the teams and waits until they are gone.
func (f *fleet) delete(ctx context.Context, of []*team) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for _, t := range of {
		group.Go(func() error {
			return f.system.Client.DeleteAllOf(groupCtx, &pulumiv1.Stack{}, client.InNamespace(t.app.Namespace))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	teams := map[string]bool{}
	for _, t := range of {
		teams[t.app.Namespace] = true
	}
	return f.poll(ctx, func() int {
		left := 0
		for key := range f.seen {
			if teams[key.Namespace] {
				left++
			}
		}
		return left
	})
}

// poll waits until open returns 0. It calls open with the lock held.
func (f *fleet) poll(ctx context.Context, open func() int) error {
	f.mu.Lock()
	f.changed = time.Now()
	f.mu.Unlock()
	for {
		f.mu.Lock()
		left, still := open(), time.Since(f.changed)
		f.mu.Unlock()
		if left == 0 {
			return nil
		}
		if still > patience {
			return fmt.Errorf("%d Stacks are not done, and nothing happened for %s", left, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollInterval):
		}
	}
}

// calls returns the number of calls of the CLI stub since the last call of this function, by project, stack, command and output.
func calls(dir string) (map[string]int, error) {
	counts, err := callsSoFar(dir)
	if err != nil {
		return nil, err
	}
	return counts, os.Truncate(filepath.Join(dir, "calls"), 0)
}

// callsSoFar returns the same while the CLI may be called, and the next call returns them, too.
func callsSoFar(dir string) (map[string]int, error) {
	content, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		return nil, fmt.Errorf("read the calls of the CLI: %w", err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(content)) {
		counts[strings.TrimSpace(line)]++
	}
	return counts, nil
}

// ranOnce returns an error unless each Stack of the teams was updated exactly once to its team's last commit.
func ranOnce(dir string, teams []*team) error {
	counts, err := calls(dir)
	if err != nil {
		return err
	}
	for _, t := range teams {
		for _, stack := range t.stacks {
			call := fmt.Sprintf("%s\t%s\tup\tv%d", t.app.Name, stack, t.value)
			if counts[call] != 1 {
				return fmt.Errorf("check the calls of the CLI: Stack %s/%s was updated %d times to its last commit", t.app.Namespace, stack, counts[call])
			}
		}
	}
	return nil
}
