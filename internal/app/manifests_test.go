package app

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

// install applies config/default once, into a namespace that admits only restricted pods.
var install = sync.OnceValue(func() error {
	ctx := context.Background()
	cp, err := startCluster()
	if err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(cp.Config())
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	namespace := &corev1.Namespace{
		Name:   "flux-system",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}
	if _, err := clientset.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	_, err = cp.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--kustomize", filepath.Join("..", "..", "config", "default"))
	return err
})

// installed returns the control plane with the manifests of the controller applied.
func installed(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	cp := cluster(t)
	if err := install(); err != nil {
		t.Fatal(err)
	}
	return cp
}

func TestManifestsInstallAControllerThatMayRun(t *testing.T) {
	g := NewWithT(t)
	cp := installed(t)
	c, err := client.New(cp.Config(), client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	deployment := &appsv1.Deployment{}
	g.Expect(c.Get(t.Context(), types.NamespacedName{Namespace: "flux-system", Name: "stack-controller"}, deployment)).To(Succeed())

	template := deployment.Spec.Template
	container := template.Spec.Containers[0]
	t.Setenv("RUNTIME_NAMESPACE", "flux-system")
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			t.Setenv(variable.Name, variable.Value)
		}
	}
	o, err := parseOptions(container.Args, io.Discard)
	g.Expect(err).NotTo(HaveOccurred(), "the flags in the manifest")
	g.Expect(container.Env).To(ContainElement(And(HaveField("Name", "GOMEMLIMIT"),
		HaveField("ValueFrom.ResourceFieldRef.Resource", "limits.memory"))), "the limit of the container is Go's")
	g.Expect(o.leaderElection.Enable).To(BeTrue())
	g.Expect(o.workspace.runtime).To(Equal(runtimePod))
	g.Expect(float64(*template.Spec.TerminationGracePeriodSeconds)).To(BeNumerically(">", o.gracefulShutdownTimeout.Seconds()),
		"the last events are sent after the controllers have ended")
	g.Expect(container.VolumeMounts).To(ContainElement(HaveField("MountPath", o.artifacts.storagePath)))
	ports := map[string]string{}
	for _, port := range container.Ports {
		ports[port.Name] = fmt.Sprintf(":%d", port.ContainerPort)
	}
	g.Expect(ports).To(Equal(map[string]string{"http-prom": o.metricsAddr, "healthz": o.healthAddr}))

	// The dry run lets the Pod Security admission check the pod.
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = "flux-system", "stack-controller-probe"
	g.Expect(c.Create(t.Context(), pod, client.DryRunAll)).To(Succeed())
}

func TestWhoMayEditANamespaceManagesItsStacksAndWhoMayViewItSeesThem(t *testing.T) {
	g := NewWithT(t)
	cp := installed(t)
	for role, users := range map[string][]string{"stack-controller-view": {"view", "edit", "admin"}, "stack-controller-edit": {"edit", "admin"}} {
		labels, err := cp.Kubectl(t.Context(), "get", "clusterrole", role, "--output=jsonpath={.metadata.labels}")
		g.Expect(err).NotTo(HaveOccurred())
		for _, user := range []string{"view", "edit", "admin"} {
			expectation := ContainSubstring("aggregate-to-" + user)
			if !slices.Contains(users, user) {
				expectation = Not(expectation)
			}
			g.Expect(labels).To(expectation, role)
		}
	}
}

func TestTheControllerGetsTokensOnlyOfItself(t *testing.T) {
	g := NewWithT(t)
	cp := installed(t)
	mayGetTokenOf := func(account, namespace string) error {
		_, err := cp.Kubectl(t.Context(), "auth", "can-i", "create", "serviceaccounts/"+account, "--subresource=token",
			"--namespace="+namespace, "--as=system:serviceaccount:flux-system:stack-controller")
		return err
	}
	g.Expect(mayGetTokenOf("stack-controller", "flux-system")).To(Succeed())
	g.Expect(mayGetTokenOf("source-controller", "flux-system")).NotTo(Succeed())
	g.Expect(mayGetTokenOf("stack-controller", "default")).NotTo(Succeed())
	g.Expect(mayGetTokenOf("default", "flux-system")).NotTo(Succeed())
}
