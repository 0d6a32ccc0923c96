package update

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// storeVictimArtifact runs an Update with a source of its own, so that the artifact is in the store, and returns the source.
func (s *fixture) storeVictimArtifact() *autov1alpha1.UpdateSource {
	s.t.Helper()
	published := s.publish("name: victim")
	s.newReadyWorkspace("victim")
	s.Expect(s.finished(s.newUpdate("victim", func(update *autov1alpha1.Update) {
		update.Spec.WorkspaceName, update.Spec.Source = "victim", published
	}))).To(haveSucceeded())
	s.Expect(s.agents.count("PushSource")).To(Equal(1))
	return published
}

func TestUpdateThatKnowsADigestDoesNotGetTheArtifactOfAnotherSource(t *testing.T) {
	s := newFixture(t)
	s.startController()
	victim := s.storeVictimArtifact()
	other := s.publish("name: attacker")
	git, sha := newRepository(t, "name: attacker")
	for name, attack := range map[string]struct {
		source autov1alpha1.UpdateSource
		reason string
	}{
		"url-nowhere": {autov1alpha1.UpdateSource{URL: "http://x.invalid/", Digest: victim.Digest}, pulumiv1.ArtifactFetchFailedReason},
		"source":      {autov1alpha1.UpdateSource{SourceRef: other.SourceRef, Digest: victim.Digest}, pulumiv1.SourceNotReadyReason},
		"git": {autov1alpha1.UpdateSource{Git: &autov1alpha1.GitSource{URL: git, Ref: sha}, Digest: victim.Digest},
			pulumiv1.ArtifactDigestMismatchReason},
		"program": {autov1alpha1.UpdateSource{Program: &autov1alpha1.ProgramSource{Name: "none"}, Digest: victim.Digest},
			pulumiv1.SourceNotFoundReason},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s.newReadyWorkspace(name)
			update := s.newUpdate(name, func(update *autov1alpha1.Update) {
				update.Spec.WorkspaceName, update.Spec.Source = name, &attack.source
			})
			s.Eventually(s.current(update)).Should(waitFor(attack.reason, ""))
			g.Expect(s.agents.count("PushSource")).To(Equal(1), "nothing is delivered but to the victim")
		})
	}
}

func TestUpdateIsRefusedTheSourceOfAnotherNamespace(t *testing.T) {
	s := newFixture(t)
	s.startController()
	other := &corev1.Namespace{GenerateName: "other-"}
	s.Expect(s.client.Create(t.Context(), other)).To(Succeed())
	published := s.publish("name: app")
	published.SourceRef.Namespace = other.Name
	s.newReadyWorkspace("app")
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = published })
	s.Expect(s.finished(update)).To(haveFailed(autov1alpha1.ConfigInvalidReason, "references to another namespace are not allowed"))
}

func TestUpdateRunsWhatItsSourcePublishedWhenItIsStored(t *testing.T) {
	s := newFixture(t)
	s.startController()
	published := s.storeVictimArtifact()
	s.Expect(s.client.DeleteAllOf(t.Context(), &sourcev1.GitRepository{}, ctrlclient.InNamespace(s.namespace))).To(Succeed())
	s.newReadyWorkspace("app")
	update := s.newUpdate("up", func(update *autov1alpha1.Update) { update.Spec.Source = published })
	s.Expect(s.finished(update)).To(haveSucceeded(), "it was fetched for this source when that published it")
}

func TestDigestOfWhatAURLHasIsNotRevealed(t *testing.T) {
	s := newFixture(t)
	s.startController()
	victim := s.sources.serve("name: victim")
	s.newReadyWorkspace("app")
	update := s.newUpdate("up", func(update *autov1alpha1.Update) {
		update.Spec.Source = &autov1alpha1.UpdateSource{URL: victim.URL, Digest: "sha256:" + strings.Repeat("0", 64)}
	})
	s.Eventually(s.current(update)).Should(waitFor(pulumiv1.ArtifactDigestMismatchReason, "digest"))
	s.Expect(s.current(update)()).NotTo(waitFor(pulumiv1.ArtifactDigestMismatchReason, victim.Digest))
}
