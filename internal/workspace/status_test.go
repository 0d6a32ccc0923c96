package workspace

import (
	"testing"

	. "github.com/onsi/gomega"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

func TestReadyIsNeverSeenWithoutWhatItSpeaksOf(t *testing.T) {
	s := newStage(t)
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
