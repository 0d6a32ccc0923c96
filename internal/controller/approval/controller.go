// Package approval is the controller of Approvals: it decides whether an Approval counts. The Stack controller decides what follows from
// that.
package approval

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/backoff"
	"github.com/stack-controller/stack-controller/internal/controller/plans"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/patch"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// maxOfRollout is how many Approvals of a StackRollout are kept.
const maxOfRollout = 20

// Reconciler reconciles Approvals. Its fields are set before SetupWithManager, and do not change.
type Reconciler struct {
	client.Client
	record.EventRecorder
	// APIReader reads from the API server, because the decision on an Approval is final and the cache may be behind.
	APIReader client.Reader
	// Shard has the Stacks of this controller; nil when it has all.
	Shard *shard.Shard
}

// +kubebuilder:rbac:groups=auto.pulumi.com,resources=approvals,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=approvals/status,verbs=patch
// +kubebuilder:rbac:groups=auto.pulumi.com,resources=updates;stackrollouts,verbs=get
// +kubebuilder:rbac:groups=pulumi.com,resources=stacks,verbs=get
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// SetupWithManager adds the controller to the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("approval").
		For(&autov1alpha1.Approval{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(options).
		Complete(r)
	if err != nil {
		return fmt.Errorf("build the Approval controller: %w", err)
	}
	return nil
}

// Reconcile decides once whether an Approval counts.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	approval := &autov1alpha1.Approval{}
	if err := r.Get(ctx, request.NamespacedName, approval); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if meta.FindStatusCondition(approval.Status.Conditions, autov1alpha1.ApprovalAccepted) != nil || !approval.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	o := observation{approval: approval}
	if err := r.observe(ctx, &o); err != nil {
		return ctrl.Result{}, err
	}
	if o.stack != nil && !r.Shard.Has(o.stack) || o.rollout != nil && !r.Shard.Has(o.rollout) {
		// The controller of its shard decides. Nothing wakes this one when it gets the Stack or the StackRollout before that.
		return ctrl.Result{RequeueAfter: backoff.Proportional(o.age(), longestWait, maxUnseen)}, nil
	}
	said := decide(o)
	if said.after > 0 {
		return ctrl.Result{RequeueAfter: said.after}, nil
	}
	return ctrl.Result{}, r.recordVerdict(ctx, &o, said)
}

// observe reads what the Approval names.
func (r *Reconciler) observe(ctx context.Context, o *observation) error {
	o.now = time.Now()
	if name := o.approval.Spec.Rollout; name != "" {
		rollout := &autov1alpha1.StackRollout{}
		if err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: o.approval.Namespace, Name: name}, rollout); err != nil {
			return described(err, "read the stackrollout %s", name)
		}
		o.rollout = rollout
		return nil
	}
	update := &autov1alpha1.Update{}
	key := types.NamespacedName{Namespace: o.approval.Namespace, Name: o.approval.Spec.Update}
	if err := r.APIReader.Get(ctx, key, update); err != nil {
		return described(err, "read the update %s", key.Name)
	}
	o.update = update
	owner := pulumiv1.OwningStack(update)
	if owner == nil {
		return nil
	}
	stack := &pulumiv1.Stack{}
	if err := r.APIReader.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: owner.Name}, stack); err != nil {
		return described(err, "read the stack %s", owner.Name)
	}
	if stack.UID == owner.UID {
		o.stack = stack
	}
	return nil
}

func described(err error, format string, args ...any) error {
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf(format+": %w", append(args, err)...)
	}
	return nil
}

// recordVerdict writes the verdict into the status, and records events about it for the Approval and its Stack. It makes the Update of the
// plan, or the StackRollout, the owner of the Approval, so that the Approval is deleted with it.
func (r *Reconciler) recordVerdict(ctx context.Context, o *observation, v verdict) error {
	approval := o.approval
	before := approval.DeepCopy()
	if bind(o) {
		if err := patch.Object(ctx, r.Client, before, approval); err != nil {
			return described(err, "make the approval go with its plan")
		}
		before = approval.DeepCopy()
	}
	kind := corev1.EventTypeNormal
	if v.accepted {
		if o.rollout != nil {
			approval.Status.TargetDigest = o.rollout.Status.Target.Digest
		}
		conditions.MarkTrue(approval, autov1alpha1.ApprovalAccepted, v.reason, "%s", v.message)
	} else {
		kind = corev1.EventTypeWarning
		conditions.MarkFalse(approval, autov1alpha1.ApprovalAccepted, v.reason, "%s", v.message)
	}
	if err := patch.Status(ctx, r.Client, before, approval); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.Event(approval, kind, v.reason, v.message)
	if o.stack != nil {
		r.Eventf(o.stack, kind, v.reason, "Approval %s: %s", approval.Name, v.message)
	}
	if o.rollout != nil {
		r.Eventf(o.rollout, kind, v.reason, "Approval %s: %s", approval.Name, v.message)
		return r.prune(ctx, o.rollout)
	}
	return nil
}

// bind makes the Update or the StackRollout the owner of the Approval. It returns whether that is new.
func bind(o *observation) bool {
	owner := metav1.OwnerReference{APIVersion: autov1alpha1.GroupVersion.String()}
	switch {
	case o.update != nil:
		owner.Kind, owner.Name, owner.UID = autov1alpha1.UpdateKind, o.update.Name, o.update.UID
	case o.rollout != nil:
		owner.Kind, owner.Name, owner.UID = autov1alpha1.StackRolloutKind, o.rollout.Name, o.rollout.UID
	}
	if owner.Name == "" || len(o.approval.OwnerReferences) > 0 {
		return false
	}
	o.approval.OwnerReferences = []metav1.OwnerReference{owner}
	return true
}

// rejectionOf returns the index of the first Approval that rejects the target of the StackRollout; -1 when there is none.
func rejectionOf(rollout *autov1alpha1.StackRollout, approvals []autov1alpha1.Approval) int {
	return slices.IndexFunc(approvals, func(approval autov1alpha1.Approval) bool {
		return approval.Spec.Decision == autov1alpha1.ApprovalReject && plans.Counts(&approval) && rollout.Status.Target != nil &&
			waves.Same(rollout.Status.Target.RolloutRevision, plans.RevisionOf(&approval))
	})
}

// prune deletes the oldest Approvals of a StackRollout that are more than maxOfRollout. The rejection of the target stays: it cannot be taken
// back, also not by many later Approvals.
func (r *Reconciler) prune(ctx context.Context, rollout *autov1alpha1.StackRollout) error {
	list := &autov1alpha1.ApprovalList{}
	err := r.List(ctx, list, client.InNamespace(rollout.Namespace), client.MatchingFields{informercache.ApprovalsByRollout: rollout.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list the approvals of stackrollout %s: %w", rollout.Name, err)
	}
	slices.SortFunc(list.Items, func(a, b autov1alpha1.Approval) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	kept := rejectionOf(rollout, list.Items)
	for i := range list.Items[:max(0, len(list.Items)-maxOfRollout)] {
		old := &list.Items[i]
		if i == kept {
			continue
		}
		if err := client.IgnoreNotFound(r.Delete(ctx, old, client.Preconditions{UID: &old.UID})); err != nil {
			return fmt.Errorf("delete an old approval: %w", err)
		}
	}
	return nil
}
