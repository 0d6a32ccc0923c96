package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/images"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

func TestPodRunsOnlyWithAnImageThatWasLoaded(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	namespace := newNamespace(g, t, nil)
	g.Expect(output(g, t, namespace, "hello", "echo hello from $(hostname)")).To(Equal("hello from hello\n"))

	g.Expect(shared.RemoveImage(t.Context(), busybox.Reference)).To(Succeed())
	t.Cleanup(func() { g.Expect(shared.LoadImage(context.Background(), busybox.Tar)).To(Succeed()) })
	_, err := clients.CoreV1().Pods(namespace).Create(t.Context(), shell("ghost", "true"), metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() string {
		pod, err := clients.CoreV1().Pods(namespace).Get(t.Context(), "ghost", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Waiting == nil {
			return ""
		}
		return pod.Status.ContainerStatuses[0].State.Waiting.Reason
	}, patience).Should(Equal("ErrImageNeverPull"))
}

func TestPodReachesServicesByName(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	namespace := newNamespace(g, t, nil)
	start(g, t, namespace, shell("server", serve("content", 8000)))
	newService(g, t, namespace, "server", 80, 8000)

	script := "until wget -q -O - http://server; do sleep 0.1; done\n" + // until kube-proxy has programmed the service
		"wget -q -O - http://server." + namespace + ".svc.cluster.local\n" +
		"nslookup kubernetes.default.svc.cluster.local | grep 198.18.0.1\n" +
		"nc -w 5 kubernetes.default 443 </dev/null && echo API server\n" +
		"! nslookup example.com"
	g.Expect(output(g, t, namespace, "client", script)).To(And(
		HavePrefix("content\ncontent\n"), ContainSubstring("API server\n"), ContainSubstring("NXDOMAIN")))
}

func TestProgramAndPodsReachEachOther(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	namespace := newNamespace(g, t, nil)
	listener, err := shared.Listen("tcp", net.JoinHostPort(shared.NodeAddress, "0"))
	g.Expect(err).NotTo(HaveOccurred())
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the program\n")
	}), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	g.Expect(output(g, t, namespace, "client", "wget -q -O - http://"+listener.Addr().String())).To(Equal("the program\n"))

	pod := start(g, t, namespace, shell("server", serve("the-pod", 8000)))
	newService(g, t, namespace, "server", 80, 8000)
	client := http.Client{Transport: &http.Transport{DialContext: shared.Dial, DisableKeepAlives: true}, Timeout: patience}
	get := func(url string) (string, error) {
		response, err := client.Get(url)
		if err != nil {
			return "", err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	for _, address := range []string{net.JoinHostPort(pod.Status.PodIP, "8000"), "server." + namespace + ".svc.cluster.local"} {
		g.Eventually(func() (string, error) { return get("http://" + address) }, patience).Should(Equal("the-pod\n"), address)
	}
}

func TestRestrictedNamespaceRefusesWhatIsNotRestricted(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	namespace := newNamespace(g, t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	pod := shell("root", "true")
	pod.Spec.Containers[0].SecurityContext = nil
	_, err := clients.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	g.Expect(err).To(MatchError(ContainSubstring(`violates PodSecurity "restricted`)))
	g.Expect(err).To(Satisfy(apierrors.IsForbidden))

	g.Expect(output(g, t, namespace, "user", "id -u")).To(Equal("1000\n"))
}

func TestIsolatedNamespaceIsClosedToPodsOfOthers(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	inside, outside := newNamespace(g, t, nil), newNamespace(g, t, nil)
	pod := start(g, t, inside, shell("server", serve("content", 8080, 9090)))
	g.Expect(shared.IsolateNamespace(t.Context(), inside, 8080)).To(Succeed())
	get := func(port int) string {
		return fetch("http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port)))
	}
	g.Expect(output(g, t, inside, "closed-port", get(9090))).To(Equal("content\n"))
	g.Expect(output(g, t, outside, "closed-port", get(9090))).To(ContainSubstring(unreachable))
	g.Expect(output(g, t, outside, "open-port", get(8080))).To(Equal("content\n"))

	// The namespace's own pods can still reach other pods.
	other := start(g, t, outside, shell("server", serve("other", 9090)))
	g.Expect(output(g, t, inside, "egress", fetch("http://"+other.Status.PodIP+":9090"))).To(Equal("other\n"))
}

func TestKubeletTakesNoRequestsFromPods(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	namespace := newNamespace(g, t, nil)
	response, err := (&http.Client{Transport: &http.Transport{
		DialContext: shared.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // like kube-apiserver, which has no certificate to compare with
	}}).Get("https://" + net.JoinHostPort(shared.NodeAddress, "10250") + "/pods")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	g.Expect(response).To(HaveHTTPStatus(http.StatusUnauthorized))
	// kube-apiserver is authorized.
	pod := start(g, t, namespace, shell("server", "exec sleep 3600"))
	g.Expect(shared.Kubectl(t.Context(), "exec", "--namespace="+namespace, pod.Name, "--", "echo", "hello")).To(Equal("hello\n"))
}

// newService creates a service for the pod of the same name.
func newService(g *WithT, t *testing.T, namespace, name string, port, target int32) {
	service := &corev1.Service{
		Name: name,
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(target)}},
		},
	}
	_, err := clients.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
}

func TestFluxServesArtifactsToItsOwnNamespaceOnly(t *testing.T) {
	suite.Long(t, "needs a node")
	g := NewWithT(t)
	image, err := images.SourceController(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shared.InstallFlux(t.Context(), image)).To(Succeed())
	g.Expect(shared.EnforceNetworkPolicies(t.Context())).To(Succeed())
	outside := newNamespace(g, t, nil)

	git, err := gitserver.Start(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(git.Stop)
	listener, err := shared.Listen("tcp", net.JoinHostPort(shared.NodeAddress, "0"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(git.Publish(listener)).To(Succeed())
	repository, sha, err := git.Create("demo", gitserver.Files{"Pulumi.yaml": "name: demo\n"})
	g.Expect(err).NotTo(HaveOccurred())

	source := cloned(g, t, outside, repository)
	g.Expect(source.Status.Artifact.Revision).To(Equal("main@sha1:" + sha))
	g.Expect(source.Status.Artifact.URL).To(HavePrefix("http://source-controller.flux-system.svc.cluster.local./"))
	url := source.Status.Artifact.URL
	g.Expect(output(g, t, cluster.FluxNamespace, "fetch", "wget -q -O - "+url+" | tar -xzO Pulumi.yaml")).To(Equal("name: demo\n"))
	g.Expect(output(g, t, outside, "fetch", fetch(url))).To(ContainSubstring(unreachable))
}

// cloned creates a GitRepository and returns it when it is ready and has its artifact; source-controller writes these with separate
// patches.
func cloned(g *WithT, t *testing.T, namespace string, repository *gitserver.Repository) *sourcev1.GitRepository {
	scheme := runtime.NewScheme()
	g.Expect(sourcev1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(shared.Config(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	source := &sourcev1.GitRepository{
		Namespace: namespace, Name: "demo",
		Spec: sourcev1.GitRepositorySpec{
			URL:       repository.URL,
			Interval:  metav1.Duration{Duration: time.Hour},
			Reference: &sourcev1.GitRepositoryRef{Branch: gitserver.Branch},
		},
	}
	g.Expect(c.Create(t.Context(), source)).To(Succeed())
	g.Eventually(func() (bool, error) {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(source), source)
		return source.Status.Artifact != nil && apimeta.IsStatusConditionTrue(source.Status.Conditions, meta.ReadyCondition), err
	}, patience).Should(BeTrue())
	return source
}

// verdict records whether Require skips or fails the test.
type verdict struct{ Skipped, Failed string }

func (v *verdict) Helper()           {}
func (v *verdict) Skip(args ...any)  { v.Skipped = fmt.Sprint(args...) }
func (v *verdict) Fatal(args ...any) { v.Failed = fmt.Sprint(args...) }

// requirer prints the verdict. TestMain calls it if another user runs the test binary.
func requirer() {
	v := &verdict{}
	cluster.Require(v)
	fmt.Printf("skipped: %s\nfailed: %s\n", v.Skipped, v.Failed)
}

func TestWhatIsMissingSkipsTestsButFailsThemInContinuousIntegration(t *testing.T) {
	g := NewWithT(t)
	v := &verdict{}
	cluster.Require(v)
	g.Expect(v).To(Equal(&verdict{}), "this machine has all that is needed")

	const lacking = "a cluster needs root: unsupported operation"
	asNobody := func(continuousIntegration string) (stdout, stderr string) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "TEST_REQUIRE=1", "CI_RUN="+continuousIntegration)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var out, err bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &err
		g.Expect(cmd.Run()).To(Succeed(), err.String())
		return out.String(), err.String()
	}
	stdout, stderr := asNobody("")
	g.Expect(stdout).To(Equal("skipped: " + lacking + "\nfailed: \n"))
	g.Expect(stderr).To(Equal("SKIPPED: " + lacking + "\n"))
	stdout, _ = asNobody("1")
	g.Expect(stdout).To(Equal("skipped: \nfailed: " + lacking + "\n"))
}

func TestClusterIsNotStartedWhereItsNodeWouldNotSeeItsFiles(t *testing.T) {
	g := NewWithT(t)
	_, err := cluster.Start(t.Context(), cluster.Options{Dir: filepath.Join("/run", "stack-controller-test")})
	g.Expect(err).To(MatchError(ContainSubstring("/run/stack-controller-test is below /run")))
	g.Expect("/run/stack-controller-test").NotTo(BeADirectory())
}
