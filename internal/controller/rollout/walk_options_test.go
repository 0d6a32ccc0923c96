package rollout

import (
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// sight is what a controller saw earlier, that is the leader no longer, or whose cache is behind.
type sight struct {
	rollout   *autov1alpha1.StackRollout
	version   int
	main      autov1alpha1.RolloutRevision
	problem   *source.Problem
	approvals []autov1alpha1.ApprovalSpec
	actors    []*actor
	// seen has what each of them was, in the same order.
	seen []actor
}

// look returns what a controller sees now.
func (w *walker) look() *sight {
	s := &sight{rollout: w.rollout.DeepCopy(), version: w.version, main: w.main, problem: w.problem, approvals: slices.Clone(w.approvals)}
	s.actors = slices.Clone(w.actors)
	for _, a := range s.actors {
		copied := *a
		copied.Stack, copied.ended, copied.clean = a.DeepCopy(), maps.Clone(a.ended), maps.Clone(a.clean)
		s.seen = append(s.seen, copied)
	}
	return s
}

// decideAs lets a controller decide that sees what was there earlier. The API server refuses what it writes if the StackRollout was written meanwhile.
func (w *walker) decideAs(s *sight) {
	now, offer := w.look(), w.offer
	w.see(s)
	if s.version == now.version {
		w.rollout = now.rollout
		w.decideNow()
		s.version = -1
	} else {
		rollout := s.rollout.DeepCopy()
		last, events := w.last, w.events
		w.rollout, w.offer = s.rollout.DeepCopy(), nil
		if s.problem == nil {
			w.offer = new(s.main)
		}
		w.decide()
		w.promise(reflect.DeepEqual(rollout, s.rollout), "a decision changed the StackRollout in the cache")
		w.last, w.events = last, events
	}
	written := w.rollout
	w.see(now)
	if s.version == -1 {
		w.rollout = written
	}
	w.offer, w.woken = offer, true
	for _, a := range w.actors {
		a.free = a.free || a.running != nil && w.turnOf(a) == nil
	}
}

// see makes what a controller sees that which is there.
func (w *walker) see(s *sight) {
	w.rollout, w.main, w.problem, w.approvals, w.actors = s.rollout, s.main, s.problem, s.approvals, s.actors
	w.stacks = nil
	for i, a := range s.actors {
		released, byHand := a.released, a.byHand
		*a = s.seen[i]
		a.released, a.byHand = released, byHand
		w.stacks = append(w.stacks, a.Stack)
	}
}

// wake lets the StackRollout be reconciled because of what the watch saw. In the end only what its last decision names does so.
func (w *walker) wake(by waker) {
	w.woken = w.woken || !w.settling || w.last.wake == by
}

// edit changes the specification of the StackRollout.
func (w *walker) edit(change func(*autov1alpha1.StackRolloutSpec)) {
	change(&w.rollout.Spec)
	w.most = max(w.most, w.rollout.Spec.MaxConcurrent.IntValue())
	w.followWaves()
	w.rollout.Generation++
	w.version++
	w.wake(byEdit)
}

// commit adds a revision to the repository, which consists of this for each Stack. The sources have not polled it yet.
func (w *walker) commit(content func(a *actor, letter string) string) {
	letter := walkLetters[len(w.letters) : len(w.letters)+1]
	w.letters = append(w.letters, letter)
	for _, a := range w.actors {
		a.contents[letter] = content(a, letter)
	}
	w.newest = revision(letter)
}

// poll makes the source of the StackRollout offer the newest revision.
func (w *walker) poll() {
	w.main, w.kept[letter(w.newest.Digest)] = w.newest, true
	w.wake(bySource)
}

// pollOwn makes the own source of a Stack offer the newest revision.
func (w *walker) pollOwn(a *actor) {
	if newest := packed(w.newest); a.own != nil && *a.own != *newest {
		*a.own, w.kept[letter(w.newest.Digest)] = *newest, true
		w.wake(bySource)
	}
}

// options are what can happen next.
func (w *walker) options() map[string]func() {
	all := map[string]func(){
		"suspend": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.Suspend = !spec.Suspend })
		},
		"the first wave gets another name": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.Waves[0].Name += "+" })
		},
		"a selector is invalid": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) {
				spec.Waves[0].Namespaces = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}
			})
		},
		"a check is invalid": func() {
			w.edit(func(spec *autov1alpha1.StackRolloutSpec) { spec.Waves[0].Check = walkInvalidCheck })
		},
		"the specification is mended": w.mend,
		"the source is gone": func() {
			w.problem = &source.Problem{Reason: pulumiv1.SourceNotFoundReason, Message: "it does not exist", Watched: true}
			w.wake(bySource)
		},
		"the source is there": func() {
			w.problem = nil
			w.wake(bySource)
		},
		"the source polls": w.poll,
		"the same content under another name": func() {
			if target := w.rollout.Status.Target; w.problem != nil || target == nil || target.Revision != w.newest.Revision {
				return // it was not seen under the name that it has
			}
			w.newest = *again(letter(w.newest.Digest), len(w.steps))
			w.poll()
		},
		"lose the status": func() {
			w.rollout.Status = autov1alpha1.StackRolloutStatus{}
			w.version++
			w.wake(byEdit)
			w.forget()
		},
		"lose the store":        func() { w.kept = map[string]bool{letter(w.main.Digest): true, letter(w.newest.Digest): true} },
		"the controller starts": func() { w.started, w.woken = w.now, true },
		"another controller looks": func() {
			w.sight = w.look()
		},
		"another controller decides": func() {
			if w.sight != nil {
				w.decideAs(w.sight)
				w.sight = nil
			}
		},
		"all are suspended": func() {
			for _, a := range w.actors {
				w.change(a, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = true })
			}
		},
	}
	if len(w.letters) < maxLetters {
		maps.Copy(all, w.commits())
	}
	maps.Copy(all, w.decisions())
	maps.Copy(all, w.edits())
	if len(w.actors) < 5 {
		for _, tier := range []string{"canary", "early", ""} {
			all["one joins wave "+tier] = func() { w.join(tier) }
		}
	}
	for _, a := range w.actors {
		maps.Copy(all, w.optionsOf(a))
	}
	return all
}

// commits are what somebody can commit.
func (w *walker) commits() map[string]func() {
	all, had := map[string]func(){}, letter(w.newest.Digest)
	for name, content := range map[string]func(*actor, string) string{
		"commit": func(_ *actor, letter string) string { return letter },
		"commit for the first": func(a *actor, letter string) string {
			if a == w.actors[0] {
				return letter
			}
			return a.contents[had]
		},
		"revert": func(a *actor, _ string) string { return a.contents["a"] },
	} {
		all[name] = func() { w.commit(content); w.poll() }
		all[name+" that the source does not see"] = func() { w.commit(content) }
		all[name+" that all Stacks see first"] = func() {
			w.commit(content)
			w.poll()
			for _, a := range w.actors {
				w.pollOwn(a)
				w.act(a, w.rollout)
			}
		}
	}
	return all
}

// forget forgets which Stacks had a turn, and which updates the waves soak after: without the status, nobody knows that, or which revisions were names of the
// same content.
func (w *walker) forget() {
	for _, a := range w.actors {
		a.free, a.done = true, ""
		if last := a.Status.LastUpdate; last != nil && last.Revision != w.main.Revision {
			delete(a.ended, a.has())
		}
	}
}

// mend makes the specification valid.
func (w *walker) mend() {
	w.edit(func(spec *autov1alpha1.StackRolloutSpec) {
		for i := range spec.Waves {
			if spec.Waves[i].Namespaces = nil; spec.Waves[i].Check == walkInvalidCheck {
				spec.Waves[i].Check = ""
			}
		}
	})
}

// decisions are what somebody can decide about the target.
func (w *walker) decisions() map[string]func() {
	all, target := map[string]func(){}, w.target()
	if target == "" || len(w.approvals) >= 3 {
		return all
	}
	decide := func(decision autov1alpha1.ApprovalDecision, wave string) func() {
		return func() {
			w.approve(decision, wave, target)
			w.wake(byApproval)
		}
	}
	all["approve"], all["reject"] = decide(autov1alpha1.ApprovalApprove, ""), decide(autov1alpha1.ApprovalReject, "")
	for i := range w.rollout.Spec.Waves {
		if wave := &w.rollout.Spec.Waves[i]; wave.Promotion == autov1alpha1.PromoteManual {
			all["promote "+wave.Name] = decide(autov1alpha1.ApprovalApprove, wave.Name)
		}
	}
	return all
}

// progress is what a Stack does by itself.
func (w *walker) progress() map[string]func() {
	each := func(visit func(*actor)) func() {
		return func() {
			for _, a := range w.actors {
				visit(a)
			}
		}
	}
	all := map[string]func(){
		"all act":     each(func(a *actor) { w.act(a, w.rollout) }),
		"all succeed": each(func(a *actor) { w.end(a, succeeds) }),
	}
	for _, a := range w.actors {
		all[a.Name+" acts"] = func() { w.act(a, w.rollout) }
		if a.running != nil {
			all[a.Name+" "+string(succeeds)] = func() { w.end(a, succeeds) }
			all[a.Name+" "+string(fails)] = func() { w.end(a, fails) }
		}
		if w.isPending(a) {
			all[a.Name+" has its plan approved"] = func() { w.approvePlan(a) }
		}
	}
	return all
}

func (w *walker) isPending(a *actor) bool {
	return a.Status.Plan != nil && a.Status.Plan.State == pulumiv1.PlanPending
}

// approvePlan approves the plan of the Stack. If another one was rejected, the Stack makes a new one.
func (w *walker) approvePlan(a *actor) {
	if plan := a.Status.Plan; plan != nil && plan.State == pulumiv1.PlanRejected {
		w.change(a, func(stack *pulumiv1.Stack) { stack.Status.Plan = nil })
	}
	if w.isPending(a) {
		w.change(a, func(stack *pulumiv1.Stack) { stack.Status.Plan.State = pulumiv1.PlanApproved })
	}
}

// optionsOf are what can happen to a Stack.
func (w *walker) optionsOf(a *actor) map[string]func() {
	all := map[string]func(){
		a.Name + " is let have it": func() {
			offer := w.offerOf(a)
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, pulumiv1.ReleaseRevisionAnnotation, offer.Revision)
			a.byHand[letter(offer.Digest)] = true
		},
		a.Name + " acts late": func() { w.act(a, w.before) },
		a.Name + " is suspended or resumed": func() {
			w.change(a, func(stack *pulumiv1.Stack) { stack.Spec.Suspend = !stack.Spec.Suspend; stack.Generation++ })
			w.change(a, func(stack *pulumiv1.Stack) { stack.Status.ObservedGeneration = stack.Generation })
		},
		a.Name + " is edited": func() {
			w.change(a, func(stack *pulumiv1.Stack) { stack.Generation++ })
			a.edited = true
		},
		a.Name + " is deleted": func() {
			w.change(a, func(stack *pulumiv1.Stack) { stack.DeletionTimestamp = new(metav1.NewTime(w.now)) })
		},
		a.Name + "'s source polls": func() { w.pollOwn(a) },
		a.Name + " is unhealthy":   func() { w.setHealth(a, false) },
		a.Name + " is healthy":     func() { w.setHealth(a, true) },
	}
	for _, tier := range []string{"canary", "early", ""} {
		all[a.Name+" moves to wave "+tier] = func() {
			w.change(a, func(stack *pulumiv1.Stack) { stack.Labels = map[string]string{"tier": tier} })
		}
	}
	for _, other := range w.actors {
		if other != a {
			all[a.Name+" requires "+other.Name] = func() { w.require(a, other) }
		}
	}
	if a.running != nil {
		for _, how := range []outcome{isInterrupted, isLocked} {
			all[a.Name+" "+string(how)] = func() { w.end(a, how) }
		}
	}
	if w.isPending(a) {
		all[a.Name+" has its plan rejected"] = func() {
			w.change(a, func(stack *pulumiv1.Stack) { stack.Status.Plan.State = pulumiv1.PlanRejected })
		}
	}
	if waves.ChecksDrift(a.Stack, w.rollout) && a.running == nil {
		all[a.Name+" finds drift"] = func() { w.change(a, func(stack *pulumiv1.Stack) { looks(stack, "drift") }) }
	}
	return all
}

// someWindows returns windows of which none is open for some hours.
func (w *walker) someWindows() []autov1alpha1.Window {
	closes := time.Duration(w.random.IntN(4)) * time.Hour
	return []autov1alpha1.Window{
		between(autov1alpha1.WindowAllow, -time.Hour, closes), between(autov1alpha1.WindowAllow, closes+2*time.Hour, 10_000*time.Hour),
	}
}
