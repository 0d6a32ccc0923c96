package cluster_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/tests/cluster"
	"github.com/stack-controller/stack-controller/tests/images"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// patience bounds every wait. On a quiet machine everything here takes less than five seconds.
const patience = 60 * time.Second

var (
	shared  *cluster.Cluster
	clients kubernetes.Interface
	busybox images.Image
)

// TestMain lets a test run this test binary as a program that uses a cluster and is then killed, or as another user's.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_REQUIRE") != "" {
		requirer()
		return
	}
	if dir := os.Getenv("TEST_VICTIM_DIR"); dir != "" {
		victim(dir)
		return
	}
	if suite.Short() {
		os.Exit(m.Run()) // what is left of them needs no node
	}
	ctrl.SetLogger(logr.Discard())
	os.Exit(cluster.RunTests(m, cluster.Options{CRDs: []string{}}, func(c *cluster.Cluster) (err error) {
		shared = c
		if clients, err = kubernetes.NewForConfig(c.Config()); err != nil {
			return err
		}
		if busybox, err = images.Busybox(context.Background(), nil); err != nil {
			return err
		}
		return c.LoadImage(context.Background(), busybox.Tar)
	}))
}

// newNamespace creates a namespace, with labels given as pairs, and deletes it when the test ends.
func newNamespace(g *WithT, t *testing.T, labels map[string]string) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	namespace, err := clients.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(clients.CoreV1().Namespaces().Delete(context.Background(), namespace.Name, metav1.DeleteOptions{})).To(Succeed())
	})
	g.Eventually(func() error {
		_, err := clients.CoreV1().ServiceAccounts(namespace.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	}, patience).Should(Succeed(), "kube-controller-manager makes the ServiceAccount")
	return namespace.Name
}

// shell is a pod that runs a script with busybox, under the restrictions of the level "restricted". It ends at once when it
// is deleted.
func shell(name, script string) *corev1.Pod {
	no, yes, user, now := false, true, int64(1000), int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &now,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name:            "shell",
				Image:           busybox.Reference,
				ImagePullPolicy: corev1.PullNever,
				Command:         []string{"sh", "-c", script},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no,
					RunAsNonRoot:             &yes,
					RunAsUser:                &user,
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

// start creates the pod and returns it once it runs, with its IP address.
func start(g *WithT, t *testing.T, namespace string, pod *corev1.Pod) *corev1.Pod {
	_, err := clients.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (corev1.PodPhase, error) {
		pod, err = clients.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		return pod.Status.Phase, err
	}, patience).Should(Equal(corev1.PodRunning))
	return pod
}

// output runs the script in a pod of its own and returns what it wrote. The pod must end with success.
func output(g *WithT, t *testing.T, namespace, name, script string) string {
	_, err := clients.CoreV1().Pods(namespace).Create(t.Context(), shell(name, script), metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	var phase corev1.PodPhase
	g.Eventually(func() (corev1.PodPhase, error) {
		pod, err := clients.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		phase = pod.Status.Phase
		return phase, err
	}, patience).Should(BeElementOf(corev1.PodSucceeded, corev1.PodFailed))
	log, err := shared.Logs(t.Context(), namespace, name, "shell")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(phase).To(Equal(corev1.PodSucceeded), log)
	return log
}

// unreachable is a line of what fetch writes when nobody answers.
const unreachable = "unreachable\n"

// fetch is a script that writes what it gets from the URL. The option of wget that does the same crashes.
func fetch(url string) string {
	return "timeout 2 wget -q -O - " + url + " || echo unreachable"
}

// serve is a script that answers HTTP requests with the text, on each of the ports.
func serve(text string, ports ...int) string {
	script := fmt.Sprintf("mkdir /tmp/www && echo %s >/tmp/www/index.html\n", text)
	for _, port := range ports {
		script += fmt.Sprintf("httpd -p %d -h /tmp/www\n", port)
	}
	return script + "exec sleep 3600"
}
