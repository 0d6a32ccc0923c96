package podspec

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// The namespaces of the tests. The last two enforce a profile of the Pod Security Standards.
const (
	namespace           = "team"
	restrictedNamespace = "restricted"
	baselineNamespace   = "baseline"
)

// api is a client of a real API server.
var api client.Client

func TestMain(m *testing.M) {
	os.Exit(controlplane.RunTests(m, controlplane.Options{CRDs: []string{}}, func(cp *controlplane.ControlPlane) error {
		var err error
		if api, err = client.New(cp.Config(), client.Options{}); err != nil {
			return err
		}
		for name, profile := range map[string]string{namespace: "privileged", restrictedNamespace: "restricted", baselineNamespace: "baseline"} {
			if err := createNamespace(name, profile); err != nil {
				return err
			}
		}
		return nil
	}))
}

// createNamespace creates a namespace with the service accounts that the examples use. No controller runs here that creates the default
// one.
func createNamespace(name, profile string) error {
	objects := []client.Object{&corev1.Namespace{
		Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": profile}}}
	for _, account := range []string{"default", "pulumi", "deployer"} {
		objects = append(objects, &corev1.ServiceAccount{Namespace: name, Name: account})
	}
	for _, object := range objects {
		if err := api.Create(context.Background(), object); err != nil {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

func TestApplyingTheSameObjectsAgainChangesNothing(t *testing.T) {
	workspaces := examples(t)
	for _, tt := range usersToDecide() {
		workspaces[tt.name] = parse(NewWithT(t), tt.spec)
	}
	for name, workspace := range workspaces {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			first := apply(t, g, build(g, workspace))
			g.Expect(apply(t, g, build(g, workspace))).To(Equal(first))
		})
	}
}

func TestTheAPIServerAcceptsTheExamplesAndTheSamples(t *testing.T) {
	workspaces := examples(t)
	files, err := filepath.Glob("../../../../config/samples/*.yaml")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		for i, workspace := range workspacesIn(NewWithT(t), file) {
			workspaces[fmt.Sprintf("%s %d", filepath.Base(file), i)] = workspace
		}
	}
	NewWithT(t).Expect(len(workspaces)).To(BeNumerically(">", 8))
	for name, workspace := range workspaces {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			acceptedByAPIServer(g, build(g, workspace))
		})
	}
}

func TestTheAPIServerAcceptsObjectsOfWorkspacesWithOddNames(t *testing.T) {
	for _, name := range []string{"a", "a.b", "0app", "1.2.3", "a--b", strings.Repeat("a", 42), strings.Repeat("a", 43), strings.Repeat("a", 60),
		strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace := parse(g, `{}`)
			workspace.Name = name
			acceptedByAPIServer(g, build(g, workspace))
		})
	}
}

func TestPodsKeepToTheProfileTheyPromise(t *testing.T) {
	for _, tt := range []struct {
		name, spec string
		// refusedBy are the namespaces that refuse the pod, with an error that contains because.
		refusedBy []string
		because   string
	}{
		{name: "restricted", spec: `{}`},
		{name: "restricted with containers that say nothing", spec: `podTemplate: {spec: {
			initContainers: [{name: init, image: x}], containers: [{name: pulumi, env: [{name: A, value: b}]}, {name: sidecar, image: x}]}}`},
		{name: "restricted with a capability that is allowed", spec: `podTemplate: {spec: {
			containers: [{name: pulumi, securityContext: {capabilities: {add: [NET_BIND_SERVICE]}}}]}}`},
		{name: "restricted with a container that wants more", spec: `podTemplate: {spec: {
			containers: [{name: sidecar, image: x, securityContext: {allowPrivilegeEscalation: true}}]}}`,
			refusedBy: []string{restrictedNamespace}, because: "allowPrivilegeEscalation"},
		{name: "restricted with a privileged container", spec: `podTemplate: {spec: {
			initContainers: [{name: init, image: x, securityContext: {privileged: true}}]}}`,
			refusedBy: []string{restrictedNamespace, baselineNamespace}, because: "privileged"},
		{name: "restricted with a privileged pulumi", spec: `podTemplate: {spec: {
			containers: [{name: pulumi, securityContext: {privileged: true}}]}}`,
			refusedBy: []string{restrictedNamespace, baselineNamespace}, because: "privileged"},
		{name: "restricted with the host's network", spec: `podTemplate: {spec: {hostNetwork: true}}`,
			refusedBy: []string{restrictedNamespace, baselineNamespace}, because: "hostNetwork"},
		{name: "baseline", spec: `securityProfile: baseline`, refusedBy: []string{restrictedNamespace}, because: "runAsNonRoot"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			objects := build(g, parse(g, tt.spec))
			refused := map[string]bool{}
			for _, name := range tt.refusedBy {
				refused[name] = true
			}
			for _, name := range []string{namespace, restrictedNamespace, baselineNamespace} {
				err := api.Create(t.Context(), podOf(objects, name), client.DryRunAll)
				if refused[name] {
					g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "in %s: %v", name, err)
					g.Expect(err).To(MatchError(ContainSubstring(tt.because)))
				} else {
					g.Expect(err).NotTo(HaveOccurred(), "in "+name)
				}
			}
		})
	}
}

// apply applies the objects as the controller does and returns the versions that they have then.
func apply(t *testing.T, g *WithT, objects *Objects) []string {
	t.Helper()
	var versions []string
	for _, object := range []runtime.Object{objects.Service, objects.StatefulSet} {
		configuration, err := ApplyConfiguration(object)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(configuration),
			client.FieldOwner("stack-controller"), client.ForceOwnership)).To(Succeed())
		versions = append(versions, configuration.GetResourceVersion())
	}
	return versions
}

// acceptedByAPIServer expects that the API server accepts the objects, and the pod that the StatefulSet controller would create.
func acceptedByAPIServer(g *WithT, objects *Objects) {
	for _, object := range []runtime.Object{objects.Service, objects.StatefulSet} {
		configuration, err := ApplyConfiguration(object)
		g.Expect(err).NotTo(HaveOccurred())
		configuration.SetNamespace(namespace)
		g.Expect(api.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(configuration),
			client.FieldOwner("stack-controller"), client.ForceOwnership, client.DryRunAll)).To(Succeed())
	}
	g.Expect(api.Create(context.Background(), podOf(objects, namespace), client.DryRunAll)).To(Succeed())
}

// podOf returns the pod that the StatefulSet controller creates from the template, with the labels and the host name that it adds.
func podOf(objects *Objects, namespace string) *corev1.Pod {
	set := objects.StatefulSet
	pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = namespace, set.Name+"-0"
	pod.Labels["controller-revision-hash"] = set.Name + "-4294967295"
	pod.Labels["statefulset.kubernetes.io/pod-name"] = pod.Name
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	return pod
}

// workspacesIn returns the Workspaces in a file, and the Workspaces of the Stacks in it.
func workspacesIn(g *WithT, file string) []*autov1alpha1.Workspace {
	content, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	var found []*autov1alpha1.Workspace
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var kind metav1.TypeMeta
		g.Expect(yaml.Unmarshal([]byte(document), &kind)).To(Succeed())
		switch kind.Kind {
		case pulumiv1.StackKind:
			stack := &pulumiv1.Stack{}
			g.Expect(yaml.UnmarshalStrict([]byte(document), stack)).To(Succeed())
			found = append(found, workspaceOf(g, stack))
		case autov1alpha1.WorkspaceKind:
			workspace := &autov1alpha1.Workspace{}
			g.Expect(yaml.UnmarshalStrict([]byte(document), workspace)).To(Succeed())
			workspace.UID = "1"
			found = append(found, workspace)
		}
	}
	return found
}
