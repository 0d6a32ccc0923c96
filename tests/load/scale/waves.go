package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/load/measure"
)

const (
	// waveStacks is how many Stacks follow one StackRollout, if there are as many, in waveCount waves of the same size.
	waveStacks, waveCount = 1000, 5
	// waveLabel is the label with the index of the wave.
	waveLabel = "wave"
	// waveOperations is how many updates run at once without a StackRollout. fewAtOnce and manyAtOnce are what maxConcurrent is: less than that, and more.
	waveOperations, fewAtOnce, manyAtOnce = 8, 5, 100
	// mostFree is the limit for the median of the time until a free place is filled, and mostWaved that for the time of a commit in waves, compared to
	// one without a StackRollout.
	mostFree, mostWaved = 1500 * time.Millisecond, 1.10
	// wavesName is the name of the StackRollout, its source and the project.
	wavesName = "waves"
)

// waved is what it costs that Stacks are updated in waves.
type waved struct {
	stacks int // how many there are
	// plain is the cost of a commit without a StackRollout, held that of a commit for which all wait, few and many those of a commit in waves.
	plain, held, few, many *cost
	// free has how long a place was free until the next update began, with fewAtOnce.
	free measure.Samples
	// heap is how much more memory the controller has once the Stacks belong to the StackRollout, after a garbage collection, in bytes.
	heap int64
	// parallelPlain, parallelFew and parallelMany are how many updates ran at once at most.
	parallelPlain, parallelFew, parallelMany int
	// ranBroken is how many Stacks were updated to a revision with which one of the second wave failed, and ranRevert to the one that reverted it.
	ranBroken, ranRevert int
}

// span is one update, as the CLI saw it.
type span struct {
	stack      string
	start, end int64 // in nanoseconds
}

// waves measures so many Stacks that are updated in waves, and deletes them. It fails unless each commit runs once on each Stack, wave after wave, and
// on as many as maxConcurrent at once, and never on more; a failure stops the waves after it, and a revert runs only where the failing revision had run.
func (s *scale) waves(ctx context.Context, stacks int) (w *waved, err error) {
	if err := s.runAtOnce(ctx, waveOperations); err != nil {
		return nil, err
	}
	app, template, err := s.system.Provide(ctx, wavesName, s.fleet.files(wavesName, s.fleet.value))
	if err != nil {
		return nil, err
	}
	t, w := &team{app: app, value: s.fleet.value}, &waved{stacks: stacks}
	if err := s.createMembers(ctx, t, template, stacks); err != nil {
		return nil, err
	}
	if _, err := s.fleet.await(ctx, []*team{t}); err != nil {
		return nil, err
	}
	if err := ranOnce(s.stub, []*team{t}); err != nil {
		return nil, err
	}
	if _, err := s.spans(); err != nil {
		return nil, err
	}
	if w.plain, _, err = s.commit(ctx, []*team{t}); err != nil {
		return nil, err
	}
	ran, err := s.spans()
	if err != nil {
		return nil, err
	}
	w.parallelPlain = atOnce(ran)
	fmt.Fprintf(s.out, "%d Stacks without a StackRollout: %s, %d at once\n", stacks, measure.Seconds(w.plain.took), w.parallelPlain)
	if err := s.fleet.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	before, err := s.heap(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.join(ctx, t); err != nil {
		return nil, fmt.Errorf("join the StackRollout: %w", err)
	}
	if err := s.fleet.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	after, err := s.heap(ctx)
	if err != nil {
		return nil, err
	}
	w.heap = after - before
	if w.held, err = s.commitHeld(ctx, []*team{t}); err != nil {
		return nil, fmt.Errorf("a commit that waits: %w", err)
	}
	fmt.Fprintf(s.out, "%d Stacks wait: requests of everybody meanwhile: %v\n", stacks, w.held.requests)
	if w.few, ran, err = s.inWaves(ctx, t, fewAtOnce, func(context.Context) error { return nil }); err != nil {
		return nil, err
	}
	w.parallelFew, w.free = atOnce(ran), freePlaces(ran)
	commit := func(ctx context.Context) error { return s.fleet.commit(ctx, []*team{t}) }
	if w.many, ran, err = s.inWaves(ctx, t, manyAtOnce, commit); err != nil {
		return nil, err
	}
	w.parallelMany = atOnce(ran)
	if w.parallelFew < fewAtOnce || w.parallelMany <= fewAtOnce {
		return nil, fmt.Errorf("%d updates ran at once with maxConcurrent %d, and %d with %d: the bound was not reached",
			w.parallelFew, fewAtOnce, w.parallelMany, manyAtOnce)
	}
	s.limits.Check("seconds until a free place is filled, median", w.free.Median().Seconds(), mostFree.Seconds())
	s.limits.Check("time in waves, compared to without", w.slower(), mostWaved)
	if err := s.breakAndRevert(ctx, t, w); err != nil {
		return nil, fmt.Errorf("a revision that fails: %w", err)
	}
	if err := s.fleet.delete(ctx, []*team{t}); err != nil {
		return nil, err
	}
	if err := s.system.Client.Delete(ctx, &autov1alpha1.StackRollout{Namespace: t.app.Namespace, Name: wavesName}); err != nil {
		return nil, err
	}
	return w, s.runAtOnce(ctx, 0)
}

func (s *scale) createMembers(ctx context.Context, t *team, template *pulumiv1.Stack, stacks int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for i := range stacks {
		wave := i * waveCount / stacks
		stack := template.DeepCopy()
		stack.Name = fmt.Sprintf("stack-%d-%04d", wave, i)
		stack.Labels = map[string]string{waveLabel: strconv.Itoa(wave)}
		stack.Spec.Stack, stack.Spec.DestroyOnFinalize = stack.Name, true
		t.stacks = append(t.stacks, stack.Name)
		group.Go(func() error { return s.system.Client.Create(ctx, stack) })
	}
	return group.Wait()
}

// waveOf returns the index of the wave of a Stack.
func waveOf(stack string) int {
	wave, _, _ := strings.Cut(strings.TrimPrefix(stack, "stack-"), "-")
	index, _ := strconv.Atoi(wave)
	return index
}

// join creates a StackRollout that is suspended, and lets all Stacks join it.
func (s *scale) join(ctx context.Context, t *team) error {
	rollout := &autov1alpha1.StackRollout{Namespace: t.app.Namespace, Name: wavesName}
	rollout.Spec = autov1alpha1.StackRolloutSpec{SourceRef: autov1alpha1.RolloutSource{Kind: "GitRepository", Name: t.app.Name}, Suspend: true}
	for i := range waveCount {
		wave := autov1alpha1.RolloutWave{Name: fmt.Sprintf("wave-%d", i)}
		if i < waveCount-1 {
			wave.Stacks = &metav1.LabelSelector{MatchLabels: map[string]string{waveLabel: strconv.Itoa(i)}}
		}
		rollout.Spec.Waves = append(rollout.Spec.Waves, wave)
	}
	if err := s.system.Client.Create(ctx, rollout); err != nil {
		return fmt.Errorf("create the StackRollout: %w", err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(requesters)
	for _, name := range t.stacks {
		stack := &pulumiv1.Stack{Namespace: t.app.Namespace, Name: name}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"rolloutRef":{"name":%q}}}`, wavesName))
		group.Go(func() error { return s.system.Client.Patch(groupCtx, stack, patch) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.awaitComplete(ctx, t)
}

// awaitComplete waits until all Stacks of the team have what their source offers.
func (s *scale) awaitComplete(ctx context.Context, t *team) error {
	return s.awaitRollout(ctx, t, func(rollout *autov1alpha1.StackRollout) bool {
		all := len(t.stacks)
		return rollout.Status.Done == fmt.Sprintf("%d/%d", all, all) && meta.IsStatusConditionTrue(rollout.Status.Conditions, autov1alpha1.RolloutComplete)
	})
}

// awaitRollout waits until the StackRollout is as wanted. It fails when that takes longer than patience after the last change of a Stack.
func (s *scale) awaitRollout(ctx context.Context, t *team, wanted func(*autov1alpha1.StackRollout) bool) error {
	rollout := &autov1alpha1.StackRollout{}
	for start := time.Now(); time.Since(start) < patience || time.Since(s.fleet.lastChange()) < patience; {
		if err := s.system.Client.Get(ctx, client.ObjectKey{Namespace: t.app.Namespace, Name: wavesName}, rollout); err != nil {
			return err
		}
		if wanted(rollout) {
			return nil
		}
		if err := measure.Sleep(ctx, 10*pollInterval); err != nil {
			return err
		}
	}
	return fmt.Errorf("the StackRollout is not as it should be after %s: %s, %v", patience, rollout.Status.Done, rollout.Status.Conditions)
}

// commitHeld makes a commit that no Stack of the teams may have, and measures what that costs until nothing happens any longer.
func (s *scale) commitHeld(ctx context.Context, teams []*team) (*cost, error) {
	c, err := s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.fleet.commit(ctx, teams); err != nil {
			return err
		}
		for _, t := range teams {
			if err := s.awaitRollout(ctx, t, func(rollout *autov1alpha1.StackRollout) bool {
				return rollout.Status.Done == fmt.Sprintf("0/%d", len(t.stacks))
			}); err != nil {
				return err
			}
		}
		return measure.Sleep(ctx, quietTime)
	})
	if err == nil {
		err = s.noneRan()
	}
	return c, err
}

// noneRan returns an error if the CLI was called for a Stack of the fleet or in waves.
func (s *scale) noneRan() error {
	ran, err := callsSoFar(s.stub)
	if err == nil && len(ran) > 0 {
		err = fmt.Errorf("the CLI was called: %v", ran)
	}
	return err
}

// inWaves lets the commit reach all Stacks, at most so many at once, and returns the updates.
func (s *scale) inWaves(ctx context.Context, t *team, most int, commit func(context.Context) error) (c *cost, ran []span, err error) {
	if _, err := s.spans(); err != nil {
		return nil, nil, err
	}
	c, err = s.measureCost(ctx, func(ctx context.Context) error {
		if err := s.setRollout(ctx, t, most); err != nil {
			return err
		}
		if err := commit(ctx); err != nil {
			return err
		}
		_, err := s.fleet.await(ctx, []*team{t})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%d at once: %w", most, err)
	}
	if ran, err = s.spans(); err != nil {
		return nil, nil, err
	}
	if err := checkOrder(ran); err != nil {
		return nil, nil, err
	}
	parallel := atOnce(ran)
	if parallel > most {
		return nil, nil, fmt.Errorf("%d updates ran at once, and maxConcurrent is %d", parallel, most)
	}
	fmt.Fprintf(s.out, "%d Stacks in %d waves, maxConcurrent %d: %s, %d at once\n", len(t.stacks), waveCount, most, measure.Seconds(c.took), parallel)
	return c, ran, ranOnce(s.stub, []*team{t})
}

// setRollout lets so many Stacks be updated at once.
func (s *scale) setRollout(ctx context.Context, t *team, atOnce int) error {
	rollout := &autov1alpha1.StackRollout{Namespace: t.app.Namespace, Name: wavesName}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":false,"maxConcurrent":%d}}`, atOnce))
	return s.system.Client.Patch(ctx, rollout, patch)
}

// checkOrder fails if an update of a wave began before all of the wave before it had ended.
func checkOrder(ran []span) error {
	var first, last [waveCount]int64
	for _, update := range ran {
		wave := waveOf(update.stack)
		if first[wave] == 0 || update.start < first[wave] {
			first[wave] = update.start
		}
		last[wave] = max(last[wave], update.end)
	}
	for wave := range waveCount - 1 {
		if first[wave+1] < last[wave] && first[wave+1] != 0 {
			return fmt.Errorf("wave %d began %s before the end of the wave before it", wave+1, time.Duration(last[wave]-first[wave+1]))
		}
	}
	return nil
}

// edge is the start or the end of an update, which makes one more or one less run.
type edge struct {
	at     int64
	change int
}

// edgesOf returns the edges of the updates in their order; of those at the same time, ends come first.
func edgesOf(ran []span) (edges []edge) {
	for _, update := range ran {
		edges = append(edges, edge{update.start, 1}, edge{update.end, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change)) })
	return edges
}

// atOnce returns how many updates ran at once at most.
func atOnce(ran []span) (most int) {
	running := 0
	for _, e := range edgesOf(ran) {
		running += e.change
		most = max(most, running)
	}
	return most
}

// freePlaces returns how long each place of a wave was free, from the end of an update to the start of the next one. The first place that
// became free is filled first; the last places of a wave stay free.
func freePlaces(ran []span) (free measure.Samples) {
	waves := map[int][]span{}
	for _, update := range ran {
		waves[waveOf(update.stack)] = append(waves[waveOf(update.stack)], update)
	}
	for _, wave := range waves {
		var since []int64
		for _, e := range edgesOf(wave) {
			switch {
			case e.change < 0:
				since = append(since, e.at)
			case len(since) > 0:
				free = append(free, time.Duration(e.at-since[0]))
				since = since[1:]
			}
		}
	}
	return free
}

// spans returns the updates of the Stacks that ran since the last call.
func (s *scale) spans() ([]span, error) {
	path := filepath.Join(s.stub, "spans")
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the times of the updates: %w", err)
	}
	var found []span
	for line := range strings.Lines(string(content)) {
		project, update := "", span{}
		if _, err := fmt.Sscanf(line, "%s %s %d %d", &project, &update.stack, &update.start, &update.end); err != nil {
			return nil, fmt.Errorf("read the times of the updates: %w", err)
		}
		if project == wavesName {
			found = append(found, update)
		}
	}
	return found, os.Truncate(path, 0)
}

// breakAndRevert makes a commit with which a Stack of the second wave fails, and reverts it.
func (s *scale) breakAndRevert(ctx context.Context, t *team, w *waved) error {
	victim := t.stacks[len(t.stacks)/waveCount*3/2]
	good := s.fleet.files(t.app.Name, t.value)
	broken := gitserver.Files{"Pulumi.yaml": strings.TrimSuffix(good["Pulumi.yaml"], "\n") + "-fails-" + victim + "\n"}
	push := func(files gitserver.Files) error {
		if _, err := t.app.Repository.Commit(files); err != nil {
			return err
		}
		return s.system.Fetch(ctx, t.app)
	}
	if err := push(broken); err != nil {
		return err
	}
	if err := s.awaitRollout(ctx, t, func(rollout *autov1alpha1.StackRollout) bool {
		ready := meta.FindStatusCondition(rollout.Status.Conditions, fluxmeta.ReadyCondition)
		return ready != nil && ready.Reason == autov1alpha1.RolloutHaltedReason && len(rollout.Status.Turns) == 0
	}); err != nil {
		return err
	}
	ranBroken, err := s.ranOf()
	if err != nil {
		return err
	}
	for stack := range ranBroken {
		if waveOf(stack) > 1 {
			return fmt.Errorf("the Stack %s ran what had failed in an earlier wave", stack)
		}
	}
	if ranBroken[victim] == 0 {
		return fmt.Errorf("the Stack %s did not run what it fails with", victim)
	}
	if err := push(good); err != nil {
		return err
	}
	if err := s.awaitComplete(ctx, t); err != nil {
		return err
	}
	if _, err := s.fleet.await(ctx, []*team{t}); err != nil {
		return err
	}
	ranRevert, err := s.ranOf()
	if err != nil {
		return err
	}
	for stack, times := range ranRevert {
		if ranBroken[stack] == 0 || times != 1 && stack != victim { // which was tried again
			return fmt.Errorf("the Stack %s ran the revert %d times, and had run what was reverted %d times", stack, times, ranBroken[stack])
		}
	}
	w.ranBroken, w.ranRevert = len(ranBroken), len(ranRevert)
	_, err = calls(s.stub)
	return err
}

// ranOf returns how often each Stack was updated since the last call.
func (s *scale) ranOf() (map[string]int, error) {
	ran, err := s.spans()
	counts := map[string]int{}
	for _, update := range ran {
		counts[update.stack]++
	}
	return counts, err
}

// slower returns how many times as long a commit takes with manyAtOnce as without a StackRollout.
func (w *waved) slower() float64 { return w.many.took.Seconds() / w.plain.took.Seconds() }

// text returns the section about waves.
func (w *waved) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "\n## In waves\n\n%d Stacks follow one [StackRollout](spec/v1/stackrollouts.md) with %d waves of the same size and no soak. The second wave begins\n"+
		"when the last update of the first one has ended, and so on. An update takes 1 s, and %d run at once (`--max-operations`): GOMEMLIMIT is\n"+
		"%d MiB here, which is what stack-controller needs for them.\n\n", w.stacks, waveCount, waveOperations, memoryFor(waveOperations)>>20)
	out.WriteString(row("a commit", "time", "updates at once, at most", "processor time of stack-controller per Stack", "requests of stack-controller per Stack",
		"writes of the StackRollout") + "|---|---|---|---|---|---|\n")
	for _, line := range []struct {
		name     string
		parallel int
		*cost
	}{
		{"without a StackRollout", w.parallelPlain, w.plain},
		{"for which all wait", 0, w.held},
		{number("with maxConcurrent %d", fewAtOnce), w.parallelFew, w.few},
		{number("with maxConcurrent %d", manyAtOnce), w.parallelMany, w.many},
	} {
		out.WriteString(row(line.name, measure.Seconds(line.took), strconv.Itoa(line.parallel), perStack(line.cpu[controller], w.stacks),
			number("%.1f", float64(line.sum())/float64(w.stacks)), number("%d", rolloutWrites(line.cost))))
	}
	fmt.Fprintf(&out, "\nThe requests of stack-controller for the commit for which all wait: %s. With maxConcurrent %d, a place that became free was filled after\n"+
		"%s (median; 99 of 100: %s), from the end of an update to the start of the next one. The limit for the median is %s.\n",
		w.held.byVerb(), fewAtOnce, measure.Seconds(w.free.Median()), measure.Seconds(quantile(w.free, 0.99)), measure.Seconds(mostFree))
	fmt.Fprintf(&out, "\nThat they belong to the StackRollout needs %.1f kB more heap for each Stack.\n", float64(w.heap)/1000/float64(w.stacks))
	fmt.Fprintf(&out, "\nWith maxConcurrent %d it takes %.2f times as long as without a StackRollout; the limit is %.2f. With a revision that fails on one Stack of the second wave, "+
		"%d Stacks\nwere updated, none of a later wave. The commit that reverted it was run by %d, and by no Stack that had not run the other one.\n",
		manyAtOnce, w.slower(), mostWaved, w.ranBroken, w.ranRevert)
	return out.String()
}

// rolloutWrites returns how often the status of the StackRollout was written.
func rolloutWrites(c *cost) (writes int) {
	for kind, count := range c.requests {
		if strings.HasSuffix(kind, " stackrollouts/status") {
			writes += count
		}
	}
	return writes
}
