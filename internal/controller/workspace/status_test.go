package workspace

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
)

func TestReadyIsNeverSeenWithoutWhatItSpeaksOf(t *testing.T) {
	s := newFixture(t)
	watcher, err := ctrlclient.NewWithWatch(cluster.Config(), ctrlclient.Options{Scheme: s.client.Scheme()})
	s.Expect(err).NotTo(HaveOccurred())
	versions, err := watcher.Watch(t.Context(), &autov1alpha1.WorkspaceList{}, ctrlclient.InNamespace(s.namespace))
	s.Expect(err).NotTo(HaveOccurred())
	defer versions.Stop()
	s.startController()
	s.create("app", autov1alpha1.WorkspaceSpec{})

	for event := range versions.ResultChan() {
		seen, ok := event.Object.(*autov1alpha1.Workspace)
		s.Expect(ok).To(BeTrue(), "%v", event)
		if conditions.IsReady(seen) {
			s.Expect(seen.Status).To(And(
				HaveField("Address", Not(BeEmpty())),
				HaveField("PulumiVersion", Not(BeEmpty())),
				HaveField("ObservedGeneration", seen.Generation)))
			return
		}
	}
	t.Fatal("the watch ended before the workspace was ready")
}

// interfering is a runtime that calls write during its first call, so that somebody else writes the Workspace.
type interfering struct {
	agentruntime.Runtime
	write func()
}

func (r *interfering) Ensure(context.Context, *autov1alpha1.Workspace, bool) (agentruntime.Status, error) {
	r.write()
	r.write = func() {}
	return failed, nil
}

// withoutUpdates is a client that has no Updates, because the index of Updates needs a cache.
type withoutUpdates struct{ ctrlclient.Client }

func (withoutUpdates) List(context.Context, ctrlclient.ObjectList, ...ctrlclient.ListOption) error {
	return nil
}

func TestFailureIsAnnouncedOnceThoughItsStatusIsWrittenTwice(t *testing.T) {
	s := newFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	key := ctrlclient.ObjectKeyFromObject(workspace)
	recorder := record.NewFakeRecorder(10)
	r := &Reconciler{Client: withoutUpdates{s.client}, EventRecorder: recorder, Runtime: &interfering{write: func() {
		metav1.SetMetaDataAnnotation(&workspace.ObjectMeta, "example.com/somebody", "else")
		s.Expect(s.client.Update(t.Context(), workspace)).To(Succeed())
	}}}

	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(result.RequeueAfter).NotTo(BeZero(), "the first status could not be written")
	s.Expect(r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})).Error().NotTo(HaveOccurred())

	s.await(workspace, beUnready(failed.Reason))
	s.Expect(recorder.Events).To(Receive(ContainSubstring(failed.Message)))
	s.Expect(recorder.Events).To(BeEmpty())
}
