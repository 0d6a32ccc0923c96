package rbac_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/tests/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// installNamespaced applies config/namespaced to the namespace, and returns the scene with the identity of the controller there.
func (s *scene) installNamespaced(t *testing.T, namespace string) *scene {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Join(tools.RepositoryRoot(), "config")))).To(Succeed())
	overlay := fmt.Sprintf("resources: [config/namespaced]\nnamespace: %s\n", namespace)
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())
	_, err := s.Kubectl(t.Context(), "apply", "--server-side", "--kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	there := *s
	there.runtimeNamespace = namespace
	there.config, err = s.ServiceAccountConfig(t.Context(), namespace, account)
	g.Expect(err).NotTo(HaveOccurred())
	there.kubeconfig, err = s.WriteKubeconfig(namespace, there.config)
	g.Expect(err).NotTo(HaveOccurred())
	return &there
}

// The controller that config/namespaced installs works in its namespace with its Role, and neither does nor may do anything elsewhere.
func TestControllerOfOneNamespaceNeedsNothingOfTheCluster(t *testing.T) {
	suite.Long(t, "takes each right away from a running controller")
	s := newScene(t)
	own, other := s.enter(t, "team"), s.enter(t, "other-team")
	there := s.installNamespaced(t, own.namespace)
	deployment := &appsv1.Deployment{}
	own.Expect(s.client.Get(t.Context(), own.key("stack-controller"), deployment)).To(Succeed())
	own.Expect(deployment.Spec.Template.Spec.Containers[0].Args).To(ContainElement("--watch-all-namespaces=false"))
	own.controller = there.startController(t, "--watch-all-namespaces=false", "--enable-leader-election")

	other.newStack()
	own.newStack()
	own.currentUpdate()
	own.Eventually(func() error { return s.client.Get(t.Context(), own.key("app-workspace"), &appsv1.StatefulSet{}) }).Should(Succeed())
	own.Eventually(func() error { return s.client.Get(t.Context(), own.key("app-workspace-rpc"), &corev1.Secret{}) }).Should(Succeed())
	own.Expect(own.controller.logged()).NotTo(ContainSubstring("is forbidden"))

	workspaces := &autov1alpha1.WorkspaceList{}
	own.Expect(s.client.List(t.Context(), workspaces)).To(Succeed())
	for _, workspace := range workspaces.Items {
		own.Expect(workspace.Namespace).NotTo(Equal(other.namespace))
	}
	for _, right := range []string{"list stacks.pulumi.com", "get secrets", "create statefulsets.apps"} {
		for namespace, want := range map[string]string{own.namespace: "yes\n", other.namespace: "no\n"} {
			answer, _ := s.Kubectl(t.Context(), append([]string{"auth", "can-i", "--as=system:serviceaccount:team:" + account, "--namespace=" + namespace}, strings.Fields(right)...)...)
			own.Expect(answer).To(Equal(want), "%s in %s", right, namespace)
		}
	}
}
