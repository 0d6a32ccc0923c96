package update

import (
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	"github.com/opencontainers/go-digest"
	gproto "google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/testserver"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
)

// sources is a server of artifacts.
type sources struct {
	t      *testing.T
	server *testserver.ArtifactServer
	// answer, if set, answers instead of the server.
	answer atomic.Pointer[http.HandlerFunc]
}

func newSources(t *testing.T) *sources {
	t.Helper()
	server, err := testserver.NewTempArtifactServer()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	s := &sources{t: t, server: server}
	server.WithMiddleware(func(files http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if answer := s.answer.Load(); answer != nil {
				(*answer)(w, r)
				return
			}
			files.ServeHTTP(w, r)
		})
	})
	server.Start()
	t.Cleanup(func() {
		server.Stop()
		_ = os.RemoveAll(server.Root())
	})
	return s
}

// publish serves a program with the text, and creates a GitRepository with the program as its artifact.
func (s *fixture) publish(text string) *autov1alpha1.UpdateSource {
	s.t.Helper()
	return s.publishIn(s.namespace, text)
}

// publishIn is publish for a GitRepository in the namespace.
func (s *fixture) publishIn(namespace, text string) *autov1alpha1.UpdateSource {
	s.t.Helper()
	served := s.sources.serve(text)
	repository := &sourcev1.GitRepository{
		Namespace: namespace, GenerateName: "source-",
		Spec: sourcev1.GitRepositorySpec{URL: "https://git.example.com/app", Interval: metav1.Duration{Duration: time.Hour}},
	}
	s.Expect(s.client.Create(s.t.Context(), repository)).To(Succeed())
	s.republish(repository, served)
	return &autov1alpha1.UpdateSource{
		SourceRef: &meta.NamespacedObjectKindReference{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind, Name: repository.Name},
		Digest:    served.Digest, Revision: served.Revision,
	}
}

// republish writes the artifact into the status of the GitRepository.
func (s *fixture) republish(repository *sourcev1.GitRepository, served *autov1alpha1.UpdateSource) {
	s.t.Helper()
	before := repository.DeepCopy()
	repository.Status.Artifact = &meta.Artifact{
		Path: "a", URL: served.URL, Digest: served.Digest, Revision: served.Revision, LastUpdateTime: metav1.Now(),
	}
	s.Expect(s.client.Status().Patch(s.t.Context(), repository, ctrlclient.MergeFrom(before))).To(Succeed())
}

// serve serves a program with the text.
func (s *sources) serve(text string) *autov1alpha1.UpdateSource {
	s.t.Helper()
	g := NewWithT(s.t)
	name, err := s.server.ArtifactFromFiles([]testserver.File{{Name: "Pulumi.yaml", Body: text}})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(filepath.Join(s.server.Root(), name))
	g.Expect(err).NotTo(HaveOccurred())
	url, err := s.server.URLForFile(name)
	g.Expect(err).NotTo(HaveOccurred())
	return &autov1alpha1.UpdateSource{URL: url, Digest: digest.FromBytes(content).String(), Revision: "main@sha1:5a1f"}
}

// newWorkspace creates a Workspace without an agent.
func (s *fixture) newWorkspace(name string, changes ...func(*autov1alpha1.Workspace)) *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := &autov1alpha1.Workspace{
		Namespace: s.namespace, Name: name,
		Spec: autov1alpha1.WorkspaceSpec{ProjectInfo: nil, Local: &autov1alpha1.LocalSource{}},
	}
	for _, change := range changes {
		change(workspace)
	}
	s.Expect(s.client.Create(s.t.Context(), workspace)).To(Succeed())
	return workspace
}

// newReadyWorkspace creates a Workspace with an agent.
func (s *fixture) newReadyWorkspace(name string, changes ...func(*autov1alpha1.Workspace)) *autov1alpha1.Workspace {
	s.t.Helper()
	workspace := s.newWorkspace(name, changes...)
	s.agents.start(ctrlclient.ObjectKeyFromObject(workspace))
	s.setReady(workspace, true, "ready")
	return workspace
}

// setReady writes what the Workspace controller would write.
func (s *fixture) setReady(workspace *autov1alpha1.Workspace, ready bool, message string) {
	s.t.Helper()
	before := workspace.DeepCopy()
	if ready {
		workspace.Status.PulumiVersion = "v3.276.0"
		conditions.MarkTrue(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.SucceededReason, "%s", message)
	} else {
		conditions.MarkFalse(workspace, autov1alpha1.WorkspaceReady, autov1alpha1.InitializingReason, "%s", message)
	}
	workspace.Status.ObservedGeneration = workspace.Generation
	s.Expect(s.client.Status().Patch(s.t.Context(), workspace, ctrlclient.MergeFrom(before))).To(Succeed())
}

// newUpdate creates an Update of the type up for the Workspace "app".
func (s *fixture) newUpdate(name string, changes ...func(*autov1alpha1.Update)) *autov1alpha1.Update {
	s.t.Helper()
	update := &autov1alpha1.Update{
		Namespace: s.namespace, Name: name,
		Spec: autov1alpha1.UpdateSpec{WorkspaceName: "app", StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
	}
	for _, change := range changes {
		change(update)
	}
	s.Expect(s.client.Create(s.t.Context(), update)).To(Succeed())
	return update
}

func (s *fixture) newSecret(name string, data map[string]string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{Namespace: s.namespace, Name: name, StringData: data}
	s.Expect(s.client.Create(s.t.Context(), secret)).To(Succeed())
	return secret
}

func (s *fixture) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: name}
}

// current returns a function for Eventually that reads the Update.
func (s *fixture) current(update *autov1alpha1.Update) func() (*autov1alpha1.Update, error) {
	return func() (*autov1alpha1.Update, error) {
		current := &autov1alpha1.Update{}
		return current, s.client.Get(s.t.Context(), ctrlclient.ObjectKeyFromObject(update), current)
	}
}

// finished waits until the Update is complete and the controller is done with it.
func (s *fixture) finished(update *autov1alpha1.Update) *autov1alpha1.Update {
	s.t.Helper()
	s.Eventually(s.current(update)).Should(And(HaveField("IsComplete()", BeTrue()), HaveField("Finalizers", BeEmpty())))
	current, err := s.current(update)()
	s.Expect(err).NotTo(HaveOccurred())
	return current
}

// events returns a function for Eventually that returns type, reason and message of the events about the Update.
func (s *fixture) events(update *autov1alpha1.Update) func() ([]string, error) {
	return func() ([]string, error) {
		list := &corev1.EventList{}
		err := s.client.List(s.t.Context(), list, ctrlclient.InNamespace(s.namespace))
		var found []string
		for _, event := range list.Items {
			if event.InvolvedObject.UID == update.UID {
				found = append(found, event.Type+" "+event.Reason+": "+event.Message)
			}
		}
		return found, err
	}
}

// equalMessage matches an equal protobuf message.
func equalMessage(want gproto.Message) gomegatypes.GomegaMatcher {
	return WithTransform(func(got gproto.Message) bool { return gproto.Equal(got, want) }, BeTrue())
}

// waitFor matches an Update that waits for the reason, with the text in its message.
func waitFor(reason, text string) gomegatypes.GomegaMatcher {
	return haveCondition(autov1alpha1.UpdateProgressing, metav1.ConditionFalse, reason, text)
}

// haveFailed matches an Update that is complete and failed.
func haveFailed(reason, text string) gomegatypes.GomegaMatcher {
	return And(HaveField("IsComplete()", BeTrue()), haveCondition(autov1alpha1.UpdateFailed, metav1.ConditionTrue, reason, text))
}

// haveSucceeded matches an Update that is complete and succeeded.
func haveSucceeded() gomegatypes.GomegaMatcher {
	return And(HaveField("IsComplete()", BeTrue()), haveCondition(autov1alpha1.UpdateFailed, metav1.ConditionFalse, autov1alpha1.UpdateSucceededReason, ""))
}

func beProgressing() gomegatypes.GomegaMatcher {
	return haveCondition(autov1alpha1.UpdateProgressing, metav1.ConditionTrue, autov1alpha1.UpdateProgressingReason, "")
}

func haveCondition(kind string, status metav1.ConditionStatus, reason, text string) gomegatypes.GomegaMatcher {
	return WithTransform(func(update *autov1alpha1.Update) *metav1.Condition { return conditions.Get(update, kind) },
		And(Not(BeNil()), HaveField("Status", status), HaveField("Reason", reason), HaveField("Message", ContainSubstring(text))))
}

// markStarted writes what the Pulumi Kubernetes Operator writes when it starts an operation.
func (s *fixture) markStarted(update *autov1alpha1.Update) {
	s.t.Helper()
	before := update.DeepCopy()
	conditions.MarkTrue(update, autov1alpha1.UpdateProgressing, autov1alpha1.UpdateProgressingReason, "")
	conditions.MarkFalse(update, autov1alpha1.UpdateComplete, autov1alpha1.UpdateProgressingReason, "")
	s.Expect(s.client.Status().Patch(s.t.Context(), update, ctrlclient.MergeFrom(before))).To(Succeed())
}
