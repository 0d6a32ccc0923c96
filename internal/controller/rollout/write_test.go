package rollout

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/informercache"
	"github.com/stack-controller/stack-controller/internal/source"
	"github.com/stack-controller/stack-controller/internal/waves"
)

// offering is a source that offers one revision after the other.
type offering struct {
	*source.Flux
	offers autov1alpha1.RolloutRevision
}

func (o *offering) Resolve(context.Context, *pulumiv1.Stack, bool) (*source.Artifact, error) {
	return &source.Artifact{Digest: o.offers.Digest, Revision: o.offers.Revision, Published: time.Now(), Watched: true}, nil
}

// keeper is a store that keeps nothing.
type keeper struct{}

func (keeper) Keep(string, []string) {}

// Everybody who watches gets each write, and many Stacks end their updates at once.
func TestStatusIsWrittenAtMostOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := newFleet(t)
		f.rollout.Status = autov1alpha1.StackRolloutStatus{}
		scheme := runtime.NewScheme()
		g.Expect(autov1alpha1.AddToScheme(scheme)).To(Succeed())
		g.Expect(pulumiv1.AddToScheme(scheme)).To(Succeed())
		var writes []time.Time
		objects := []client.Object{f.rollout}
		for _, stack := range f.stacks {
			objects = append(objects, stack)
		}
		flux := &offering{Flux: &source.Flux{}, offers: revision("a")}
		r := &Reconciler{
			Sources: &source.Set{Sources: []source.Source{flux}}, Store: keeper{}, EventRecorder: record.NewFakeRecorder(100),
			Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(f.rollout).
				WithIndex(&pulumiv1.Stack{}, informercache.StacksByRollout, func(object client.Object) []string {
					key, _ := waves.RolloutOf(object.(*pulumiv1.Stack))
					return []string{key.String()}
				}).
				WithIndex(&autov1alpha1.Approval{}, informercache.ApprovalsByRollout, func(object client.Object) []string {
					return []string{object.(*autov1alpha1.Approval).Spec.Rollout}
				}).
				WithInterceptorFuncs(interceptor.Funcs{
					SubResourcePatch: func(
						ctx context.Context, to client.Client, name string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
					) error {
						writes = append(writes, time.Now())
						return to.SubResource(name).Patch(ctx, object, patch, options...)
					},
				}).Build(),
		}
		key := client.ObjectKeyFromObject(f.rollout)
		reconcile := func() time.Duration {
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			g.Expect(err).NotTo(HaveOccurred())
			return result.RequeueAfter
		}
		target := func() string {
			written := &autov1alpha1.StackRollout{}
			g.Expect(r.Get(t.Context(), key, written)).To(Succeed())
			return written.Status.Target.Digest
		}
		reconcile()
		g.Expect(writes).To(HaveLen(1))
		for _, letter := range []string{"b", "c", "d"} {
			flux.offers = revision(letter)
			g.Expect(reconcile()).To(BeNumerically("~", writeInterval, writeInterval/2))
			time.Sleep(writeInterval / 10)
		}
		g.Expect(writes).To(HaveLen(1))
		g.Expect(target()).To(Equal(revision("a").Digest))
		time.Sleep(reconcile())
		reconcile()
		g.Expect(writes).To(HaveLen(2))
		g.Expect(writes[1].Sub(writes[0])).To(Equal(writeInterval))
		g.Expect(target()).To(Equal(revision("d").Digest), "one write has all that changed")
	})
}
