package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
)

// maxProblems bounds how many problems a watcher keeps.
const maxProblems = 20

// watcher checks every status against the rules of kstatus, as statuscheck.Watch does, but in all namespaces, and it continues after a
// restart of the API server.
type watcher struct {
	running sync.WaitGroup
	gate    *approver

	mu       sync.Mutex
	checked  int
	writes   int // versions of objects that were seen
	problems []error
	last     map[types.UID]any
}

func startWatcher(ctx context.Context, from client.WithWatch, gate *approver) *watcher {
	w := &watcher{gate: gate, last: map[types.UID]any{}}
	for _, list := range []client.ObjectList{&pulumiv1.StackList{}, &autov1alpha1.WorkspaceList{}, &autov1alpha1.UpdateList{}} {
		w.running.Go(func() {
			for Wait(ctx, PollInterval) {
				watcher, err := from.Watch(ctx, list)
				if err != nil {
					continue
				}
				w.follow(ctx, watcher)
				watcher.Stop()
			}
		})
	}
	return w
}

func (w *watcher) follow(ctx context.Context, watcher watch.Interface) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-watcher.ResultChan():
			if !open {
				return
			}
			if object, ok := event.Object.(conditions.Setter); ok {
				w.check(ctx, event.Type, object)
			}
		}
	}
}

// check checks the status of a version of an object. It skips a version whose status has not changed: the version was not written by the
// controller, which may not have seen it yet.
func (w *watcher) check(ctx context.Context, kind watch.EventType, object conditions.Setter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	status := statusOf(object)
	w.writes++
	if kind == watch.Deleted || len(object.GetConditions()) == 0 || equality.Semantic.DeepEqual(w.last[object.GetUID()], status) {
		return
	}
	w.last[object.GetUID()] = status
	w.checked++
	if update, is := object.(*autov1alpha1.Update); is {
		if err := w.gate.checkApproved(update); err != nil && len(w.problems) < maxProblems {
			w.problems = append(w.problems, err)
		}
	}
	if err := statuscheck.Lint(ctx, object); err != nil && ctx.Err() == nil && len(w.problems) < maxProblems {
		w.problems = append(w.problems, fmt.Errorf("%T %s, version %s: %w\nits status: %+v",
			object, client.ObjectKeyFromObject(object), object.GetResourceVersion(), err, status))
	}
}

func statusOf(object any) any {
	switch object := object.(type) {
	case *pulumiv1.Stack:
		return object.Status
	case *autov1alpha1.Workspace:
		return object.Status
	case *autov1alpha1.Update:
		return object.Status
	}
	return nil
}

// take returns how many statuses were checked so far, and the problems that were found since the last call.
func (w *watcher) take() (checked int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err = errors.Join(w.problems...)
	w.problems = nil
	return w.checked, err
}

// seen returns how many versions of objects were seen so far. While the number grows, there is progress.
func (w *watcher) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes
}

// gatedEvery is the number of Stacks of which one needs an approval for each change.
const gatedEvery = 2

// approver approves the plans of Stacks that need approvals, and detects changes that were carried out without an approval.
type approver struct {
	mu sync.Mutex
	// gated has the namespaces of Stacks that need approvals.
	gated map[string]bool
	// approved has the approved digests, by the Update that made the plan. carried has the digests of the inputs and changes of approved
	// plans: a plan that is made again with the same digest keeps its approval.
	approved map[types.NamespacedName]map[string]bool
	carried  map[string]bool
	// saved has the digest of the inputs and changes of each plan, unchanged has the plans that change nothing, and changes has the digests of
	// the changes of each plan.
	saved     map[types.NamespacedName]string
	unchanged map[types.NamespacedName]bool
	changes   map[types.NamespacedName][]string
	judged    int // number of statuses of Updates that carried out a plan
}

func newApprover() *approver {
	return &approver{
		gated: map[string]bool{}, approved: map[types.NamespacedName]map[string]bool{}, carried: map[string]bool{},
		saved: map[types.NamespacedName]string{}, unchanged: map[types.NamespacedName]bool{}, changes: map[types.NamespacedName][]string{},
	}
}

// close makes each change of the Stack need an approval.
func (g *approver) close(stack *pulumiv1.Stack) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gated[stack.Namespace] = true
	stack.Spec.Approval = &pulumiv1.ApprovalPolicy{Require: pulumiv1.ApprovalAlways}
}

// approve approves all waiting plans until the context ends. A request that fails is repeated in the next round.
func (w *Environment) approve(ctx context.Context) {
	for Wait(ctx, 2*PollInterval) {
		looking, end := context.WithTimeout(ctx, 10*time.Second)
		stacks, self := &pulumiv1.StackList{}, &authenticationv1.SelfSubjectReview{}
		if w.Client.List(looking, stacks) == nil && w.Client.Create(looking, self) == nil {
			for i := range stacks.Items {
				w.approvePlan(looking, &stacks.Items[i], self.Status.UserInfo.Username)
			}
		}
		end()
	}
}

// approvePlan approves the plan of the Stack in the name of the user: an admission policy may require that the Approval names the user who
// creates it.
func (w *Environment) approvePlan(ctx context.Context, stack *pulumiv1.Stack, user string) {
	plan := stack.Status.Plan
	if stack.Spec.Approval == nil || plan == nil || plan.State != pulumiv1.PlanPending || plan.Digest == "" {
		return
	}
	key := types.NamespacedName{Namespace: stack.Namespace, Name: plan.Name}
	approval := &autov1alpha1.Approval{
		Namespace: key.Namespace, Name: fmt.Sprintf("%s-%.8s", plan.Name, strings.TrimPrefix(plan.Digest, "sha256:")),
		Spec: autov1alpha1.ApprovalSpec{Update: plan.Name, Digest: plan.Digest, Decision: autov1alpha1.ApprovalApprove, By: user},
	}
	// The approval counts from now on, because the response to the request may be lost.
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

// checkApproved returns an error if the Update started something that nobody approved. The watcher calls it for every version of the
// Update.
func (g *approver) checkApproved(update *autov1alpha1.Update) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gated[update.Namespace] {
		return nil
	}
	key := types.NamespacedName{Namespace: update.Namespace, Name: update.Name}
	if plan := update.Status.Plan; update.SavesPlan() && plan != nil {
		g.saved[key], g.unchanged[key] = plan.ChangesDigest, len(update.Status.Changes) == 0 && update.Status.OmittedChanges == 0
		g.changes[key] = nil
		for i := range update.Status.Changes {
			g.changes[key] = append(g.changes[key], update.Status.Changes[i].Digest)
		}
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
	if !g.approved[from][plan.Digest] && !g.carried[g.saved[from]] && !g.unchanged[from] && !g.isRest(from) {
		return fmt.Errorf("update %s started with plan %s (%s), which nobody approved", key, plan.Name, plan.Digest)
	}
	return nil
}

// isRest reports whether the plan is what is left of an approved one, which was begun and failed.
func (g *approver) isRest(plan types.NamespacedName) bool {
	for key, changes := range g.changes {
		isApproved := len(g.approved[key]) > 0 || g.carried[g.saved[key]]
		isOther := func(digest string) bool { return digest == "" || !slices.Contains(changes, digest) }
		if key.Namespace == plan.Namespace && isApproved && len(g.changes[plan]) > 0 && !slices.ContainsFunc(g.changes[plan], isOther) {
			return true
		}
	}
	return false
}

// planned returns how many statuses of Updates that carried out a plan were judged.
func (g *approver) planned() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.judged
}
