package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/leftovers"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// footprint is everything that a cluster creates on the machine.
type footprint struct {
	Dir        string
	Processes  []procfs.Identity
	Namespaces []string // in the form of the links in /proc
	Cgroups    []string
}

// startWithPod starts a cluster in the directory, with a running pod.
func startWithPod(ctx context.Context, dir string) (*cluster.Cluster, error) {
	image, err := images.Busybox(ctx, nil)
	if err != nil {
		return nil, err
	}
	options := cluster.Options{Dir: dir, CRDs: []string{}, Images: []string{image.Tar}}
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, "run", "sleeper", "--image="+image.Reference, "--image-pull-policy=Never", "--", "sleep", "3600"); err != nil {
		return nil, err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/sleeper", "--timeout="+patience.String())
	return c, err
}

// footprintOf returns everything that the cluster's supervisor has to clean up.
func footprintOf(c *cluster.Cluster) (footprint, error) {
	f := footprint{Dir: c.Dir}
	own, err := namespaces("self")
	if err != nil {
		return f, err
	}
	for _, pid := range descendants(c.Supervisor().PID()) {
		process, err := procfs.Identify(pid)
		if err != nil {
			continue // a short-lived process that has ended
		}
		f.Processes = append(f.Processes, process)
		links, err := namespaces(strconv.Itoa(pid))
		if err != nil {
			continue
		}
		for _, link := range links {
			if !slices.Contains(f.Namespaces, link) && !slices.Contains(own, link) {
				f.Namespaces = append(f.Namespaces, link)
			}
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == fmt.Sprintf("stack-controller-%d", c.Supervisor().PID()) {
			f.Cgroups = append(f.Cgroups, path)
		}
		return nil
	})
	return f, err
}

// left returns the parts of the footprint that still exist.
func (f footprint) left() []string {
	var left []string
	for _, process := range f.Processes {
		// A process that has ended may still be a zombie, whose parent is the test runner.
		if running, err := process.Running(); err != nil || running {
			left = append(left, fmt.Sprintf("process %d", process.PID))
		}
	}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		links, _ := namespaces(filepath.Base(entry)) // a process that has ended has none
		if slices.ContainsFunc(links, func(link string) bool { return slices.Contains(f.Namespaces, link) }) {
			left = append(left, "a namespace of process "+filepath.Base(entry))
		}
	}
	for _, path := range append(f.Cgroups, f.Dir) {
		if _, err := os.Stat(path); err == nil {
			left = append(left, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), f.Dir) || strings.Contains(string(mounts), "nsfs") {
		left = append(left, "mounts")
	}
	return left
}

// namespaceKinds are the kinds of namespaces that a cluster creates.
var namespaceKinds = []string{"mnt", "net"}

func namespaces(process string) ([]string, error) {
	var links []string
	for _, kind := range namespaceKinds {
		link, err := os.Readlink(filepath.Join("/proc", process, "ns", kind))
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

// descendants returns the ids of the process, its children, their children and so on.
func descendants(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, task := range tasks {
			content, _ := os.ReadFile(task) // a process that has ended has none
			for field := range strings.FieldsSeq(string(content)) {
				if child, err := strconv.Atoi(field); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// checkFootprint checks that the test would notice if something were left, and makes sure that it does not mistake something else for it:
// while the namespaces are open, the kernel does not use their numbers again.
func checkFootprint(t *testing.T, g *WithT, f footprint) {
	for _, process := range f.Processes {
		for _, kind := range namespaceKinds {
			namespace, err := os.Open(filepath.Join("/proc", strconv.Itoa(process.PID), "ns", kind))
			if err == nil { // a process that has ended has none
				t.Cleanup(func() { _ = namespace.Close() })
			}
		}
	}
	g.Expect(len(f.Processes)).To(BeNumerically(">=", 13), "supervisor, node, 9 servers, a shim, pause and a container")
	g.Expect(len(f.Namespaces)).To(BeNumerically(">=", 5), "those of the node, of the pod and of the container")
	g.Expect(f.Cgroups).NotTo(BeEmpty())
	g.Expect(f.left()).NotTo(BeEmpty())
	addresses, err := net.InterfaceAddrs()
	g.Expect(err).NotTo(HaveOccurred())
	for _, address := range addresses {
		g.Expect(address.String()).NotTo(HavePrefix("198.18."), "addresses are not the machine's")
	}
}

func TestStopLeavesNothing(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	c, err := startWithPod(t.Context(), filepath.Join(t.TempDir(), "cluster"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Stop() })
	f, err := footprintOf(c)
	g.Expect(err).NotTo(HaveOccurred())
	checkFootprint(t, g, f)

	g.Expect(c.Stop()).To(Succeed())
	g.Expect(f.left()).To(BeEmpty())
	g.Expect(c.Stop()).To(Succeed(), "stopping twice is fine")
}

// victim starts a cluster, prints its footprint and never ends by itself.
func victim(dir string) {
	c, err := startWithPod(context.Background(), dir)
	if err != nil {
		panic(err)
	}
	f, err := footprintOf(c)
	if err != nil {
		panic(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		panic(err)
	}
	select {}
}

func TestNothingOutlivesProgramThatIsKilled(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	program := exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), "TEST_VICTIM_DIR="+filepath.Join(t.TempDir(), "cluster"))
	program.Stderr = os.Stderr
	stdout, err := program.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(program.Start()).To(Succeed())
	t.Cleanup(func() { _ = program.Process.Kill() })
	var f footprint
	g.Expect(json.NewDecoder(stdout).Decode(&f)).To(Succeed())
	checkFootprint(t, g, f)

	g.Expect(program.Process.Kill()).To(Succeed())
	_ = program.Wait() // "signal: killed" is what the test is about
	g.Eventually(f.left, patience).Should(BeEmpty())
}

func TestWhatAKilledSupervisorLeftIsSwept(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	c, err := startWithPod(t.Context(), filepath.Join(t.TempDir(), "cluster"))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Stop() })
	f, err := footprintOf(c)
	g.Expect(err).NotTo(HaveOccurred())
	checkFootprint(t, g, f)

	g.Expect(syscall.Kill(c.Supervisor().PID(), syscall.SIGKILL)).To(Succeed())
	g.Expect(c.Stop()).To(Succeed())
	g.Expect(f.left()).NotTo(BeEmpty(), "there is something to sweep")
	g.Expect(leftovers.Sweep(t.Output())).To(Succeed())
	g.Eventually(f.left, patience).Should(BeEmpty())
}

// patience bounds every wait. On a quiet machine each wait takes less than five seconds.
const patience = 60 * time.Second

var (
	shared  *cluster.Cluster
	clients kubernetes.Interface
	busybox images.Image
)

// TestMain also lets a test run this test binary as a program that uses a cluster and is then killed, or as another user.
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
		os.Exit(m.Run()) // the tests that remain need no node
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
	namespace := &corev1.Namespace{GenerateName: "test-", Labels: labels}
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

// shell returns a pod that runs a script with busybox and meets the level "restricted". It ends at once when it is deleted.
func shell(name, script string) *corev1.Pod {
	no, yes, user, now := false, true, int64(1000), int64(0)
	return &corev1.Pod{
		Name: name, Labels: map[string]string{"app": name},
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

// start creates the pod and returns it when it runs and has its IP address.
func start(g *WithT, t *testing.T, namespace string, pod *corev1.Pod) *corev1.Pod {
	_, err := clients.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() (corev1.PodPhase, error) {
		pod, err = clients.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		return pod.Status.Phase, err
	}, patience).Should(Equal(corev1.PodRunning))
	return pod
}

// output runs the script in a pod of its own and returns the output. The pod must succeed.
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

// unreachable is the line that fetch prints if it gets no answer.
const unreachable = "unreachable\n"

// fetch returns a script that prints the content of the URL. It uses timeout because wget's own option for that crashes.
func fetch(url string) string {
	return "timeout 2 wget -q -O - " + url + " || echo unreachable"
}

// serve returns a script that answers HTTP requests with the text, on each of the ports.
func serve(text string, ports ...int) string {
	script := fmt.Sprintf("mkdir /tmp/www && echo %s >/tmp/www/index.html\n", text)
	for _, port := range ports {
		script += fmt.Sprintf("httpd -p %d -h /tmp/www\n", port)
	}
	return script + "exec sleep 3600"
}
