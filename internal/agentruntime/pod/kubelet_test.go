package pod

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// nextAddress numbers the loopback addresses of pods.
var nextAddress atomic.Int32

func newAddress() string {
	n := nextAddress.Add(1)
	return fmt.Sprintf("127.77.%d.%d", n/250, 1+n%250)
}

// pod waits for the pod of the Workspace. It ignores the pods with the other UIDs.
func (s *fixture) pod(workspace *autov1alpha1.Workspace, other ...types.UID) *corev1.Pod {
	s.t.Helper()
	pod := &corev1.Pod{}
	s.Eventually(func(g Gomega) {
		*pod = corev1.Pod{}
		g.Expect(s.get(podspec.PodName(workspace), pod)).To(Succeed())
		for _, earlier := range other {
			g.Expect(pod.UID).NotTo(Equal(earlier))
		}
	}).Should(Succeed())
	return pod
}

// bind puts the pod on a node.
func (s *fixture) bind(pod *corev1.Pod) {
	s.t.Helper()
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
	s.Expect(s.client.SubResource("binding").Create(s.t.Context(), pod, binding)).To(Succeed())
}

// report changes the status of the pod.
func (s *fixture) report(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	s.t.Helper()
	s.Eventually(func() error {
		if err := s.client.Get(s.t.Context(), ctrlclient.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		change(&pod.Status)
		return s.client.Status().Update(s.t.Context(), pod)
	}).Should(Succeed())
}

// run binds the pod and reports that all its containers run, with the address.
func (s *fixture) run(pod *corev1.Pod, address string) {
	s.t.Helper()
	s.bind(pod)
	s.report(pod, running(pod, address))
}

func running(pod *corev1.Pod, address string) func(*corev1.PodStatus) {
	return func(status *corev1.PodStatus) {
		status.Phase, status.PodIP, status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		status.ContainerStatuses = nil
		for _, container := range pod.Spec.Containers {
			status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
				Name: container.Name, Image: container.Image, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
	}
}

// finish ends a pod that is being deleted, as the kubelet does when its containers have ended.
func (s *fixture) finish(pod *corev1.Pod) {
	s.t.Helper()
	err := s.client.Delete(s.t.Context(), pod, ctrlclient.GracePeriodSeconds(0), ctrlclient.Preconditions{UID: &pod.UID})
	if !apierrors.IsNotFound(err) {
		s.Expect(err).NotTo(HaveOccurred())
	}
}

// beingDeleted reports whether the pod is being deleted, or is gone.
func (s *fixture) beingDeleted(pod *corev1.Pod) func() (bool, error) {
	return func() (bool, error) {
		now := &corev1.Pod{}
		err := s.get(pod.Name, now)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return now.UID != pod.UID || now.DeletionTimestamp != nil, err
	}
}

// makeReady waits for the pod, runs it with an agent that a test controls, and waits until it is ready.
func (s *fixture) makeReady(workspace *autov1alpha1.Workspace, other ...types.UID) (*corev1.Pod, *fakeAgent) {
	s.t.Helper()
	pod := s.pod(workspace, other...)
	address := newAddress()
	agent := s.serve(workspace, address)
	s.run(pod, address)
	s.Eventually(s.status(workspace)).Should(beReady())
	return pod, agent
}

// fakeAgent is an agent with the key of the Workspace that answers what the test sets.
type fakeAgent struct {
	agentpb.UnimplementedAgentServer
	busy atomic.Bool
	// denies makes it let nobody in.
	denies atomic.Bool
	// token is what the last caller sent, revoked what the agent does not accept.
	token, revoked atomic.Value
	ended          atomic.Pointer[time.Time]
	asked          atomic.Int32
}

func (f *fakeAgent) GetInfo(ctx context.Context, _ *agentpb.GetInfoRequest) (*agentpb.Info, error) {
	f.asked.Add(1)
	if f.denies.Load() {
		return nil, status.Error(codes.PermissionDenied, "you may not")
	}
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) != 1 || !strings.HasPrefix(values[0], "Bearer ") {
		return nil, status.Error(codes.Unauthenticated, "who?")
	}
	if f.token.Store(values[0]); f.revoked.Load() == values[0] {
		return nil, status.Error(codes.Unauthenticated, "not signed with a key of this cluster")
	}
	info := &agentpb.Info{}
	if f.busy.Load() {
		info.Operations = append(info.Operations, &agentpb.Operation{Id: "1", State: agentpb.OperationState_OPERATION_STATE_RUNNING})
	}
	if at := f.ended.Load(); at != nil {
		info.Operations = append(info.Operations, &agentpb.Operation{Id: "2", State: agentpb.OperationState_OPERATION_STATE_SUCCEEDED, EndTime: timestamppb.New(*at)})
	}
	return info, nil
}

// serve runs a fakeAgent with the key pair in the Secret.
func (s *fixture) serve(workspace *autov1alpha1.Workspace, address string) *fakeAgent {
	s.t.Helper()
	secret := &corev1.Secret{}
	s.Expect(s.get(podspec.SecretName(workspace), secret)).To(Succeed())
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	s.Expect(err).NotTo(HaveOccurred())
	listener, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(podspec.Port)))
	s.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer(grpc.Creds(grpccredentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})))
	agent := &fakeAgent{}
	agentpb.RegisterAgentServer(server, agent)
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(server.Stop)
	return agent
}
