package pods_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
	"github.com/stack-controller/stack-controller/tests/framework/cluster"
	"github.com/stack-controller/stack-controller/tests/framework/podsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// The lines in which an agent logs how it authenticates its callers.
const (
	asksTheAPIServer  = "the API server is asked who calls the agent"
	verifiesByItself  = "tokens are verified with its public keys"
	delegatedAccount  = "delegated"
	grantedAccount    = "granted"
	strangerAccount   = "stranger"
	delegatorRole     = "system:auth-delegator"
	workspaceRPCGroup = "auto.pulumi.com"
)

func TestAgentLetsInOnlyWhomItHasTo(t *testing.T) {
	suite.Long(t, "calls agents in pods as strangers do")
	t.Parallel()
	for name, mode := range map[string]struct {
		account    string
		says, mute string
		// granted is the response to a caller other than the controller to whom RBAC grants the use of the workspace.
		granted codes.Code
	}{
		"rpc-offline": {account: "", says: verifiesByItself, mute: asksTheAPIServer, granted: codes.PermissionDenied},
		"rpc-online":  {account: delegatedAccount, says: asksTheAPIServer, mute: verifiesByItself, granted: codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			deploy(ctx, t, g, name, program("one"), func(stack *pulumiv1.Stack) {
				createAccounts(ctx, g, name)
				stack.Spec.ServiceAccountName = mode.account
			})
			pod := podOf(ctx, g, name, name)
			log, err := system.Cluster.Logs(ctx, name, pod.Name, "pulumi")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(log).To(And(ContainSubstring(mode.says), Not(ContainSubstring(mode.mute))))

			checkTokens(ctx, t, name, mode.granted)
			checkMethods(ctx, t, name)
			checkTransport(ctx, t, name)
			log, err = system.Cluster.Logs(ctx, name, pod.Name, "pulumi")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(log).To(And(ContainSubstring("call refused"), Not(ContainSubstring("eyJ"))), "no part of a token is logged")
		})
	}
}

// checkTokens calls the agent with tokens of the cluster, most of which were issued for another purpose.
func checkTokens(ctx context.Context, t *testing.T, name string, granted codes.Code) {
	g := NewWithT(t)
	own, other := credentials.Audience(name, name), credentials.Audience("elsewhere", name)
	const flux, controller = cluster.FluxNamespace, podsystem.ControllerName
	agent := dialAgent(ctx, t, name, nil)
	for what, test := range map[string]struct {
		token string
		want  codes.Code
	}{
		"the controller":                          {token: newToken(ctx, g, flux, controller, own), want: codes.OK},
		"the controller, for another workspace":   {token: newToken(ctx, g, flux, controller, other), want: codes.Unauthenticated},
		"the controller, for the API server":      {token: newToken(ctx, g, flux, controller), want: codes.Unauthenticated},
		"somebody else of the same namespace":     {token: newToken(ctx, g, name, strangerAccount, own), want: codes.PermissionDenied},
		"the identity of the workspace itself":    {token: newToken(ctx, g, name, delegatedAccount, own), want: codes.PermissionDenied},
		"another controller of flux-system":       {token: newToken(ctx, g, flux, "source-controller", own), want: codes.PermissionDenied},
		"who is granted the use of the workspace": {token: newToken(ctx, g, name, grantedAccount, own), want: granted},
		"nobody":                     {token: "", want: codes.Unauthenticated},
		"something that is no token": {token: "stolen", want: codes.Unauthenticated},
	} {
		g.Expect(status.Code(getInfo(ctx, agent, test.token))).To(Equal(test.want), what)
	}
}

// checkMethods calls every method of the agent without the right to do so.
func checkMethods(ctx context.Context, t *testing.T, name string) {
	g := NewWithT(t)
	agent := dialAgent(ctx, t, name, nil)
	foreign := newToken(ctx, g, cluster.FluxNamespace, podsystem.ControllerName, credentials.Audience("elsewhere", name))
	for _, method := range agentMethods() {
		for _, token := range []string{"", foreign} {
			err := callMethod(ctx, agent, method, token)
			g.Expect(status.Code(err)).To(Equal(codes.Unauthenticated), "%s: %v", method.name, err)
		}
	}
}

// checkTransport uses the right token on connections that must fail.
func checkTransport(ctx context.Context, t *testing.T, name string) {
	g := NewWithT(t)
	token := newToken(ctx, g, cluster.FluxNamespace, podsystem.ControllerName, credentials.Audience(name, name))
	err := getInfo(ctx, dialAgent(ctx, t, name, insecure.NewCredentials()), token)
	g.Expect(status.Code(err)).To(Equal(codes.Unavailable), "in clear: %v", err)

	pair, err := credentials.NewKeyPair()
	g.Expect(err).NotTo(HaveOccurred())
	pinned, err := credentials.Pinned(pair[corev1.TLSCertKey])
	g.Expect(err).NotTo(HaveOccurred())
	err = getInfo(ctx, dialAgent(ctx, t, name, pinned), token)
	g.Expect(status.Code(err)).To(Equal(codes.Unavailable))
	g.Expect(err).To(MatchError(ContainSubstring("certificate is not the one")), "another agent's certificate")
}

// createAccounts creates ServiceAccounts in the namespace: one that may ask the API server about callers, one that may use the workspace of
// the namespace's name, and one that has no rights.
func createAccounts(ctx context.Context, g *WithT, namespace string) {
	for _, name := range []string{delegatedAccount, grantedAccount, strangerAccount} {
		account := &corev1.ServiceAccount{Namespace: namespace, Name: name}
		g.Expect(system.Client.Create(ctx, account)).To(Succeed())
	}
	subject := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}
	}
	g.Expect(system.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
		Name:     namespace + ":" + delegatorRole,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: delegatorRole},
		Subjects: subject(delegatedAccount),
	})).To(Succeed())
	g.Expect(system.Client.Create(ctx, &rbacv1.Role{
		Namespace: namespace, Name: "use-workspace",
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{workspaceRPCGroup}, Resources: []string{"workspaces/rpc"}, ResourceNames: []string{namespace}, Verbs: []string{"use"},
		}},
	})).To(Succeed())
	g.Expect(system.Client.Create(ctx, &rbacv1.RoleBinding{
		Namespace: namespace, Name: "use-workspace",
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "use-workspace"},
		Subjects: subject(grantedAccount),
	})).To(Succeed())
}

// callTime bounds a call to an agent, which answers from memory or asks the API server first.
const callTime = 30 * time.Second

// newToken requests a token of a ServiceAccount from the API server. Without audiences the token is for the API server itself.
func newToken(ctx context.Context, g *WithT, namespace, account string, audiences ...string) string {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	owner := &corev1.ServiceAccount{Namespace: namespace, Name: account}
	g.Expect(system.Client.SubResource("token").Create(ctx, owner, request)).To(Succeed())
	return request.Status.Token
}

// dialAgent connects, from the network of the pods, to the agent of the workspace that has the name of its namespace. If transport is nil,
// it uses the same transport as the controller.
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

// bearing adds the token, if there is one, to the calls made with the context, whatever connection they use, and bounds them by callTime.
func bearing(ctx context.Context, token string) (context.Context, context.CancelFunc) {
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return context.WithTimeout(ctx, callTime)
}

// getInfo makes a call that changes nothing.
func getInfo(ctx context.Context, connection *grpc.ClientConn, token string) error {
	ctx, cancel := bearing(ctx, token)
	defer cancel()
	_, err := agentpb.NewAgentClient(connection).GetInfo(ctx, &agentpb.GetInfoRequest{})
	return err
}

// agentMethod is a method that agents serve.
type agentMethod struct {
	name   string
	stream *grpc.StreamDesc
}

// agentMethods returns all methods that agents serve.
func agentMethods() []agentMethod {
	var methods []agentMethod
	for _, service := range []grpc.ServiceDesc{agentpb.Agent_ServiceDesc, grpc_health_v1.Health_ServiceDesc} {
		for _, method := range service.Methods {
			methods = append(methods, agentMethod{name: "/" + service.ServiceName + "/" + method.MethodName})
		}
		for i := range service.Streams {
			methods = append(methods, agentMethod{name: "/" + service.ServiceName + "/" + service.Streams[i].StreamName, stream: &service.Streams[i]})
		}
	}
	return methods
}

// callMethod calls the method with an empty message, which every method accepts.
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
	// An error here is an error of the stream, which RecvMsg returns.
	_ = stream.SendMsg(&emptypb.Empty{})
	_ = stream.CloseSend()
	return stream.RecvMsg(&emptypb.Empty{})
}
