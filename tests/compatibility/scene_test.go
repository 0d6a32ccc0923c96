package compatibility_test

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
)

// user is the field manager of what the tests apply.
const user = "kubectl"

// In the manifests, these addresses stand for those of the servers of the tests.
const (
	gitAddress     = "https://git.example.com"
	privateAddress = "https://private.example.com"
	sshAddress     = "ssh://git@ssh.example.com"
	backendAddress = "s3://state.example.com"
	commitAddress  = "2b0889718d3e63feeb6079ccd5e4488d8601e353"
	// filesDirectory is where programs write files.
	filesDirectory = "/srv/files"
)

// scene is a namespace with what a user applied there. Every status that is written in it is checked.
type scene struct {
	t         *testing.T
	g         *WithT
	namespace string
	// files is the directory in which the scene's programs write files.
	files string
	// addresses are replaced in manifests, by what they stand for. Each scene has a state backend of its own.
	addresses *strings.Replacer
}

// newScene creates a namespace with what most manifests refer to (testdata/shared.yaml).
func newScene(t *testing.T, namespace string) *scene {
	watcher, err := statuscheck.Watch(t.Context(), system.Client, namespace)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := watcher.Stop()
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), "a status broke the rules of kstatus")
	})
	return newSceneWithoutChecks(t, namespace)
}

func newSceneWithoutChecks(t *testing.T, namespace string) *scene {
	s := &scene{t: t, g: NewWithT(t), namespace: namespace, files: t.TempDir()}
	state := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), namespace)
	s.g.Expect(os.Mkdir(state, 0o700)).To(Succeed())
	s.addresses = strings.NewReplacer(gitAddress+"/", system.Git.URL(""), privateAddress, host.http.URL, sshAddress, host.ssh.SSHAddress(),
		backendAddress, "file://"+state, commitAddress, programsCommit, filesDirectory, s.files,
		"PRIVATE_KEY", base64.StdEncoding.EncodeToString([]byte(host.privateKey)), "KNOWN_HOSTS", base64.StdEncoding.EncodeToString([]byte(host.knownHosts)))
	s.g.Expect(system.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	s.apply("shared")
	return s
}

// onlyGitIsHere makes the addresses of public git servers that of the one here: tests do not depend on others.
func (s *scene) onlyGitIsHere() {
	s.addresses = strings.NewReplacer("https://github.com/", system.Git.URL(""))
}

// manifest is a file below testdata, with a change of its Stack as in kubectl patch --type=merge.
func (s *scene) manifest(name, patch string) []*unstructured.Unstructured {
	content, err := os.ReadFile(filepath.Join("testdata", filepath.FromSlash(name)+".yaml"))
	s.g.Expect(err).NotTo(HaveOccurred())
	objects := s.parse(string(content))
	if patch == "" {
		return objects
	}
	var change map[string]any
	s.g.Expect(yaml.Unmarshal([]byte(s.addresses.Replace(patch)), &change)).To(Succeed())
	patched := 0
	for _, object := range objects {
		if object.GetKind() == pulumiv1.StackKind {
			merge(object.Object, change)
			patched++
		}
	}
	s.g.Expect(patched).To(Equal(1), "%s must have one Stack to change", name)
	return objects
}

// parse reads the objects of a manifest into the scene's namespace.
func (s *scene) parse(content string) (objects []*unstructured.Unstructured) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(s.addresses.Replace(content))))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		s.g.Expect(err).NotTo(HaveOccurred())
		object := &unstructured.Unstructured{}
		s.g.Expect(yaml.Unmarshal(document, &object.Object)).To(Succeed())
		if len(object.Object) == 0 {
			continue
		}
		if object.GetKind() != "ClusterRoleBinding" {
			object.SetNamespace(s.namespace)
		}
		objects = append(objects, object)
	}
}

// apply does what kubectl apply --server-side -f does, in the scene's namespace.
func (s *scene) apply(names ...string) {
	for _, name := range names {
		s.g.Expect(s.applyAll(s.manifest(name, ""))).To(Succeed())
	}
}

func (s *scene) applyAll(objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		content, err := object.MarshalJSON()
		s.g.Expect(err).NotTo(HaveOccurred())
		err = system.Client.Patch(s.t.Context(), object, client.RawPatch(types.ApplyPatchType, content),
			client.FieldOwner(user), client.ForceOwnership, client.FieldValidation("Strict"))
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// replace does what kubectl replace -f does: what the manifest does not say is gone.
func (s *scene) replace(name string) {
	for _, object := range s.manifest(name, "") {
		present := &unstructured.Unstructured{}
		present.SetGroupVersionKind(object.GroupVersionKind())
		s.g.Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := system.Client.Get(s.t.Context(), client.ObjectKeyFromObject(object), present); err != nil {
				return err
			}
			wanted := object.DeepCopy()
			wanted.SetResourceVersion(present.GetResourceVersion())
			wanted.SetFinalizers(present.GetFinalizers())
			return system.Client.Update(s.t.Context(), wanted)
		})).To(Succeed())
	}
}

// patch does what kubectl patch stack NAME --type=merge does.
func (s *scene) patch(name, change string) {
	content, err := yaml.YAMLToJSON([]byte(s.addresses.Replace(change)))
	s.g.Expect(err).NotTo(HaveOccurred())
	stack := &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	s.g.Expect(system.Client.Patch(s.t.Context(), stack, client.RawPatch(types.MergePatchType, content), client.FieldOwner(user))).To(Succeed())
}

// key is the name of an object in the scene.
func (s *scene) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.namespace, Name: name}
}

// await returns the Stack once it is as asked.
func (s *scene) await(name string, is func(*pulumiv1.Stack) bool) *pulumiv1.Stack {
	stack := &pulumiv1.Stack{}
	s.g.EventuallyWithOffset(1, func(g Gomega) {
		g.Expect(system.Client.Get(s.t.Context(), s.key(name), stack)).To(Succeed())
		g.Expect(is(stack)).To(BeTrue(), "conditions: %v\nlast update: %+v", stack.Status.Conditions, stack.Status.LastUpdate)
	}).WithContext(s.t.Context()).WithTimeout(patience).WithPolling(pollInterval).Should(Succeed())
	return stack
}

// awaitReady returns the Stack once it is deployed as its spec asks.
func (s *scene) awaitReady(name string) *pulumiv1.Stack { return s.await(name, isReady) }

// awaitGone waits until the Stack is gone.
func (s *scene) awaitGone(name string) {
	s.g.Eventually(func() bool {
		return apierrors.IsNotFound(system.Client.Get(s.t.Context(), s.key(name), &pulumiv1.Stack{}))
	}).WithContext(s.t.Context()).WithTimeout(patience).WithPolling(pollInterval).Should(BeTrue())
}

// updates returns the Updates of the scene.
func (s *scene) updates() []autov1alpha1.Update {
	var list autov1alpha1.UpdateList
	s.g.Expect(system.Client.List(s.t.Context(), &list, client.InNamespace(s.namespace))).To(Succeed())
	return list.Items
}

// lastUpdate returns the Update that the Stack's status names.
func (s *scene) lastUpdate(stack *pulumiv1.Stack) *autov1alpha1.Update {
	update := &autov1alpha1.Update{}
	s.g.Expect(system.Client.Get(s.t.Context(), s.key(stack.Status.LastUpdate.Name), update)).To(Succeed())
	return update
}

func isReady(stack *pulumiv1.Stack) bool {
	return conditions.IsReady(stack) && stack.Status.ObservedGeneration == stack.Generation && stack.Status.CurrentUpdate == nil
}

// merge changes an object as a JSON merge patch does: null removes.
func merge(object, change map[string]any) {
	for key, value := range change {
		fields, isObject := value.(map[string]any)
		present, wasObject := object[key].(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject && wasObject:
			merge(present, fields)
		default:
			object[key] = value
		}
	}
}
