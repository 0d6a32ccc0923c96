package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// reports makes the Stack report an output, in another version of it.
func reports(stack *pulumiv1.Stack, output, value string) {
	stack.ResourceVersion += "1"
	stack.Status.Outputs = map[string]apiextensionsv1.JSON{output: {Raw: []byte(value)}}
}

func TestChecks(t *testing.T) {
	const healthy = "stack.status.outputs.?healthy.orValue(true)"
	t.Run("healthy", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Check = healthy + " == true"
		f.offers("b")
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue())
	})
	t.Run("unhealthy", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Namespace = "team"
		f.rollout.Spec.Waves[0].Check = healthy + " == true"
		for _, stack := range f.stacks {
			stack.Spec.RolloutRef.Namespace = "team"
		}
		f.offers("b")
		reports(f.stacks[1], "healthy", "false")
		f.finish("b")
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
		f.Expect(f.last.stalled).To(BeTrue(), "no attempt changes it")
		f.Expect(f.rollout.Status.Failing).To(ConsistOf(autov1alpha1.RolloutFailure{Stack: "team/s1", Message: "check is false"}))
		f.Expect(f.rollout.Status.Done).To(Equal("2/8"))
		reports(f.stacks[1], "healthy", "true")
		f.decide()
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue(), "it goes on by itself")
	})
	t.Run("output-of-another-namespace", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Check = healthy + " == true"
		f.offers("b")
		reports(f.stacks[1], "healthy", "false")
		f.finish("b")
		f.Expect(f.last.complete).To(BeTrue(), "it is not shared")
		f.stacks[1].Spec.ShareOutputs = []pulumiv1.OutputShare{{Namespaces: []string{"plat*"}, Outputs: []string{"healthy"}}}
		f.stacks[1].ResourceVersion = "shared"
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	})
	t.Run("cannot-be-evaluated", func(t *testing.T) {
		f := newFleet(t)
		f.rollout.Spec.Waves[0].Check = "stack.status.outputs.healthy == true"
		f.offers("b")
		f.finish("b")
		f.Expect(f.rollout.Status.Failing).To(HaveLen(3))
		f.Expect(f.rollout.Status.Failing[0].Message).To(HavePrefix("check: it cannot be evaluated"))
	})
	t.Run("invalid", func(t *testing.T) {
		for expression, problem := range map[string]string{
			"stack.status.":                      "Syntax error",
			"stack.spec.secrets == null":         "stack.spec.secrets is not a field that it may read",
			"dep.metadata.name == 'a'":           "no variable dep",
			"[self].exists(s, true)":             "no variable self",
			"stack.metadata.annotations.a == ''": "is not a field that it may read",
			"stack.metadata.name":                "not a bool",
			strings.Repeat("!", 2049) + "true":   "longer than",
		} {
			f := newFleet(t)
			f.rollout.Spec.Waves[0].Check = expression
			f.offers("b")
			f.Expect(f.last.reason).To(Equal(pulumiv1.InvalidCELExpressionReason))
			f.Expect(f.last.message).To(And(HavePrefix(`wave "canary": check: `), ContainSubstring(problem)))
			f.Expect(f.last.stalled).To(BeTrue())
			f.Expect(f.turns()).To(BeEmpty())
		}
	})
}

// Of a large Stack the cache has only the small fields.
func TestCheckReadsAllOutputsOfALargeStack(t *testing.T) {
	f := newFleet(t)
	f.rollout.Spec.Waves[0].Check = "stack.status.outputs.?healthy.orValue(true) == true"
	f.rollout.Namespace = "team"
	for _, stack := range f.stacks {
		stack.Spec.RolloutRef.Namespace = "team"
	}
	f.offers("b")
	whole := f.stacks[0]
	for _, stack := range f.turns() {
		succeed(stack, "b")
	}
	reports(whole, "healthy", `"`+strings.Repeat("no", 40<<10)+`"`)
	reads := 0
	f.reconciler.APIReader = interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
			f.Expect(key).To(Equal(client.ObjectKeyFromObject(whole)))
			if reads++; reads == 1 {
				return errors.New("the API server does not answer")
			}
			whole.DeepCopyInto(into.(*pulumiv1.Stack))
			return nil
		},
	})
	f.stacks[0] = informercache.Shortened(whole.DeepCopy()).(*pulumiv1.Stack)
	f.Expect(f.stacks[0].Status.Outputs).To(BeEmpty())
	for range 2 {
		f.decide()
		f.Expect(f.last.message).To(Equal("wave canary waits: 1 of its Stacks are being checked"), "%v", f.rollout.Status.Failing)
		f.Expect(f.last.after).To(Equal(checkInterval))
	}
	for range 3 {
		f.decide()
		f.Expect(f.last.reason).To(Equal(autov1alpha1.RolloutHaltedReason))
	}
	f.Expect(f.rollout.Status.Failing).To(ConsistOf(autov1alpha1.RolloutFailure{Stack: "team/s0", Message: "check is false"}))
	f.Expect(reads).To(Equal(2), "each version is read once")
}

// The expression that takes longest, for as many Stacks as there may be.
func TestChecksOfManyStacksTakeBoundedTime(t *testing.T) {
	suite.WithoutRaceDetector(t)
	g := NewWithT(t)
	var stacks []*pulumiv1.Stack
	for i := range 10_000 {
		stack := &pulumiv1.Stack{Namespace: "team", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}
		stack.Status.Outputs = map[string]apiextensionsv1.JSON{"text": {Raw: []byte(`"` + strings.Repeat("a", 10_000) + `"`)}}
		stacks = append(stacks, stack)
	}
	r, rollout := &Reconciler{}, &autov1alpha1.StackRollout{Namespace: "team", Name: "all"}
	pass := func() (count int, took time.Duration) {
		check, start := r.checksOf(t.Context(), rollout, stacks), time.Now()
		for _, stack := range stacks {
			if _, known := check(types.NamespacedName{Namespace: stack.Namespace, Name: stack.Name}, `stack.status.outputs.text.matches("(a|b)*c") || true`); known {
				count++
			}
		}
		return count, time.Since(start)
	}
	known, fastest := pass()
	for range 3 {
		again, took := pass()
		g.Expect(again).To(BeNumerically(">", known), "what is known is not evaluated again")
		known, fastest = again, min(fastest, took)
	}
	t.Logf("%d of %d Stacks are known, the fastest pass took %s", known, len(stacks), fastest)
	// The machine may be busy during one pass.
	g.Expect(fastest).To(BeNumerically("<", checkBudget*12/10))
}

// An API server that is slow takes from the time for expressions, but some are evaluated each time, so that the checks end.
func TestReadsAndExpressionsOfChecksShareTheirTime(t *testing.T) {
	for name, tt := range map[string]struct {
		read                     time.Duration
		reads, known, mostPasses int
	}{
		"fast": {read: readBudget / 5, reads: 5, known: 10, mostPasses: 2},
		"slow": {read: 2 * checkBudget, reads: 1, known: 1, mostPasses: 30},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				var stacks []*pulumiv1.Stack
				whole := map[string]*pulumiv1.Stack{}
				for i := range 15 {
					stack := &pulumiv1.Stack{Namespace: "team", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}
					if i >= 5 {
						stack.Status.Outputs = map[string]apiextensionsv1.JSON{"text": {Raw: []byte(`"` + strings.Repeat("a", 80<<10) + `"`)}}
					}
					whole[stack.Name] = stack
					stacks = append(stacks, informercache.Shortened(stack.DeepCopy()).(*pulumiv1.Stack))
				}
				reads := 0
				r, rollout := &Reconciler{}, &autov1alpha1.StackRollout{Namespace: "team", Name: "all"}
				r.APIReader = interceptor.NewClient(nil, interceptor.Funcs{
					Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
						reads++
						time.Sleep(tt.read)
						whole[key.Name].DeepCopyInto(into.(*pulumiv1.Stack))
						return nil
					},
				})
				pass := func(version string) (known int) {
					for _, stack := range stacks[:5] {
						stack.ResourceVersion = version
					}
					check := r.checksOf(t.Context(), rollout, stacks)
					for _, stack := range stacks {
						if _, done := check(client.ObjectKeyFromObject(stack), "true"); done {
							known++
						}
					}
					return known
				}
				g.Expect(pass("1")).To(Equal(5), "large Stacks have to be read first")
				g.Expect(reads).To(BeZero())
				start := time.Now()
				g.Expect(pass("2")).To(Equal(tt.known))
				g.Expect(reads).To(Equal(tt.reads))
				g.Expect(time.Since(start)).To(Equal(time.Duration(tt.reads) * tt.read))
				passes := 1
				for pass("2") < len(stacks) {
					passes++
					g.Expect(passes).To(BeNumerically("<=", tt.mostPasses))
				}
			})
		})
	}
}
