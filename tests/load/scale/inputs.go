package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// takers is how many Stacks have outputs of one Stack as inputs, and inputsEach how many inputs each of them has: one half are outputs, the
	// other half keys of a ConfigMap.
	takers, inputsEach = 1000, 10
	// giver is the name of the Stack that gives outputs, and of its directory and project; taker is the same for the others.
	giver, taker = "giver", "taker"
)

// taken is what it costs that many Stacks have outputs of one Stack as inputs.
type taken struct {
	// created is the cost of the first deployment of all, changed that of an update of the giver which changes an output, and unchanged that of
	// one which changes none.
	created, changed, unchanged *cost
	// heap is how much more memory the controller has with these Stacks, after a garbage collection, in bytes.
	heap int64
}

// inputs measures Stacks with inputs, and deletes them. It fails unless another value updates each of them once, and the same value none.
func (s *scale) inputs(ctx context.Context) (*taken, error) {
	before, err := s.heap(ctx)
	if err != nil {
		return nil, err
	}
	app, template, err := s.system.Provide(ctx, "inputs", givenFiles(1, ""))
	if err != nil {
		return nil, err
	}
	settings := &corev1.ConfigMap{Data: map[string]string{}}
	settings.Namespace, settings.Name, settings.Labels = app.Namespace, "settings", map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}
	for i := range inputsEach / 2 {
		settings.Data[fmt.Sprintf("key-%d", i)] = "value"
	}
	if err := s.system.Client.Create(ctx, settings); err != nil {
		return nil, fmt.Errorf("create the ConfigMap of the inputs: %w", err)
	}
	t, result := &team{app: app}, &taken{}
	if result.created, err = s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.createTakers(ctx, t, template); err != nil {
			return err
		}
		return s.awaitTakers(ctx, t)
	}); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	fmt.Fprintf(s.out, "%d Stacks with inputs: created in %s\n", takers, measure.Seconds(result.created.took))
	after, err := s.heap(ctx)
	if err != nil {
		return nil, err
	}
	result.heap = after - before
	if result.changed, err = s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.give(ctx, t, 2, ""); err != nil {
			return err
		}
		return s.awaitTakers(ctx, t)
	}); err != nil {
		return nil, fmt.Errorf("another value: %w", err)
	}
	if result.unchanged, err = s.giveTheSame(ctx, t); err != nil {
		return nil, fmt.Errorf("the same value: %w", err)
	}
	return result, s.fleet.delete(ctx, []*team{t})
}

// givenFiles returns the programs of the giver and of the takers.
func givenFiles(value int, comment string) gitserver.Files {
	program := "name: %s\nruntime: yaml\noutputs:\n  value: v%d\n# %s\n"
	return gitserver.Files{
		giver + "/Pulumi.yaml": fmt.Sprintf(program, giver, value, comment),
		taker + "/Pulumi.yaml": fmt.Sprintf(program, taker, 0, ""),
	}
}

// createTakers creates the giver and the takers. Each is updated only for a change of its own directory.
func (s *scale) createTakers(ctx context.Context, t *team, template *pulumiv1.Stack) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	create := func(name, dir string, inputs []autov1alpha1.Input) {
		stack := template.DeepCopy()
		stack.Name, stack.Spec.Stack, stack.Spec.DestroyOnFinalize, stack.Spec.Inputs = name, name, true, inputs
		stack.Spec.FluxSource.Dir, stack.Spec.SourcePaths = dir, []string{dir}
		group.Go(func() error { return s.system.Client.Create(ctx, stack) })
	}
	create(giver, giver, nil)
	var inputs []autov1alpha1.Input
	for i := range inputsEach / 2 {
		inputs = append(inputs,
			autov1alpha1.Input{Key: fmt.Sprintf("output-%d", i), Stack: &autov1alpha1.StackOutput{Name: giver, Output: "value"}},
			autov1alpha1.Input{Key: fmt.Sprintf("key-%d", i), ConfigMap: &autov1alpha1.KeyReference{Name: "settings", Key: fmt.Sprintf("key-%d", i)}})
	}
	for i := range takers {
		name := fmt.Sprintf("stack-%04d", i)
		t.stacks = append(t.stacks, name)
		create(name, taker, inputs)
	}
	return group.Wait()
}

// give makes a commit that updates the giver.
func (s *scale) give(ctx context.Context, t *team, value int, comment string) error {
	if _, err := t.app.Repository.Commit(givenFiles(value, comment)); err != nil {
		return err
	}
	return s.system.Fetch(ctx, t.app)
}

// awaitTakers waits until each taker was updated and is ready, and fails if one was updated twice.
func (s *scale) awaitTakers(ctx context.Context, t *team) error {
	for {
		ran, _, err := s.updates()
		if err != nil {
			return err
		}
		open := 0
		s.fleet.mu.Lock()
		for _, stack := range t.stacks {
			if ran[stack] == 0 || !s.fleet.seen[types.NamespacedName{Namespace: t.app.Namespace, Name: stack}].ready {
				open++
			}
		}
		s.fleet.mu.Unlock()
		switch still := time.Since(s.fleet.lastChange()); {
		case open == 0:
			for stack, times := range ran {
				if times != 1 {
					return fmt.Errorf("the Stack %s was updated %d times", stack, times)
				}
			}
			_, err := calls(s.stub)
			return err
		case still > patience:
			return fmt.Errorf("%d Stacks are not done, and nothing happened for %s", open, patience)
		}
		if err := measure.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// giveTheSame makes a commit that updates the giver and changes no output, and waits until nothing happens any longer.
func (s *scale) giveTheSame(ctx context.Context, t *team) (*cost, error) {
	start := time.Now()
	var last time.Time
	c, err := s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.give(ctx, t, 2, "other"); err != nil {
			return err
		}
		for {
			ran, given, err := s.updates()
			if err != nil {
				return err
			}
			if len(ran) > 0 {
				return fmt.Errorf("%d Stacks were updated", len(ran))
			}
			if last = s.fleet.lastChange(); given == 1 && time.Since(last) > quietTime {
				return nil
			}
			if time.Since(start) > patience {
				return fmt.Errorf("the giver was updated %d times", given)
			}
			if err := measure.Sleep(ctx, pollInterval); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	c.took = last.Sub(start)
	return c, nil
}

// updates returns how often the CLI was called to update each taker, and the giver, since the calls were counted last.
func (s *scale) updates() (ran map[string]int, given int, err error) {
	counts, err := callsSoFar(s.stub)
	if err != nil {
		return nil, 0, err
	}
	ran = map[string]int{}
	for call, count := range counts {
		parts := strings.Split(call, "\t")
		switch {
		case len(parts) < 3 || parts[2] != "up":
		case parts[0] == giver:
			given += count
		case parts[0] == taker:
			ran[parts[1]] += count
		}
	}
	return ran, given, nil
}

// text returns the section about inputs.
func (t *taken) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\n## With inputs\n\n%d Stacks have %d [inputs](spec/v1/stacks.md#inputs) each: outputs of one Stack, and keys of a watched ConfigMap. "+
		"They\nneed %s more heap, %.1f kB each.\n\n", takers, inputsEach, measure.Megabytes(t.heap), float64(t.heap)/1000/takers)
	out.WriteString(row("", "time", "processor time of stack-controller per Stack", "requests of stack-controller per Stack", "reads of Secrets and ConfigMaps per Stack") +
		"|---|---|---|---|---|\n")
	for _, line := range []struct {
		name string
		*cost
	}{{"first deployment", t.created}, {"the output changes, so each is updated once", t.changed}, {"an update of the other Stack that does not change it, so none is", t.unchanged}} {
		out.WriteString(row(line.name, measure.Seconds(line.took), perStack(line.cpu[controller], takers), number("%.1f", float64(line.sum())/takers),
			number("%.1f", float64(line.requests["GET secrets"]+line.requests["GET configmaps"])/takers)))
	}
	return out.String()
}
