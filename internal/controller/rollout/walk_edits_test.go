package rollout

import (
	"slices"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// walkCheck is true of a Stack unless it says that it is not healthy.
const (
	walkCheck        = `!stack.status.conditions.exists(c, c.type == "Healthy" && c.status == "False")`
	walkInvalidCheck = "no such thing"
)

// earlyWave selects the Stacks of the tier early.
func earlyWave() autov1alpha1.RolloutWave {
	return autov1alpha1.RolloutWave{Name: "early", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "early"}}}
}

// edits are what somebody can do to the rules of the waves.
func (w *walker) edits() map[string]func() {
	all := map[string]func(){
		"a wave comes or goes": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) {
				i := slices.IndexFunc(spec.Waves, func(wave autov1alpha1.RolloutWave) bool { return identityOf(&wave) == "early" })
				if i < 0 {
					wave := earlyWave()
					wave.Soak = &metav1.Duration{Duration: walkSoak}
					spec.Waves = slices.Insert(spec.Waves, w.random.IntN(2), wave)
				} else {
					spec.Waves = slices.Delete(slices.Clone(spec.Waves), i, i+1)
				}
			})
		},
		"the first waves change places": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) {
				if len(spec.Waves) == 3 {
					spec.Waves[0], spec.Waves[1] = spec.Waves[1], spec.Waves[0]
				}
			})
		},
		"maxFailures": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.MaxFailures = number(w.random.IntN(3)) })
		},
		"maxConcurrent": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.MaxConcurrent = number(1 + w.random.IntN(3)) })
		},
	}
	wave := func(change func(*autov1alpha1.RolloutWave)) func() {
		return func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { change(&spec.Waves[w.random.IntN(len(spec.Waves))]) })
		}
	}
	all["a wave soaks or not"] = wave(func(wave *autov1alpha1.RolloutWave) {
		if wave.Soak != nil {
			wave.Soak = nil
		} else {
			wave.Soak = &metav1.Duration{Duration: walkSoak}
		}
	})
	all["a wave has another limit or none"] = wave(func(wave *autov1alpha1.RolloutWave) {
		switch {
		case wave.Stacks == nil: // the last one
		case wave.Limit != nil && w.random.IntN(2) == 0:
			wave.Limit = nil
		default:
			wave.Limit = number(1 + w.random.IntN(2))
		}
	})
	all["a wave is promoted or not"] = wave(func(wave *autov1alpha1.RolloutWave) {
		if wave.Promotion == autov1alpha1.PromoteManual {
			wave.Promotion = ""
		} else {
			wave.Promotion = autov1alpha1.PromoteManual
		}
	})
	all["a wave is checked or not"] = wave(func(wave *autov1alpha1.RolloutWave) {
		if wave.Check != "" {
			wave.Check = ""
		} else {
			wave.Check = walkCheck
		}
	})
	all["a wave looks for drift or not"] = wave(func(wave *autov1alpha1.RolloutWave) {
		if wave.NoDrift = !wave.NoDrift; !wave.NoDrift {
			return
		}
		// Those of a wave that is over are not looked at again.
		for _, a := range w.actors {
			if entry := w.entryOf(wave.Name); a.tier == identityOf(wave) && entry != nil && isOver(entry) {
				for letter := range a.ended {
					a.clean[letter] = true
				}
			}
		}
	})
	return all
}

// identityOf returns what a wave is known by, whatever its name and its place are.
func identityOf(wave *autov1alpha1.RolloutWave) string {
	if wave.Stacks == nil {
		return ""
	}
	return wave.Stacks.MatchLabels["tier"]
}

// entryOf returns what the status says of a wave; nil when it says nothing.
func (w *walker) entryOf(wave string) *autov1alpha1.RolloutWaveStatus {
	i := slices.IndexFunc(w.rollout.Status.Waves, func(entry autov1alpha1.RolloutWaveStatus) bool { return entry.Name == wave })
	if i < 0 {
		return nil
	}
	return &w.rollout.Status.Waves[i]
}

// isOver reports whether all Stacks of the wave have the target.
func isOver(entry *autov1alpha1.RolloutWaveStatus) bool {
	return entry.State == autov1alpha1.RolloutWaveComplete || entry.State == autov1alpha1.RolloutWaveSoaking
}

// setHealth lets the Stack say whether it is healthy.
func (w *walker) setHealth(a *actor, healthy bool) {
	status := metav1.ConditionFalse
	if healthy {
		status = metav1.ConditionTrue
	}
	w.change(a, func(stack *pulumiv1.Stack) {
		apimeta.SetStatusCondition(&stack.Status.Conditions, metav1.Condition{Type: "Healthy", Status: status, Reason: "Test"})
	})
}

// isUnhealthy reports whether the Stack does not pass the check of its wave. One that was edited, or has to look for drift, is not checked before that is done.
func (w *walker) isUnhealthy(a *actor) bool {
	wave := &w.rollout.Spec.Waves[a.wave]
	looks := wave.NoDrift && !a.isChecked() && waves.IsNameOfTarget(a.Status.LastUpdate.Revision, &w.rollout.Status)
	return wave.Check == walkCheck && !looks && !a.edited && apimeta.IsStatusConditionFalse(a.Status.Conditions, "Healthy")
}

// heal makes all Stacks healthy.
func (w *walker) heal() {
	for _, a := range w.actors {
		if apimeta.IsStatusConditionFalse(a.Status.Conditions, "Healthy") {
			w.setHealth(a, true)
		}
	}
}
