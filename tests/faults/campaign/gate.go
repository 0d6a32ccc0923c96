package campaign

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

const (
	// approver is who approves plans.
	approver = "campaign"
	// gatedEvery is one of how many Stacks needs an approval of each change.
	gatedEvery = 2
)

// gate approves the plans of Stacks that need it, and judges whether anything was carried out that was not approved.
type gate struct {
	mu sync.Mutex
	// gated are the namespaces of Stacks that need an approval.
	gated map[string]bool
	// approved are the digests that were approved, by the Update that made the plan, and carried are those of their inputs and changes, for
	// which a plan that is made again keeps its approval.
	approved map[types.NamespacedName]map[string]bool
	carried  map[string]bool
	// saved are the digests of inputs and changes of all plans; unchanged are the plans that change nothing.
	saved     map[types.NamespacedName]string
	unchanged map[types.NamespacedName]bool
	judged    int // statuses of Updates that carried out a plan
}

func newGate() *gate {
	return &gate{
		gated: map[string]bool{}, approved: map[types.NamespacedName]map[string]bool{}, carried: map[string]bool{},
		saved: map[types.NamespacedName]string{}, unchanged: map[types.NamespacedName]bool{},
	}
}

// close makes each change of the Stack need an approval.
func (g *gate) close(stack *pulumiv1.Stack) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gated[stack.Namespace] = true
	stack.Spec.Approval = &pulumiv1.ApprovalPolicy{Require: pulumiv1.ApprovalAlways}
}

// approve approves all plans that wait, until the context ends. A request that fails is repeated with the next look.
func (w *World) approve(ctx context.Context) {
	for Wait(ctx, 2*PollInterval) {
		looking, end := context.WithTimeout(ctx, 10*time.Second)
		stacks := &pulumiv1.StackList{}
		if err := w.Client.List(looking, stacks); err == nil {
			for i := range stacks.Items {
				w.approvePlan(looking, &stacks.Items[i])
			}
		}
		end()
	}
}

func (w *World) approvePlan(ctx context.Context, stack *pulumiv1.Stack) {
	plan := stack.Status.Plan
	if stack.Spec.Approval == nil || plan == nil || plan.State != pulumiv1.PlanPending || plan.Digest == "" {
		return
	}
	key := types.NamespacedName{Namespace: stack.Namespace, Name: plan.Name}
	approval := &autov1alpha1.Approval{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: fmt.Sprintf("%s-%.8s", plan.Name, strings.TrimPrefix(plan.Digest, "sha256:"))},
		Spec:       autov1alpha1.ApprovalSpec{Update: plan.Name, Digest: plan.Digest, Decision: autov1alpha1.ApprovalApprove, By: approver},
	}
	// It counts from here on: the answer may be lost.
	w.gate.mu.Lock()
	if w.gate.approved[key] == nil {
		w.gate.approved[key] = map[string]bool{}
	}
	w.gate.approved[key][plan.Digest], w.gate.carried[plan.ChangesDigest] = true, true
	w.gate.mu.Unlock()
	if err := w.Client.Create(ctx, approval); err != nil && !apierrors.IsAlreadyExists(err) {
		return
	}
}

// judge tells what an Update has done that nobody approved. It sees every version of it.
func (g *gate) judge(update *autov1alpha1.Update) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gated[update.Namespace] {
		return nil
	}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Name}
	if plan := update.Status.Plan; update.SavesPlan() && plan != nil {
		g.saved[key], g.unchanged[key] = plan.ChangesDigest, len(update.Status.Changes) == 0 && update.Status.OmittedChanges == 0
	}
	changesNothing := update.Spec.Type == autov1alpha1.UpdateTypePreview || update.Spec.PreviewOnly != nil && *update.Spec.PreviewOnly
	if changesNothing || !update.HasStarted() {
		return nil
	}
	plan := update.Spec.Plan
	if plan == nil {
		return fmt.Errorf("update %s of type %s started without a plan", key, update.Spec.Type)
	}
	g.judged++
	from := types.NamespacedName{Namespace: update.Namespace, Name: plan.Name}
	if !g.approved[from][plan.Digest] && !g.carried[g.saved[from]] && !g.unchanged[from] {
		return fmt.Errorf("update %s started with plan %s (%s), which nobody approved", key, plan.Name, plan.Digest)
	}
	return nil
}

// planned is how many statuses were judged of Updates that carried out a plan.
func (g *gate) planned() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.judged
}
