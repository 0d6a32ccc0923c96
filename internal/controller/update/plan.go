package update

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
)

// A plan passes through the controller in parts, in the background. The agent sends it as a stream, and it is in immutable Secrets before
// the Update is complete. In the same way it is sent to the agent that carries it out. For each plan in transit, the content of one Secret
// is in memory, and the text.
const (
	// maxPlans is how many plans are in transit at the same time; at most half of them belong to one namespace.
	maxPlans = 8
	// planTimeout bounds how long a plan is in transit, not including its time in the queue.
	planTimeout = 2 * time.Minute
	// digestPrefix begins the digests in a status.
	digestPrefix = "sha256:"
)

// planProblem is why a plan cannot be carried out, with the reason of the condition.
type planProblem struct {
	reason, message string
}

func (p *planProblem) Error() string { return p.message }

// stalePlan returns the problem of a plan that no longer matches the present state of things.
func stalePlan(format string, args ...any) *planProblem {
	return &planProblem{reason: autov1alpha1.PlanStaleReason, message: fmt.Sprintf(format, args...) + "; nothing was changed"}
}

// planView is the plan that an operation carries out.
type planView struct {
	// problem is why it cannot be carried out; nil when it can.
	problem *planProblem
	// uid is the UID of the Update that saved the plan, and saved is the plan in the status of that Update.
	uid   types.UID
	saved *autov1alpha1.SavedPlan
}

// storedPlan is how an attempt to store a plan ended.
type storedPlan struct {
	plan *autov1alpha1.SavedPlan
	err  error
	at   time.Time
}

// storedPlan returns how the last attempt to store the plan of the Update ended; it is empty when there was none, or while one is running.
func (b *background) storedPlan(update *autov1alpha1.Update) storedPlan {
	b.mu.Lock()
	defer b.mu.Unlock()
	if current := b.taskOf(update); !current.running {
		return current.stored
	}
	return storedPlan{}
}

// observePlan reads the plan that the Update carries out. It has to be the plan that the Update names, and of the same Workspace, stack and
// kind of operation. If approved is not empty, it has to be the plan of the Update with this UID, and the Update has to run the same program.
// The agent compares what only the agent knows.
func (r *Reconciler) observePlan(ctx context.Context, update *autov1alpha1.Update, approved types.UID) (view planView, err error) {
	wanted := update.Spec.Plan
	if wanted == nil {
		return planView{}, nil
	}
	from := &autov1alpha1.Update{}
	err = r.APIReader.Get(ctx, types.NamespacedName{Namespace: update.Namespace, Name: wanted.Name}, from)
	if ctrlclient.IgnoreNotFound(err) != nil {
		return planView{}, fmt.Errorf("read the plan %q: %w", wanted.Name, err)
	}
	if err != nil {
		return planView{problem: stalePlan("there is no update %q with the plan any longer", wanted.Name)}, nil
	}
	if approved != "" && approved != from.UID {
		return planView{problem: stalePlan("update %q is not the one whose plan was approved", from.Name)}, nil
	}
	if approved != "" && !runsSameProgram(update, from) {
		return planView{problem: stalePlan("the plan of update %q is one of another program", from.Name)}, nil
	}
	return planView{problem: comparePlan(update, from), uid: from.UID, saved: from.Status.Plan}, nil
}

// planTypes maps the type of the Updates that carry out a plan to the type of the Updates that save it.
var planTypes = map[autov1alpha1.UpdateType]autov1alpha1.UpdateType{
	autov1alpha1.UpdateTypeUp:      autov1alpha1.UpdateTypePreview,
	autov1alpha1.UpdateTypeDestroy: autov1alpha1.UpdateTypeDestroy,
}

// comparePlan returns why update cannot carry out the plan of the Update from; nil when it can.
func comparePlan(update, from *autov1alpha1.Update) *planProblem {
	switch verdict := plans.Saved(from, update.Spec.Plan.Digest); {
	case !from.DeletionTimestamp.IsZero():
		return stalePlan("update %q with the plan is being deleted", from.Name)
	case verdict.State != plans.Approved:
		return stalePlan("%s", verdict.Problem)
	case from.Spec.Type != planTypes[update.Spec.Type]:
		return stalePlan("the plan of update %q is not one of a %s", from.Name, update.Spec.Type)
	case from.Spec.WorkspaceName != update.Spec.WorkspaceName || from.Spec.StackName != update.Spec.StackName:
		return stalePlan("the plan of update %q is one of another stack or workspace", from.Name)
	case usesPlanFile(update) && from.Status.Plan.StoredSize == 0:
		return &planProblem{reason: autov1alpha1.ConfigInvalidReason, message: fmt.Sprintf("the plan of update %q was saved without the file of "+
			"Pulumi: use `enforce: Inputs`; nothing was changed", from.Name)}
	case from.Status.Plan.StoredSize < 0 || from.Status.Plan.StoredSize > agentpb.MaxPlanSize:
		return stalePlan("the plan of update %q has a size that no plan has", from.Name)
	}
	return nil
}

// runsSameProgram reports whether both Updates name the same program, or none. An agent that has another program compares that with the plan,
// too, but has unpacked and read it before.
func runsSameProgram(a, b *autov1alpha1.Update) bool {
	one, other := ptr.Deref(a.Spec.Source, autov1alpha1.UpdateSource{}), ptr.Deref(b.Spec.Source, autov1alpha1.UpdateSource{})
	return one.Digest == other.Digest && one.Dir == other.Dir && ptr.Equal(a.Spec.ProjectInfo, b.Spec.ProjectInfo)
}

// usesPlanFile reports whether Pulumi checks the operation against its plan file.
func usesPlanFile(update *autov1alpha1.Update) bool {
	return update.Spec.Plan != nil && update.Spec.Type == autov1alpha1.UpdateTypeUp && update.Spec.Plan.Enforce.OrDefault() == autov1alpha1.EnforcePlan
}

// planRequest returns what the operation has to do with a plan; nil when it has none. The key is added when the operation starts, see hashKey.
func planRequest(o *observation) *agentpb.PlanRequest {
	switch update := o.update; {
	case o.plan.saved != nil:
		bare := func(digest string) string { return digest[min(len(digest), len(digestPrefix)):] }
		request := &agentpb.PlanRequest{WithoutFile: !usesPlanFile(update), Expected: &agentpb.PlanDigests{
			Inputs: bare(o.plan.saved.InputsDigest), Changes: bare(o.plan.saved.ChangesDigest), State: bare(o.plan.saved.StateDigest),
		}}
		if usesPlanFile(update) {
			request.FileDigest = o.plan.saved.FileDigest
		}
		return request
	case update.SavesPlan():
		return &agentpb.PlanRequest{WithoutFile: update.Spec.PlanEnforcement.OrDefault() == autov1alpha1.EnforceInputs || update.Spec.Type != autov1alpha1.UpdateTypePreview}
	}
	return nil
}
