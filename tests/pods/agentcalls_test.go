package pods_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/runtime/pod/podspec"
)

// callTime bounds a call to an agent, which answers from memory or asks the API server first.
const callTime = 30 * time.Second

// newToken has the API server make a token of a ServiceAccount, for itself when no audience is named.
func newToken(ctx context.Context, g *WithT, namespace, account string, audiences ...string) string {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	g.Expect(system.Client.SubResource("token").Create(ctx, owner, request)).To(Succeed())
	return request.Status.Token
}

// dialAgent connects, from the network of the pods, to the agent of the workspace that has the name of its namespace. The
// transport is the one that the controller uses unless there is another.
func dialAgent(ctx context.Context, t *testing.T, name string, transport grpccredentials.TransportCredentials) *grpc.ClientConn {
	g := NewWithT(t)
	if transport == nil {
		secret := &corev1.Secret{}
		g.Expect(system.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-workspace-rpc"}, secret)).To(Succeed())
		var err error
		transport, err = credentials.Pinned(secret.Data[corev1.TLSCertKey])
		g.Expect(err).NotTo(HaveOccurred())
	}
	address := net.JoinHostPort(podOf(ctx, g, name, name).Status.PodIP, strconv.Itoa(podspec.Port))
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(transport),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return system.Cluster.Dial(ctx, "tcp", address)
		}))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// bearing adds the token, if there is one, to the calls with the context, over whatever connection they go.
func bearing(ctx context.Context, token string) (context.Context, context.CancelFunc) {
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return context.WithTimeout(ctx, callTime)
}

// getInfo is the call that changes nothing.
func getInfo(ctx context.Context, connection *grpc.ClientConn, token string) error {
	ctx, cancel := bearing(ctx, token)
	defer cancel()
	_, err := proto.NewAgentClient(connection).GetInfo(ctx, &proto.GetInfoRequest{})
	return err
}

// agentMethod is one that agents serve.
type agentMethod struct {
	name   string
	stream *grpc.StreamDesc
}

// agentMethods are all that agents serve.
func agentMethods() []agentMethod {
	var methods []agentMethod
	for _, service := range []grpc.ServiceDesc{proto.Agent_ServiceDesc, grpc_health_v1.Health_ServiceDesc} {
		for _, method := range service.Methods {
			methods = append(methods, agentMethod{name: "/" + service.ServiceName + "/" + method.MethodName})
		}
		for i := range service.Streams {
			methods = append(methods, agentMethod{name: "/" + service.ServiceName + "/" + service.Streams[i].StreamName, stream: &service.Streams[i]})
		}
	}
	return methods
}

// callMethod calls the method with an empty message, which stands for any.
func callMethod(ctx context.Context, connection *grpc.ClientConn, method agentMethod, token string) error {
	ctx, cancel := bearing(ctx, token)
	defer cancel()
	if method.stream == nil {
		return connection.Invoke(ctx, method.name, &emptypb.Empty{}, &emptypb.Empty{})
	}
	stream, err := connection.NewStream(ctx, method.stream, method.name)
	if err != nil {
		return err
	}
	// An error here is the stream's, which the answer tells.
	_ = stream.SendMsg(&emptypb.Empty{})
	_ = stream.CloseSend()
	return stream.RecvMsg(&emptypb.Empty{})
}
