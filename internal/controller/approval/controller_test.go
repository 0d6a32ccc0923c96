package approval

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/shard"
)

func TestApprovalThatWaitsIsDecidedByTheShardThatGetsItsStackRolloutOrStack(t *testing.T) {
	const of = "shard"
	for name, what := range map[string]func(o *observation) client.Object{
		"stackrollout": func(o *observation) client.Object {
			o.approval.Spec = autov1alpha1.ApprovalSpec{Rollout: "fleet", Revision: o.rollout.Status.Target.Revision, Decision: autov1alpha1.ApprovalApprove, By: "alice"}
			return o.rollout
		},
		"stack": func(o *observation) client.Object { return o.stack },
	} {
		t.Run(name, func(t *testing.T) {
			g, o := NewWithT(t), planned()
			o.rollout = &autov1alpha1.StackRollout{Namespace: "team", Name: "fleet"}
			o.rollout.Status.Target = &autov1alpha1.RolloutTarget{RolloutRevision: autov1alpha1.RolloutRevision{
				Revision: "main@sha1:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}
			o.approval.Namespace, o.update.Namespace, o.stack.Namespace, o.stack.UID = "team", "team", "team", "stack"
			o.approval.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
			o.stack.Status.Plan.ExpiresAt = &metav1.Time{Time: time.Now().Add(time.Hour)}
			o.update.OwnerReferences = []metav1.OwnerReference{{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.StackKind, Name: "app", UID: "stack", Controller: new(true)}}
			moves := what(o)
			moves.SetLabels(map[string]string{of: "a"})
			scheme := runtime.NewScheme()
			g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
			g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
			cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o.approval, o.rollout, o.stack, o.update).
				WithStatusSubresource(o.approval).WithIndex(o.approval, informercache.ApprovalsByRollout, func(object client.Object) []string {
				return []string{object.(*autov1alpha1.Approval).Spec.Rollout}
			}).Build()
			look := func(as string) time.Duration {
				t.Helper()
				r := Reconciler{Client: cluster, APIReader: cluster, EventRecorder: record.NewFakeRecorder(10),
					Shard: shard.New(labels.SelectorFromSet(labels.Set{of: as}))}
				result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o.approval)})
				g.Expect(err).NotTo(HaveOccurred())
				return result.RequeueAfter
			}
			g.Expect(look("b")).To(And(BeNumerically(">", 0), BeNumerically("<=", longestWait)), "it may get it")
			moves.SetLabels(map[string]string{of: "b"})
			g.Expect(cluster.Update(t.Context(), moves)).To(Succeed())
			g.Expect(look("a")).To(BeNumerically(">", 0), "it is not decided")
			g.Expect(look("b")).To(BeZero())
			decided := &autov1alpha1.Approval{}
			g.Expect(cluster.Get(t.Context(), client.ObjectKeyFromObject(o.approval), decided)).To(Succeed())
			g.Expect(conditions.IsTrue(decided, autov1alpha1.ApprovalAccepted)).To(BeTrue(), "%v", decided.Status.Conditions)
			g.Expect(look("a")).To(BeZero(), "somebody has decided")
		})
	}
}
