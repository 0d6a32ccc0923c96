package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// shardKey is the label that assigns Stacks to controllers.
	shardKey = "sharding.fluxcd.io/key"
	// shardedTeams is the maximum number of teams whose Stacks are distributed.
	shardedTeams = 6
	// movePatience bounds the time until all labelled Stacks have moved to their controller.
	movePatience = 5 * time.Minute
)

// shardNames are the controllers in addition to the main one, which is responsible for objects without the label.
var shardNames = []string{"one", "two"}

// sharded holds the measurements with three controllers.
type sharded struct {
	stacks, moved int
	moving        time.Duration // until the Stacks that got a label were taken over
	// without is the time from a commit for all to the last Stack of the two controllers that remain when one is killed. returned is the
	// time from the start of the killed controller to the last of its Stacks.
	without, returned time.Duration
}

// shards distributes Stacks between three controllers, makes a commit for all while one controller is stopped, and starts that controller
// again. At the end there is one controller again.
func (s *scale) shards(ctx context.Context) (*sharded, error) {
	if err := s.system.KillController(); err != nil {
		return nil, err
	}
	here := []string{"--metrics-addr=" + s.metricsAddr, "--pprof-addr=" + s.pprofAddr}
	if err := s.system.StartController(ctx, append(here[:2:2], "--watch-label-selector=!"+shardKey)...); err != nil {
		return nil, err
	}
	running := map[string]*supervise.Process{}
	for _, name := range shardNames {
		if err := s.startShard(ctx, name, running); err != nil {
			return nil, err
		}
	}
	teams := s.fleet.teams[:min(len(s.fleet.teams), shardedTeams)]
	r := &sharded{stacks: len(teams) * perTeam}
	measured := s.share(ctx, teams, r)
	if measured == nil {
		measured = s.loseShard(ctx, teams, running, r)
	}
	for _, process := range running {
		measured = errors.Join(measured, process.Stop(0))
	}
	if err := errors.Join(measured, s.system.KillController()); err != nil {
		return nil, err
	}
	return r, s.system.StartController(ctx, here...)
}

func (s *scale) startShard(ctx context.Context, name string, running map[string]*supervise.Process) error {
	metrics, pprof, err := freeAddresses()
	if err != nil {
		return err
	}
	process, err := s.system.StartShard(ctx, name, shardKey+"="+name, "--metrics-addr="+metrics, "--pprof-addr="+pprof)
	if err == nil {
		running[name] = process
	}
	return err
}

// shardOf returns the controller of the team's Stack with that number. The empty name is the main controller.
func shardOf(number int) string {
	return append([]string{""}, shardNames...)[number%3]
}

// share labels two of every three Stacks, and waits until their Workspaces have the label. No Stack may be updated because of that.
func (s *scale) share(ctx context.Context, teams []*team, r *sharded) error {
	start := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for _, t := range teams {
		for i, name := range t.stacks {
			if shardOf(i) == "" {
				continue
			}
			r.moved++
			change := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, shardKey, shardOf(i))
			stack := &pulumiv1.Stack{}
			stack.Namespace, stack.Name = t.app.Namespace, name
			group.Go(func() error {
				return s.system.Client.Patch(groupCtx, stack, client.RawPatch(types.MergePatchType, change))
			})
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("give Stacks labels: %w", err)
	}
	for {
		var workspaces autov1alpha1.WorkspaceList
		if err := s.system.Client.List(ctx, &workspaces, client.HasLabels{shardKey}); err != nil {
			return fmt.Errorf("list the Workspaces of the shards: %w", err)
		}
		if len(workspaces.Items) == r.moved {
			break
		}
		if time.Since(start) > movePatience {
			return fmt.Errorf("%d of %d Workspaces have moved after %s", len(workspaces.Items), r.moved, movePatience)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	r.moving = time.Since(start)
	ran, err := calls(s.stub)
	if err == nil && len(ran) > 0 {
		err = fmt.Errorf("the CLI was called %d times while Stacks moved", len(ran))
	}
	return err
}

// loseShard kills a controller, makes a commit for all, and starts the controller again when the Stacks of the others are updated.
func (s *scale) loseShard(ctx context.Context, teams []*team, running map[string]*supervise.Process, r *sharded) error {
	lost := shardNames[0]
	if err := running[lost].Stop(0); err != nil {
		return err
	}
	start := time.Now()
	if err := s.fleet.commit(ctx, teams); err != nil {
		return err
	}
	others, waiting := split(teams, lost)
	if _, err := s.fleet.await(ctx, others); err != nil {
		return fmt.Errorf("without one of three controllers: %w", err)
	}
	r.without = time.Since(start)
	for _, t := range waiting {
		for _, name := range t.stacks {
			if s.fleet.has(t, name) {
				return fmt.Errorf("%s/%s was updated, although its controller is gone", t.app.Namespace, name)
			}
		}
	}
	start = time.Now()
	if err := s.startShard(ctx, lost, running); err != nil {
		return err
	}
	if _, err := s.fleet.await(ctx, waiting); err != nil {
		return fmt.Errorf("after the controller is back: %w", err)
	}
	r.returned = time.Since(start)
	return ranOnce(s.stub, teams)
}

// split returns the teams with only the Stacks of the other controllers, and the teams with only those of the lost one.
func split(teams []*team, lost string) (others, waiting []*team) {
	for _, t := range teams {
		left, gone := *t, *t
		left.stacks, gone.stacks = nil, nil
		for i, name := range t.stacks {
			if shardOf(i) == lost {
				gone.stacks = append(gone.stacks, name)
			} else {
				left.stacks = append(left.stacks, name)
			}
		}
		others, waiting = append(others, &left), append(waiting, &gone)
	}
	return others, waiting
}

// has reports whether the Stack was seen with the last commit of its team.
func (f *fleet) has(t *team, stack string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[types.NamespacedName{Namespace: t.app.Namespace, Name: stack}].value == fmt.Sprintf("v%d", t.value)
}

// text returns the section of the page.
func (r *sharded) text() string {
	return fmt.Sprintf("\n## Three controllers\n\n%d Stacks were shared between three controllers by a label, each with a storage of its own.\n\n", r.stacks) +
		row("", "Stacks", "time") + "|---|---|---|\n" +
		row("from the labels until all that got one were taken over, without an update", number("%d", r.moved), measure.Seconds(r.moving)) +
		row("one controller was killed: from a commit for all to the last Stack of the others", number("%d", r.stacks-r.moved/len(shardNames)),
			measure.Seconds(r.without)) +
		row("it was started again: until the last of its Stacks was updated", number("%d", r.moved/len(shardNames)), measure.Seconds(r.returned)) +
		"\nThe Stacks of the killed controller waited meanwhile. Each Stack was updated once.\n"
}
