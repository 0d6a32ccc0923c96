package update

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
)

var watchedLabels = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}

func (s *fixture) newWatchedSecret(name string, data map[string]string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{Namespace: s.namespace, Name: name, Labels: watchedLabels, StringData: data}
	s.Expect(s.client.Create(s.t.Context(), secret)).To(Succeed())
	return secret
}

// waitingForLong makes the Update wait for a Secret since an hour ago, so that the controller looks for the Secret every 30 seconds. It
// returns when the controller has just looked.
func (s *fixture) waitingForLong(update *autov1alpha1.Update) {
	s.t.Helper()
	s.Eventually(s.current(update)).Should(waitFor("SecretNotFound", ""))
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	before := current.DeepCopy()
	for i := range current.Status.Conditions {
		current.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	}
	s.Expect(s.client.Status().Patch(s.t.Context(), current, ctrlclient.MergeFrom(before))).To(Succeed())
	s.Eventually(s.log.String).Should(ContainSubstring(`"after": "30s"`))
}

func TestWatchedSecretThatAppearsStartsTheUpdateAtOnce(t *testing.T) {
	for name, appear := range map[string]func(s *fixture){
		"Secret": func(s *fixture) { s.newWatchedSecret("credentials", map[string]string{"token": "t0ken"}) },
		"key in a Secret": func(s *fixture) {
			secret := s.newWatchedSecret("credentials", nil)
			secret.StringData = map[string]string{"token": "t0ken"}
			s.Expect(s.client.Update(s.t.Context(), secret)).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
				workspace.Spec.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: secretKey("credentials", "token")}}
			})
			s.startController()
			update := s.newUpdate("up")
			s.waitingForLong(update)
			appear(s)
			s.Eventually(s.current(update)).WithTimeout(15 * time.Second).Should(haveSucceeded())
		})
	}
}

func TestUpdateShowsWhichVersionsItRead(t *testing.T) {
	s := newFixture(t)
	first := s.newWatchedSecret("first", map[string]string{"k": "1"})
	s.newSecret("unwatched", map[string]string{"k": "1"})
	s.newWatchedSecret("unused", map[string]string{"k": "1"})
	settings := &corev1.ConfigMap{Namespace: s.namespace, Name: "settings", Labels: watchedLabels, Data: map[string]string{"k": "1"}}
	s.Expect(s.client.Create(t.Context(), settings)).To(Succeed())
	s.newReadyWorkspace("app", func(workspace *autov1alpha1.Workspace) {
		workspace.Spec.Env = []corev1.EnvVar{{Name: "A", ValueFrom: secretKey("first", "k")}, {Name: "B", ValueFrom: secretKey("unwatched", "k")}}
		workspace.Spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{
			Key: "c", ValueFrom: &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: "settings", Key: "k"}},
		}}}}
	})
	s.startController()
	done := s.finished(s.newUpdate("up"))
	s.Expect(done).To(haveSucceeded())
	s.Expect(done.Status.ReferencesDigest).To(Equal(references.Digest([]references.Version{
		references.VersionOf(references.Secret, first), references.VersionOf(references.ConfigMap, settings),
	})))
}

// Each of them looks at all Updates of the Workspace.
func TestOfTheUpdatesThatWaitForAWorkspaceOnlyTheNextOnesLookAgain(t *testing.T) {
	g := NewWithT(t)
	var updates []autov1alpha1.Update
	add := func(name string, age int, change func(*autov1alpha1.Update)) {
		update := autov1alpha1.Update{Name: name, CreationTimestamp: metav1.Unix(int64(1000-age), 0)}
		change(&update)
		updates = append(updates, update)
	}
	waits := func(*autov1alpha1.Update) {}
	add("b", 3, waits)
	add("a", 3, waits)
	add("young", 1, waits)
	add("old", 5, waits)
	add("complete", 9, func(update *autov1alpha1.Update) {
		conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateEndedFailedReason, "")
	})
	add("started", 0, func(update *autov1alpha1.Update) { update.Status.StartTime = new(metav1.Now()) })
	add("deleted", 0, func(update *autov1alpha1.Update) { update.DeletionTimestamp = new(metav1.Now()) })
	add("cancelled", 0, func(update *autov1alpha1.Update) {
		update.Annotations = map[string]string{pulumiv1.CancelUpdateAnnotation: "true"}
	})
	names := func(limit int) (names []string) {
		for _, request := range nextOf(updates, limit) {
			names = append(names, request.Name)
		}
		return names
	}
	g.Expect(names(2)).To(Equal([]string{"started", "deleted", "cancelled", "old", "a"}))
	g.Expect(names(9)).To(Equal([]string{"started", "deleted", "cancelled", "old", "a", "b", "young"}))
}
