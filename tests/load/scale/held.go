package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// silentUntil is before the first Stack that waits says so in its status, and toldAfter after the last one does, from the commit on: see
	// docs/spec/v1/stacks.md.
	silentUntil, toldAfter = 4*time.Minute + 45*time.Second, 11 * time.Minute
)

// waiting is what a commit costs that many Stacks wait for, in StackRollouts of their teams.
type waiting struct {
	stacks, rollouts int
	// commit is the cost until the StackRollouts have counted them, silent that of the time after it in which no Stack says that it waits, telling
	// that of the time in which all do, and reverted that of a commit that takes it back.
	commit, silent, telling, reverted *cost
}

// hold makes a commit for the teams that no Stack may have, and takes it back. It fails unless all Stacks say in time that they wait, and none
// is updated.
func (s *scale) hold(ctx context.Context, teams []*team) (*waiting, error) {
	h := &waiting{rollouts: len(teams)}
	for _, t := range teams {
		h.stacks += len(t.stacks)
		if err := s.join(ctx, t); err != nil {
			return nil, fmt.Errorf("join the StackRollout: %w", err)
		}
	}
	if err := s.fleet.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	if _, err := calls(s.stub); err != nil {
		return nil, err
	}
	had, start := map[*team]int{}, time.Now()
	for _, t := range teams {
		had[t] = t.value
	}
	var err error
	if h.commit, err = s.commitHeld(ctx, teams); err != nil {
		return nil, err
	}
	if time.Since(start) > silentUntil {
		return nil, fmt.Errorf("the StackRollouts have not counted their Stacks after %s", silentUntil)
	}
	until := func(end time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return measure.Sleep(ctx, end-time.Since(start)) }
	}
	if h.silent, err = s.measureCost(ctx, until(silentUntil)); err != nil {
		return nil, err
	}
	if h.telling, err = s.measureCost(ctx, until(toldAfter)); err != nil {
		return nil, err
	}
	if err := s.allTell(ctx, teams); err != nil {
		return nil, err
	}
	for t, value := range had {
		t.value = value
	}
	if h.reverted, err = s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.fleet.push(ctx, teams); err != nil {
			return err
		}
		for _, t := range teams {
			if err := s.awaitComplete(ctx, t); err != nil {
				return err
			}
		}
		_, err := s.fleet.await(ctx, teams)
		return err
	}); err != nil {
		return nil, err
	}
	if err := s.noneRan(); err != nil {
		return nil, err
	}
	for _, line := range h.lines() {
		fmt.Fprintf(s.out, "%d Stacks wait, %s: requests of everybody meanwhile: %v\n", h.stacks, line.name, line.requests)
	}
	return h, s.leave(ctx, teams)
}

// allTell fails unless all Stacks of the teams say that they wait.
func (s *scale) allTell(ctx context.Context, teams []*team) error {
	for _, t := range teams {
		stacks := &pulumiv1.StackList{}
		if err := s.system.Client.List(ctx, stacks, client.InNamespace(t.app.Namespace)); err != nil {
			return err
		}
		for i := range stacks.Items {
			if !meta.IsStatusConditionTrue(stacks.Items[i].Status.Conditions, pulumiv1.HeldCondition) {
				return fmt.Errorf("the Stack %s/%s does not say that it waits", t.app.Namespace, stacks.Items[i].Name)
			}
		}
	}
	return nil
}

// leave deletes the StackRollouts of the teams, after all Stacks have left them.
func (s *scale) leave(ctx context.Context, teams []*team) error {
	for _, t := range teams {
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(requesters)
		for _, name := range t.stacks {
			stack := &pulumiv1.Stack{Namespace: t.app.Namespace, Name: name}
			group.Go(func() error {
				return s.system.Client.Patch(groupCtx, stack, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"rolloutRef":null}}`)))
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if err := s.system.Client.Delete(ctx, &autov1alpha1.StackRollout{Namespace: t.app.Namespace, Name: wavesName}); err != nil {
			return err
		}
	}
	return nil
}

// heldLine is a row of the table.
type heldLine struct {
	name string
	*cost
}

func (h *waiting) lines() []heldLine {
	return []heldLine{
		{"a commit in each repository, until the StackRollouts have counted", h.commit},
		{"until no Stack has said so", h.silent},
		{"until all have", h.telling},
		{"commits that take it back, until no Stack says so", h.reverted},
	}
}

// text returns the section about Stacks that wait.
func (h *waiting) text() string {
	var out strings.Builder
	of := fmt.Sprintf("%d Stacks in %d namespaces follow the StackRollouts of their namespaces, which are suspended.", h.stacks, h.rollouts)
	if h.rollouts == 1 {
		of = fmt.Sprintf("%d Stacks follow one StackRollout, which is suspended.", h.stacks)
	}
	fmt.Fprintf(&out, "\n## While all wait\n\n%s A Stack that waits says so in its\nstatus after 5 to 10 minutes.\n\n", of)
	out.WriteString(row("", "time", "processor time of stack-controller", "requests of stack-controller", "per Stack", "writes of StackRollouts") + "|---|---|---|---|---|---|\n")
	for _, line := range h.lines() {
		out.WriteString(row(line.name, measure.Seconds(line.took), measure.Seconds(line.cpu[controller]), line.byVerb(),
			number("%.2f", float64(line.sum())/float64(h.stacks)), number("%d", rolloutWrites(line.cost))))
	}
	out.WriteString("\nEach StackRollout is written once and has an event for a commit. A GET renews a watch, which lasts 5 to 10 minutes.\n")
	return out.String()
}
