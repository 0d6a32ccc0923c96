package tenancy_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// rolloutAttacks try to hold back or to stop the Stacks of others, and to get a revision before its turn.
var rolloutAttacks = []attack{
	{
		name: "rollout-captures-others", promise: "rollouts",
		does: "creates a StackRollout that admits all namespaces, selects the victim's Stack by its labels and has the URL of its source, and is suspended",
		sees: "`RolloutComplete`, without a Stack: the commits of the victim are deployed at once, because its Stack does not name the StackRollout.",
		run:  captureOthers,
	},
	{
		name: "rollout-joined-uninvited", promise: "rollouts",
		does: "lets Stacks that fail name the victim's StackRollout, which admits only its own namespace, and one that does not exist",
		sees: "`RolloutNotFound`, in the same words for both. The victim's StackRollout goes on with the Stacks that it admits.",
		run:  joinUninvited,
	},
	{
		name: "rollout-left-without-leave", promise: "rollouts",
		does: "takes the own Stack out of its StackRollout, gives it a revision with the annotation, and writes the turns of the StackRollout",
		sees: "`Forbidden`",
		run:  leaveWithoutLeave,
	},
	{
		name: "rollout-check-bomb", promise: "expressions",
		does: "gives a StackRollout checks that need 88 MB when they are compiled, are too long, or read hidden fields",
		sees: "`InvalidCELExpression`, Stalled",
		run:  checkBombs,
	},
}

// newRollout returns a StackRollout of the attack with one wave, for a source of the attacker.
func (a *attacker) newRollout(kind, name string) *autov1alpha1.StackRollout {
	return &autov1alpha1.StackRollout{ObjectMeta: a.meta(), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: kind, Name: name}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}}
}

// inRollout makes a Stack name a StackRollout.
func inRollout(namespace, name string) func(*pulumiv1.StackSpec) {
	return func(spec *pulumiv1.StackSpec) {
		spec.RolloutRef = &pulumiv1.RolloutReference{Namespace: namespace, Name: name}
	}
}

func captureOthers(a *attacker) {
	source := &sourcev1.GitRepository{}
	a.Expect(system.Client.Get(a.ctx, a.victim.app.Key(), source)).To(Succeed())
	own := &sourcev1.GitRepository{ObjectMeta: a.meta(), Spec: sourcev1.GitRepositorySpec{
		URL: source.Spec.URL, Reference: source.Spec.Reference, Interval: source.Spec.Interval,
	}}
	a.create(own)
	rollout := a.newRollout(sourcev1.GitRepositoryKind, a.name)
	rollout.Spec.Suspend, rollout.Spec.AllowedNamespaces = true, &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromAll}
	rollout.Spec.Waves = []autov1alpha1.RolloutWave{{Name: "theirs", Stacks: &metav1.LabelSelector{}}, {Name: "rest"}}
	a.create(rollout)
	await(a, rollout, func(g Gomega, rollout *autov1alpha1.StackRollout) {
		g.Expect(conditions.GetReason(rollout, meta.ReadyCondition)).To(Equal(autov1alpha1.RolloutCompleteReason), "%+v", rollout.Status)
		g.Expect(rollout.Status.Waves).To(And(HaveLen(2), HaveEach(HaveField("Stacks", BeZero()))))
		g.Expect(rollout.Status.Refused).To(BeEmpty())
	})
	a.saw(autov1alpha1.RolloutCompleteReason)
	// It stays while the victim commits, see TestTenants.
}

func joinUninvited(a *attacker) {
	theirs := &autov1alpha1.StackRollout{Namespace: victimName, Name: a.name, Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: victimName}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}}
	a.Expect(system.Client.Create(a.ctx, theirs)).To(Succeed())
	// Another Stack of the victim is in it.
	app, member := &pulumiv1.Stack{}, &pulumiv1.Stack{Namespace: victimName, Name: a.name}
	a.Expect(system.Client.Get(a.ctx, a.victim.app.Key(), app)).To(Succeed())
	member.Spec = *app.Spec.DeepCopy()
	member.Spec.Stack = "member"
	inRollout("", a.name)(&member.Spec)
	a.Expect(system.Client.Create(a.ctx, member)).To(Succeed())
	a.newProgram()
	uninvited := refusal{reasons: []string{pulumiv1.RolloutNotFoundReason}, says: victimName + "/"}
	failing := func(name string) string {
		return a.expectRefused(a.numbered(a.newStack(fromProgram(a.name), inRollout(victimName, name))), uninvited)
	}
	a.Expect(strings.ReplaceAll(failing(a.name), "/"+a.name, "/gone")).To(Equal(failing("gone")), "whether it exists is not said")
	a.eventually(func(g Gomega) {
		g.Expect(system.Client.Get(a.ctx, client.ObjectKeyFromObject(theirs), theirs)).To(Succeed())
		g.Expect(conditions.GetReason(theirs, meta.ReadyCondition)).To(Equal(autov1alpha1.RolloutCompleteReason), "%+v", theirs.Status)
		g.Expect(theirs.Status.Done).To(Equal("1/1"), "%+v", theirs.Status)
		g.Expect(theirs.Status.Refused).To(HaveLen(1), "its owner learns who tries")
	})
	a.Expect(system.Client.Delete(a.ctx, member)).To(Succeed())
	a.Expect(system.Client.Delete(a.ctx, theirs)).To(Succeed())
}

func leaveWithoutLeave(a *attacker) {
	a.newProgram()
	rollout := a.newRollout(pulumiv1.ProgramKind, a.name)
	rollout.Spec.Suspend = true
	a.create(rollout)
	stack := a.createStack(fromProgram(a.name), inRollout("", a.name))
	for name, patch := range map[string]string{
		"no rollout":      `{"spec":{"rolloutRef":null}}`,
		"another rollout": `{"spec":{"rolloutRef":{"name":"own"}}}`,
		"the annotation":  fmt.Sprintf(`{"metadata":{"annotations":{%q:"main@sha1:abc"}}}`, pulumiv1.ReleaseRevisionAnnotation),
	} {
		err := a.client.Patch(a.ctx, stack.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
		a.Expect(err).To(HaveOccurred(), name)
		a.expectForbidden(err)
	}
	turns := []byte(`{"status":{"turns":[{"namespace":"attacker","name":"x"}]}}`)
	a.expectForbidden(a.client.Status().Patch(a.ctx, rollout, client.RawPatch(types.MergePatchType, turns)))
}

func checkBombs(a *attacker) {
	a.newProgram()
	for i, check := range []string{
		fmt.Sprintf(`stack.metadata.name.matches("(?:%s){1000}")`, strings.Repeat("a", 1900)), `"` + strings.Repeat("x", 300<<10) + `" == "x"`,
		"stack.spec.config.size() > 0", "stack.metadata.annotations.a == 'a'", "stack.status.history == []", "1 + 1",
	} {
		rollout := a.newRollout(pulumiv1.ProgramKind, a.name)
		rollout.Name = fmt.Sprint(a.name, "-", i)
		rollout.Spec.Waves[0].Check = check
		if err := a.client.Create(a.ctx, rollout); err != nil {
			a.Expect(err).To(MatchError(ContainSubstring("Too long")))
			continue
		}
		await(a, rollout, func(g Gomega, rollout *autov1alpha1.StackRollout) {
			g.Expect(conditions.GetReason(rollout, meta.StalledCondition)).To(Equal(pulumiv1.InvalidCELExpressionReason), "%s: %+v", check, rollout.Status)
		})
		a.Expect(len(conditions.GetMessage(rollout, meta.ReadyCondition))).To(BeNumerically("<=", 4<<10))
	}
	a.saw(pulumiv1.InvalidCELExpressionReason, stalled)
}
