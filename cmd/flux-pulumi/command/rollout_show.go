package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// maxTurns is how many turns are named, those that take longest.
const maxTurns = 5

func (s *session) showRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show how far a StackRollout is",
		Long: "Show the revision that a StackRollout brings to Stacks, how far each wave is, which Stacks fail, and what it waits for. SINCE is for how\n" +
			"long the oldest turn of a wave lasts; for a wave without turns, how long ago the last of its Stacks was updated.",
	}
	s.onRollout(cmd, func(_ context.Context, _ *cluster, rollout *autov1alpha1.StackRollout) error {
		s.printRollout(rollout)
		return nil
	})
	return cmd
}

func (s *session) printRollout(rollout *autov1alpha1.StackRollout) {
	status := &rollout.Status
	details := print.NewTable(s.out, "", "")
	details.Headless()
	rows := [][]print.Cell{{{Text: "ready"}, ready(status.Conditions)}}
	for _, detail := range s.rolloutDetails(rollout) {
		rows = append(rows, []print.Cell{{Text: detail[0]}, {Text: detail[1]}})
	}
	details.Write(rows...)
	if len(status.Waves) == 0 {
		return
	}
	s.out.Line("")
	s.printWaves(status)
	if conditions.GetReason(rollout, meta.ReadyCondition) == autov1alpha1.PromotionRequiredReason {
		s.out.Line("")
		s.out.Line("To promote it: %s rollout promote %s -n %s --revision %s", invocation(s.Program), rollout.Name, rollout.Namespace, print.Clean(status.Target.Revision))
	}
	for _, failing := range status.Failing {
		s.log.Warning("%s fails: %s", failing.Stack, print.Clean(failing.Message))
	}
	for _, refused := range status.Refused {
		s.log.Warning("%s gets nothing: %s", refused.Stack, print.Clean(refused.Message))
	}
}

// rolloutDetails returns what is said about the StackRollout besides its waves: labels and texts.
func (s *session) rolloutDetails(rollout *autov1alpha1.StackRollout) [][2]string {
	status := &rollout.Status
	details := [][2]string{{"because", message(status.Conditions, meta.ReadyCondition)}}
	if status.Target != nil {
		details = append(details, [2]string{"revision", fmt.Sprintf("%s, for %s", short(status.Target.Revision), since(status.Target.Since.Time, s.Now()))})
	}
	if status.Stable != nil {
		details = append(details, [2]string{"all have had", short(status.Stable.Revision)})
	}
	if count := len(status.Plans); count > 0 {
		details = append(details, [2]string{"plans", fmt.Sprintf("%d, made before their turns: %s rollout plans %s -n %s",
			count, invocation(s.Program), rollout.Name, rollout.Namespace)})
	}
	if len(status.Turns) > 0 {
		details = append(details, [2]string{"turns", s.turnsOf(status)})
	}
	if next := nextTurns(rollout); next != "" {
		details = append(details, [2]string{"next", next})
	}
	return details
}

// turnsOf names the Stacks that have turns, those that take longest first.
func (s *session) turnsOf(status *autov1alpha1.StackRolloutStatus) string {
	turns := slices.Clone(status.Turns)
	slices.SortStableFunc(turns, func(a, b autov1alpha1.RolloutTurn) int { return a.Since.Compare(b.Since.Time) })
	var names []string
	for _, turn := range turns[:min(len(turns), maxTurns)] {
		names = append(names, fmt.Sprintf("%s for %s", turn.Stack, since(turn.Since.Time, s.Now())))
	}
	text := strings.Join(names, ", ")
	if more := len(turns) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// nextTurns says how many turns follow in the wave that is open, or in the one after it, and when they would not; empty when none do.
func nextTurns(rollout *autov1alpha1.StackRollout) string {
	spec, status := &rollout.Spec, &rollout.Status
	open := slices.IndexFunc(status.Waves, func(wave autov1alpha1.RolloutWaveStatus) bool { return wave.Name == status.Wave })
	if open < 0 || len(status.Waves) != len(spec.Waves) {
		return ""
	}
	for i := open; i < len(spec.Waves); i++ {
		wave, entry := &spec.Waves[i], &status.Waves[i]
		if entry.Waiting > 0 && entry.Name == wave.Name {
			return fmt.Sprintf("%d more turns in wave %s, at most %d at once; maxFailures is %d",
				entry.Waiting, wave.Name, waves.MaxConcurrent(spec, wave, waves.CountOf(entry)), waves.MaxFailures(spec, wave, waves.CountOf(entry)))
		}
	}
	return ""
}

// waveColumn is a column with a number of Stacks of a wave. A rare one is left out when all of its numbers are zero.
type waveColumn struct {
	heading string
	rare    bool
	stacks  func(*autov1alpha1.RolloutWaveStatus) int32
}

func waveColumns() []waveColumn {
	return []waveColumn{
		{"STACKS", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Stacks }},
		{"UPDATED", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Updated }},
		{"UNCHANGED", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Unchanged }},
		{"RUNNING", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Running }},
		{"WAITING", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Waiting }},
		{"FAILING", false, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.Failing }},
		{"BROKEN BEFORE", true, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.BrokenBefore }},
		{"LEFT OUT", true, func(wave *autov1alpha1.RolloutWaveStatus) int32 { return wave.LeftOut }},
	}
}

func (s *session) printWaves(status *autov1alpha1.StackRolloutStatus) {
	columns := slices.DeleteFunc(waveColumns(), func(column waveColumn) bool {
		return column.rare && !slices.ContainsFunc(status.Waves, func(wave autov1alpha1.RolloutWaveStatus) bool { return column.stacks(&wave) > 0 })
	})
	headings := []string{"WAVE", "STATE"}
	for _, column := range columns {
		headings = append(headings, column.heading)
	}
	var rows [][]print.Cell
	for i := range status.Waves {
		wave := &status.Waves[i]
		row := []print.Cell{{Text: wave.Name}, {Text: string(wave.State), Style: styleOfWave(wave)}}
		for _, column := range columns {
			row = append(row, print.Cell{Text: fmt.Sprint(column.stacks(wave))})
		}
		rows = append(rows, append(row, print.Cell{Text: since(sinceOf(status, wave), s.Now())}))
	}
	print.NewTable(s.out, append(headings, "SINCE")...).Write(rows...)
}

// sinceOf returns when the oldest turn of the wave began, or else when a Stack of it was updated last; zero when none was.
func sinceOf(status *autov1alpha1.StackRolloutStatus, wave *autov1alpha1.RolloutWaveStatus) (oldest time.Time) {
	for _, turn := range status.Turns {
		if turn.Wave == wave.Name && (oldest.IsZero() || turn.Since.Time.Before(oldest)) {
			oldest = turn.Since.Time
		}
	}
	if oldest.IsZero() && wave.SoakingSince != nil {
		return wave.SoakingSince.Time
	}
	return oldest
}

func styleOfWave(wave *autov1alpha1.RolloutWaveStatus) print.Style {
	switch {
	case wave.Failing > 0:
		return print.Bad
	case wave.State == autov1alpha1.RolloutWaveComplete:
		return print.Good
	case wave.State != autov1alpha1.RolloutWavePending:
		return print.Busy
	}
	return print.Plain
}
