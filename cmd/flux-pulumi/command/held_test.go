package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
)

const offered = "main@sha1:5287e5dcb24f022155344a298e718672f4c6c63d"

// heldFleet returns a source, a StackRollout whose first wave soaks, and Stacks of its last wave, which wait.
func heldFleet() (*autov1alpha1.StackRollout, []client.Object) {
	const digest = "sha256:c9b1"
	source := &sourcev1.GitRepository{Namespace: "apps", Name: "infrastructure"}
	source.Status.Artifact = &meta.Artifact{Revision: offered, Digest: digest}
	rollout := &autov1alpha1.StackRollout{Namespace: "apps", Name: "fleet"}
	rollout.Spec.Waves = []autov1alpha1.RolloutWave{{Name: "canary", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "canary"}}}, {Name: "rest"}}
	rollout.Status.Waves = []autov1alpha1.RolloutWaveStatus{{Name: "canary", State: autov1alpha1.RolloutWaveSoaking, Stacks: 2}, {Name: "rest", Stacks: 8, Waiting: 7}}
	rollout.Status.Wave, rollout.Status.Done = "canary", "3/10"
	rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: autov1alpha1.RolloutRevision{Revision: offered, Digest: digest}}
	rollout.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: autov1alpha1.RolloutSoakingReason}}
	objects := []client.Object{source, rollout}
	for i := range 3 {
		stack := &pulumiv1.Stack{Namespace: "apps", Name: fmt.Sprintf("s%d", i)}
		stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.GitRepositoryKind, Name: source.Name}}
		stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: rollout.Name}
		stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:4830"}
		objects = append(objects, stack)
	}
	return rollout, objects
}

func TestWhatHoldsManyStacksIsListedOnce(t *testing.T) {
	for name, test := range map[string]struct {
		output, says string
		named        bool
		lists        map[string]int
	}{
		"wide":                     {"wide", "wave rest, after canary: Soaking", true, map[string]int{"StackList": 1, "StackRolloutList": 1, "GitRepositoryList": 1}},
		"wide, and no Stack waits": {"wide", "", false, map[string]int{"StackList": 1}},
		"not wide":                 {"", "", true, map[string]int{"StackList": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, objects := heldFleet()
			for _, object := range objects[2:] {
				if !test.named {
					object.(*pulumiv1.Stack).Spec.RolloutRef = nil
				}
			}
			c, reads := newCluster(objects...)
			lists := map[string]int{}
			c.client = interceptor.NewClient(c.client, interceptor.Funcs{
				List: func(ctx context.Context, caller client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
					kind, err := caller.GroupVersionKindFor(into)
					g.Expect(err).NotTo(HaveOccurred())
					lists[kind.Kind]++
					return caller.List(ctx, into, options...)
				},
			})
			s, _ := newSession(nil)
			var out strings.Builder
			s.out = print.New(&out, func(string) string { return "" })
			g.Expect((&getter{session: s, cluster: c, kind: stacks(), options: getOptions{output: test.output}}).run(t.Context(), nil)).To(Succeed())
			g.Expect(lists).To(Equal(test.lists))
			g.Expect(*reads).To(BeZero())
			g.Expect(strings.Count(out.String(), "wave rest, after canary: Soaking")).To(Equal(map[bool]int{true: 3}[test.says != ""]), out.String())
		})
	}
}

func TestWhyAStackIsHeldIsTheAnswerOfTheGate(t *testing.T) {
	type facts struct {
		rollout *autov1alpha1.StackRollout
		stack   *pulumiv1.Stack
		denied  string
	}
	shown := []metav1.Condition{{Type: pulumiv1.HeldCondition, Status: metav1.ConditionTrue, Reason: pulumiv1.WaveNotOpenReason}}
	for name, test := range map[string]struct {
		change func(*facts)
		says   string
	}{
		"a later wave":  {func(*facts) {}, "wave rest, after canary: Soaking"},
		"the open wave": {func(f *facts) { f.stack.Labels = map[string]string{"tier": "canary"} }, "wave canary: Soaking"},
		"a turn":        {func(f *facts) { f.rollout.Status.Turns = []autov1alpha1.RolloutTurn{{Stack: "apps/s0"}} }, ""},
		"a turn just now": {func(f *facts) {
			f.stack.Status.Conditions, f.stack.Status.LastUpdate = shown, &pulumiv1.StackUpdateStatus{LastAttemptedCommit: "sha256:c9b1"}
		}, ""},
		"suspended":       {func(f *facts) { f.stack.Spec.Suspend = true }, ""},
		"no StackRollout": {func(f *facts) { f.stack.Spec.RolloutRef.Name = "other" }, pulumiv1.RolloutNotFoundReason},
		"refused": {func(f *facts) {
			f.rollout.Status.Refused = []autov1alpha1.RolloutFailure{{Stack: "apps/s0"}}
		}, "StackNotInRollout"},
		"waves edited":    {func(f *facts) { f.rollout.Spec.Waves[0].Name = "first" }, pulumiv1.WaveNotOpenReason},
		"limit not known": {func(f *facts) { f.rollout.Spec.Waves[0].Limit = new(intstr.FromInt32(1)) }, pulumiv1.WaveNotOpenReason},
		"a window": {func(f *facts) {
			f.stack.Spec.RolloutRef, f.stack.Status.Conditions = nil, []metav1.Condition{{Type: pulumiv1.HeldCondition, Reason: "WindowClosed"}}
		}, "WindowClosed"},
		"source denied":    {func(f *facts) { f.denied = "GitRepository" }, "unknown"},
		"rollout denied":   {func(f *facts) { f.denied = autov1alpha1.StackRolloutKind }, "unknown"},
		"denied and shown": {func(f *facts) { f.denied, f.stack.Status.Conditions = autov1alpha1.StackRolloutKind, shown }, pulumiv1.WaveNotOpenReason},
		"labels of a Namespace": {func(f *facts) {
			f.rollout.Spec.Waves[0].Stacks, f.rollout.Spec.Waves[0].Namespaces = nil, &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}
		}, "wave canary: Soaking"},
		"admission not known": {func(f *facts) {
			f.denied, f.rollout.Namespace, f.stack.Spec.RolloutRef.Namespace = "Namespace", "platform", "platform"
			f.rollout.Spec.AllowedNamespaces = &autov1alpha1.AllowedNamespaces{From: autov1alpha1.FromSelector, Selector: &metav1.LabelSelector{}}
		}, "unknown"},
		"labels of a Namespace denied": {func(f *facts) {
			f.denied, f.rollout.Spec.Waves[0].Namespaces = "Namespace", &metav1.LabelSelector{}
		}, pulumiv1.WaveNotOpenReason},
	} {
		for _, lists := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lists %t", name, lists), func(t *testing.T) {
				rollout, objects := heldFleet()
				f := &facts{rollout: rollout, stack: objects[2].(*pulumiv1.Stack)}
				test.change(f)
				c, _ := newCluster(append(objects, &corev1.Namespace{Name: "apps", Labels: map[string]string{"env": "test"}})...)
				c.client = denying(c.client, f.denied)
				find := &finder{cluster: c, ctx: t.Context(), lists: lists}
				NewWithT(t).Expect(find.whyHeld(f.stack)).To(Equal(test.says))
			})
		}
	}
}

// denying returns a client whose user may not read the kind.
func denying(caller client.WithWatch, denied string) client.WithWatch {
	check := func(object schema.GroupVersionKind, err error) error {
		if err == nil && denied != "" && strings.TrimSuffix(object.Kind, "List") == denied {
			return apierrors.NewForbidden(schema.GroupResource{Resource: object.Kind}, "", errors.New("denied"))
		}
		return err
	}
	return interceptor.NewClient(caller, interceptor.Funcs{
		Get: func(ctx context.Context, caller client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			if err := check(caller.GroupVersionKindFor(into)); err != nil {
				return err
			}
			return caller.Get(ctx, key, into, options...)
		},
		List: func(ctx context.Context, caller client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
			if err := check(caller.GroupVersionKindFor(into)); err != nil {
				return err
			}
			return caller.List(ctx, into, options...)
		},
	})
}

func TestTurnsOfAStackRolloutAreShownWithTheirAge(t *testing.T) {
	g := NewWithT(t)
	rollout, _ := heldFleet()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for i := range maxTurns + 2 {
		since := metav1.NewTime(now.Add(-time.Duration(i+1) * time.Minute))
		rollout.Status.Turns = append(rollout.Status.Turns, autov1alpha1.RolloutTurn{Stack: fmt.Sprintf("apps/s%d", i), Wave: "canary", Since: since})
	}
	rollout.Status.Waves[0].SoakingSince = new(metav1.NewTime(now.Add(-time.Hour)))
	s, _ := newSession(nil)
	var out strings.Builder
	s.Now, s.out = func() time.Time { return now }, print.New(&out, func(string) string { return "" })
	s.printRollout(rollout)
	g.Expect(out.String()).To(ContainSubstring("turns      apps/s6 for 7m, apps/s5 for 6m, apps/s4 for 5m, apps/s3 for 4m, apps/s2 for 3m and 2 more\n" +
		"next       7 more turns in wave rest, at most 10 at once; maxFailures is 0\n"))
	g.Expect(out.String()).To(MatchRegexp(`(?m)^canary +Soaking +2 +0 +0 +0 +0 +0 +7m$`))
	g.Expect(out.String()).NotTo(Or(ContainSubstring("BROKEN"), ContainSubstring("LEFT OUT")), "there are none")
}

func TestStackWithoutAStackRolloutSaysHowARevisionPassesItsWindows(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{}
	g.Expect(hintWithoutRollout(stack)).To(Equal("it gets each revision at once"))
	stack.Spec.Windows = []autov1alpha1.Window{{}}
	g.Expect(hintWithoutRollout(stack)).To(ContainSubstring("set the annotation pulumi.com/release-revision on the Stack to that revision"))
}
