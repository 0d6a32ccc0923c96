package pod

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func TestAgentIsReachedFromTheStartOfItsContainerToItsEnd(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	connect := func() error {
		agent, err := s.runtime.Connect(t.Context(), workspace)
		if err != nil {
			return err
		}
		_, err = agent.GetInfo(t.Context())
		return err
	}
	pod := s.pod(workspace)
	s.Expect(connect()).To(MatchError(agentruntime.ErrNoAgent), "it has no address yet")
	address := newAddress()
	s.serve(workspace, address)
	s.bind(pod)
	s.report(pod, func(status *corev1.PodStatus) {
		running(pod, address)(status)
		status.ContainerStatuses[0].Ready = false
	})
	s.Eventually(connect).Should(Succeed())
	first, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())

	s.report(pod, running(pod, address))
	s.Eventually(s.status(workspace)).Should(beReady())
	s.Expect(s.client.Delete(t.Context(), pod)).To(Succeed())
	s.Eventually(s.status(workspace)).Should(beUnready(autov1alpha1.PodTerminatingReason))
	s.Expect(connect()).To(Succeed(), "an operation that is being interrupted is observed to its end")
	same, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(same).To(BeIdenticalTo(first), "everybody shares it")

	s.finish(pod)
	s.Eventually(connect).Should(MatchError(agentruntime.ErrNoAgent))
	s.Eventually(func() connection { return s.runtime.connections.get(keyOf(workspace)) }).Should(BeZero(), "it is closed a moment later")
	s.Expect(first.GetInfo(t.Context())).Error().NotTo(HaveOccurred(), "who holds the connection gets what the agent sent last")
}

func TestConnectionToAPodThatWentMeanwhileIsNotKept(t *testing.T) {
	s, workspace, pod, _ := startReady(t)
	connected := func() connection { return s.runtime.connections.get(keyOf(workspace)) }
	s.Expect(s.runtime.Connect(t.Context(), workspace)).Error().NotTo(HaveOccurred())
	s.Expect(connected()).NotTo(BeZero())
	certificate, err := s.runtime.certificate(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.finish(pod)
	s.Eventually(connected).Should(BeZero())

	// A caller read the pod before its end, and connects only now. The reconciler may do the same at the same time, and then they share one
	// connection.
	opened, err := s.runtime.dial(workspace, pod, certificate)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(s.runtime.keep(t.Context(), workspace, opened)).NotTo(BeNil())
	s.Eventually(connected).Should(BeZero())
}

func TestPodOfAnEarlierWorkspaceIsNotReached(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	s.makeReady(workspace)
	other := workspace.DeepCopy()
	other.UID = "other"
	s.Expect(s.runtime.Connect(t.Context(), other)).Error().To(MatchError(agentruntime.ErrNoAgent))
	s.Expect(s.runtime.Connect(t.Context(), workspace)).Error().NotTo(HaveOccurred())
	_, err := s.runtime.Connect(t.Context(), other)
	s.Expect(err).To(MatchError(agentruntime.ErrNoAgent), "not over the connection of the other one either")
}

func TestRealAgentWithTheCommandOfItsPodLetsTheControllerIn(t *testing.T) {
	s := startFixture(t)
	workspace := s.create("app", autov1alpha1.WorkspaceSpec{})
	pod := s.pod(workspace)
	reviews := &rbacv1.ClusterRoleBinding{
		Name:     "auth-delegator-" + s.namespace,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: "default"}},
	}
	s.Expect(s.client.Create(t.Context(), reviews)).To(Succeed())
	address := newAddress()
	log := s.startAgent(workspace, pod, address)
	s.Eventually(func() error {
		connection, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(podspec.Port)), time.Second)
		if err == nil {
			_ = connection.Close()
		}
		return err
	}).Should(Succeed(), log)
	s.run(pod, address)
	s.Eventually(s.status(workspace)).Should(beReady())
	var info *agentpb.Info
	s.Eventually(func() error {
		agent, err := s.runtime.Connect(t.Context(), workspace)
		if err != nil {
			return err
		}
		info, err = agent.GetInfo(t.Context())
		return err
	}).Should(Succeed(), log)
	s.Expect(info.GetPulumiVersion()).To(HavePrefix("v3."))
}

func TestTokenThatAnAgentRejectsIsDroppedByEveryCaller(t *testing.T) {
	s, workspace, _, agent := startReady(t)
	connection, err := s.runtime.Connect(t.Context(), workspace)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(connection.GetInfo(t.Context())).Error().NotTo(HaveOccurred())
	first := agent.token.Load()
	agent.revoked.Store(first)
	// A young token stays.
	s.Eventually(func() error { _, err := connection.GetInfo(t.Context()); return err }).WithPolling(time.Second).Should(Succeed())
	s.Expect(agent.token.Load()).NotTo(Equal(first))
}

func TestAgentThatAnswersOrWasNotAskedIsNotSilent(t *testing.T) {
	s, workspace, _, agent := startReady(t)
	withoutTokens, err := credentials.NewTokens(cluster.Config())
	s.Expect(err).NotTo(HaveOccurred())
	for name, tt := range map[string]struct {
		runtime *Runtime
		denies  bool
		refusal time.Duration
		problem string
	}{
		"it denies":               {s.runtime, true, silentInterval, "you may not"},
		"the controller no token": {&Runtime{options: s.runtime.options, tokens: withoutTokens}, false, 0, "does not run as a ServiceAccount"},
	} {
		agent.denies.Store(tt.denies)
		tracked, now := &tracker{}, time.Now()
		tt.runtime.askAgent(t.Context(), tracked, workspace, now)
		answer := tt.runtime.askAgent(t.Context(), tracked, workspace, now.Add(silentInterval))
		s.Expect(answer.err).To(MatchError(ContainSubstring(tt.problem)), name)
		s.Expect(answer.silence.noAnswer).To(BeZero(), name)
		s.Expect(answer.silence.refusal).To(Equal(tt.refusal), name)
		s.Expect(answer.unasked).To(Equal(!tt.denies), name)
		nobodyAsks := &observation{now: now}
		s.Expect(tt.runtime.observeAgent(t.Context(), tracked, workspace, nobodyAsks)).To(Succeed())
		s.Expect(tracked.silence).To(BeZero(), "what was is over when nobody has to ask")
	}
}

// startAgent runs the real agent with the command of the pod, and with a directory instead of the pod's file system. It returns the name of
// the agent's log.
func (s *fixture) startAgent(workspace *autov1alpha1.Workspace, pod *corev1.Pod, address string) (log string) {
	s.t.Helper()
	root := s.t.TempDir()
	binary := filepath.Join(root, "agent")
	s.Expect(programs.Put(s.t.Context(), programs.Agent, binary)).To(Succeed())
	pulumi, err := tools.Path(s.t.Context(), "pulumi", nil)
	s.Expect(err).NotTo(HaveOccurred())
	identity, err := cluster.ServiceAccountConfig(s.t.Context(), s.namespace, "default")
	s.Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{}
	s.Expect(s.get(podspec.SecretName(workspace), secret)).To(Succeed())
	rpc := filepath.Join(root, podspec.RPCPath)
	s.Expect(os.MkdirAll(rpc, 0o700)).To(Succeed())
	s.Expect(os.MkdirAll(filepath.Join(root, podspec.WorkspacePath), 0o700)).To(Succeed())
	for name, content := range map[string][]byte{
		"tls.crt": secret.Data["tls.crt"], "tls.key": secret.Data["tls.key"], "token": []byte(identity.BearerToken), "ca.crt": identity.CAData,
	} {
		s.Expect(os.WriteFile(filepath.Join(rpc, name), content, 0o600)).To(Succeed())
	}
	container := pod.Spec.Containers[0]
	var args []string
	for _, arg := range append(container.Command, container.Args...)[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--listen":
			arg = name + "=" + address + value
		case strings.HasPrefix(value, "/"):
			arg = name + "=" + root + value
		}
		args = append(args, arg)
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(identity.Host, "https://"))
	s.Expect(err).NotTo(HaveOccurred())
	log = cluster.LogPath("agent-" + s.namespace)
	process, err := cluster.Supervisor().Run(supervise.Command{
		Name: "agent", Path: binary, Args: args, Dir: root, Log: log,
		Env: []string{"HOME=" + root, "PATH=" + filepath.Dir(pulumi) + ":" + os.Getenv("PATH"), "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port},
	})
	s.Expect(err).NotTo(HaveOccurred())
	s.t.Cleanup(func() {
		s.Expect(process.Stop(0)).To(Succeed())
		if s.t.Failed() {
			content, _ := os.ReadFile(log)
			s.t.Log(string(content))
		}
	})
	return log
}
