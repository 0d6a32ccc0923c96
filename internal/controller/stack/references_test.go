package stack

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/references"
)

// versionsOf returns versions of Secrets from words of a name and a resource version, as in "a-1 b-1".
func versionsOf(words string) []references.Version {
	var versions []references.Version
	for word := range strings.FieldsSeq(words) {
		name, resourceVersion, _ := strings.Cut(word, "-")
		versions = append(versions, references.VersionOf(references.Secret, &metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID(name), ResourceVersion: resourceVersion,
		}))
	}
	return versions
}

// using returns the observation with the versions that the last attempt used, and the versions that are present.
func using(o *observation, used, present string) *observation {
	o.stack.Status.LastUpdate.ReferencesDigest = references.Digest(versionsOf(used))
	o.references = versionsOf(present)
	return o
}

func TestTriggerNamesWhatChanged(t *testing.T) {
	for _, test := range []struct{ used, present, want string }{
		{"a-1 b-1", "a-2 b-1", `Referenced Secret or ConfigMap changed: Secret "a"`},
		{"a-1", "a-2 b-2 c-2 d-2 e-2", `Referenced Secret or ConfigMap changed: Secret "a", Secret "b", Secret "c", and 2 more`},
	} {
		NewWithT(t).Expect(decide(*using(upToDate(), test.used, test.present)).message).To(Equal(test.want))
	}
}

func TestStackWhoseSecretsWereNotWatchedRecordsThem(t *testing.T) {
	g := NewWithT(t)
	o := using(upToDate(), "", "a-1")
	acceptInputs(o)
	g.Expect(decide(*o).action).To(Equal(actionReady))
	o.references = versionsOf("a-2")
	g.Expect(decide(*o).action).To(Equal(actionUpdate))
	acceptInputs(o)
	g.Expect(decide(*o).action).To(Equal(actionUpdate), "what is recorded is not replaced")
}

func TestUpdateUsesWhatItReadAndWhatTheStackSaw(t *testing.T) {
	for _, test := range []struct {
		name          string
		created, read string // the versions when the Update was created, and those that it read when it started
		present       string // the versions when it has ended
		again         bool
	}{
		{"nothing changed", "a-1", "a-1", "a-1", false},
		{"it changed after the start", "a-1", "a-1", "a-2", true},
		{"it changed before the start", "a-1", "a-2", "a-2", false},
		{"it changed before the start and after it", "a-1", "a-2", "a-3", true},
		{"one that was missing appeared before the start", "a-1", "a-1 b-1", "a-1 b-1", false},
		{"one that was missing appeared before the start and changed after it", "", "a-1", "a-2", true},
		{"the cache is behind", "a-1", "a-2", "a-1", false},
		{"what it read is not known", "a-1", "", "a-1", false},
		{"what it read is not known, and something changed", "a-1", "", "a-2", true},
		{"the Workspace was edited and names another one", "a-1", "b-1", "a-1", false},
		{"it was gone when the Update started", "a-1 b-1", "a-1", "a-1", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := upToDate()
			update := ended("")
			update.Status.ReferencesDigest = references.Digest(versionsOf(test.read))
			o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{
				Name: "app-2", Generation: 2, Commit: "sha256:a", ReferencesDigest: references.Digest(versionsOf(test.created)),
			}
			recordResult(o.stack, update, nil)
			o.references = versionsOf(test.present)
			g.Expect(newReferences(*o, o.stack.Status.LastUpdate.Inputs()) != "").To(Equal(test.again))
		})
	}
}

func TestUpdateForAChangedSecretIsNoPeriodicRun(t *testing.T) {
	g := NewWithT(t)
	o := using(upToDate(), "a-1", "a-2")
	markReady(o.stack)
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: 2, Commit: "sha256:a", ReferencesDigest: references.Digest(versionsOf("a-1"))}
	g.Expect(keepsReady(o.stack)).To(BeTrue())
	o.stack.Status.CurrentUpdate.ReferencesDigest = references.Digest(o.references)
	g.Expect(keepsReady(o.stack)).To(BeFalse())
}

func TestStackThatIsEditedDuringAPeriodicRunIsNotReadyAnyMore(t *testing.T) {
	g := NewWithT(t)
	o := upToDate()
	markReady(o.stack)
	o.stack.Status.CurrentUpdate = &pulumiv1.CurrentStackUpdate{Generation: 2, Commit: "sha256:a"}
	g.Expect(keepsReady(o.stack)).To(BeTrue())
	o.stack.Generation = 3
	g.Expect(keepsReady(o.stack)).To(BeFalse())
	o.update = &autov1alpha1.Update{}
	(&Reconciler{}).showProgress(o, o.update)
	g.Expect(conditions.IsUnknown(o.stack, meta.ReadyCondition)).To(BeTrue())
	g.Expect(conditions.IsReconciling(o.stack)).To(BeTrue())
}

func TestIndexHasEveryReferenceOfTheWorkspace(t *testing.T) {
	g := NewWithT(t)
	from := func(name string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Name: name, Key: "k"}}
	}
	stack := stackOf(pulumiv1.StackSpec{
		AccessTokenSecret: "token",
		Envs:              []string{"envs"},
		SecretEnvs:        []string{"envSecrets"},
		EnvRefs:           map[string]pulumiv1.ResourceRef{"A": secretRef("envRefs", "k", ""), "B": secretRef("replaced", "k", "")},
		ConfigRef:         map[string]pulumiv1.ConfigMapRef{"a": {Name: "configRef", Key: "k"}},
		SecretRefs:        map[string]pulumiv1.ResourceRef{"b": secretRef("secretsRef", "k", "team")},
		WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{
			Env:     []corev1.EnvVar{{Name: "B", ValueFrom: from("replacement")}, {Name: "C", ValueFrom: from("env")}},
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{Name: "envFrom"}}},
			Stacks: []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{{
				Key: "c", ValueFrom: &autov1alpha1.ConfigValueFrom{ConfigMapKeyRef: &autov1alpha1.KeyReference{Name: "config", Key: "k"}},
			}}}},
		}},
	})
	d, err := desire(stack)
	g.Expect(err).NotTo(HaveOccurred())
	indexed := (&Reconciler{}).stackIndexes()[referencesIndex](stack)
	var names []string
	for _, key := range references.OfWorkspace(d.workspace, "dev") {
		g.Expect(indexed).To(ContainElement(key.String()))
		names = append(names, key.Name)
	}
	g.Expect(names).To(ConsistOf("token", "envs", "envSecrets", "envRefs", "replacement", "configRef", "secretsRef", "env", "envFrom", "config"))
}

func (s *fixture) newSecret(name string, labels map[string]string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{
		Namespace: s.namespace, Name: name, Labels: labels, StringData: map[string]string{"k": "1"},
	}
	s.Expect(s.client.Create(s.t.Context(), secret)).To(Succeed())
	return secret
}

func (s *fixture) changeSecret(secret *corev1.Secret, value string) {
	s.t.Helper()
	secret.Data = map[string][]byte{"k": []byte(value)}
	s.Expect(s.client.Update(s.t.Context(), secret)).To(Succeed())
}

func succeeded(update *autov1alpha1.Update) {
	update.Status.EndTime = new(metav1.Now())
	conditions.MarkTrue(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateUpdatedReason, "")
}

func isReady(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) }

var watchedLabels = map[string]string{meta.LabelKeyWatch: meta.LabelValueWatchEnabled}

func TestChangedSecretWakesItsStackAndNoOther(t *testing.T) {
	s := newFixture(t)
	watched, unwatched := s.newSecret("watched", watchedLabels), s.newSecret("unwatched", nil)
	uses := func(name string) func(*pulumiv1.Stack) {
		return func(stack *pulumiv1.Stack) {
			stack.Name = "uses-" + name
			stack.Spec.EnvRefs = map[string]pulumiv1.ResourceRef{"A": secretRef(name, "k", "")}
		}
	}
	user, other := s.newStack(uses(watched.Name)), s.newStack(uses(unwatched.Name))
	for _, stack := range []*pulumiv1.Stack{user, other} {
		s.setUpdate(stack, succeeded)
		s.await(stack, isReady)
	}
	s.changeSecret(unwatched, "2")
	s.changeSecret(watched, "2")
	stack := s.await(user, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	s.Expect(stack.Status.CurrentUpdate.ReferencesDigest).NotTo(Equal(stack.Status.LastUpdate.ReferencesDigest))
	s.Expect(s.await(other, isReady).Status.CurrentUpdate).To(BeNil())

	// The Secret is deleted, and another one with the same name is created.
	s.setUpdate(user, succeeded)
	s.await(user, isReady)
	s.Expect(s.client.Delete(t.Context(), watched)).To(Succeed())
	s.newSecret("watched", watchedLabels)
	s.await(user, func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
}
