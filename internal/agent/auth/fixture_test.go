package auth

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

const (
	// patience is how long a test waits for something that has to happen.
	patience = 30 * time.Second
	// workspace is the name of the Workspace in the namespace of each test.
	workspace = "demo"
)

// bench is a namespace with the ServiceAccounts controller, stranger and agent, and an agent that asks the API server.
type bench struct {
	*WithT
	t         *testing.T
	client    kubernetes.Interface
	namespace string
	options   Options
	// way is the connection to the API server.
	way *way
	// log contains the agent's log, seen all its answers. secrets are the tokens that must be in neither.
	log           *lockedBuffer
	seen, secrets []string

	authorizer  *Authorizer
	address     string
	certificate []byte
}

func newBench(t *testing.T) *bench {
	t.Helper()
	g := NewWithT(t)
	client, err := kubernetes.NewForConfig(cluster.Config())
	g.Expect(err).NotTo(HaveOccurred())
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{GenerateName: "auth-"}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	b := &bench{WithT: g, t: t, client: client, namespace: namespace.Name, log: &lockedBuffer{}}
	for _, name := range []string{"controller", "stranger", "agent"} {
		_, err := client.CoreV1().ServiceAccounts(b.namespace).Create(t.Context(), &corev1.ServiceAccount{Name: name}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	dir := t.TempDir()
	config, err := cluster.ServiceAccountConfig(t.Context(), b.namespace, "agent")
	g.Expect(err).NotTo(HaveOccurred())
	b.secrets = append(b.secrets, config.BearerToken)
	b.options = Options{
		Namespace: b.namespace, Name: workspace, Audience: credentials.Audience(b.namespace, workspace), Controller: b.user("controller"),
		TokenFile: b.file(dir, "token", config.BearerToken+"\n"), CAFile: b.file(dir, "ca.crt", string(config.CAData)),
		Log: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	server, err := url.Parse(config.Host)
	g.Expect(err).NotTo(HaveOccurred())
	b.way = newWay(t, server.Host)
	host, port, err := net.SplitHostPort(b.way.address)
	g.Expect(err).NotTo(HaveOccurred())
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	b.serve(dir)
	t.Cleanup(b.expectNoSecrets)
	return b
}

func (b *bench) file(dir, name, content string) string {
	b.t.Helper()
	path := filepath.Join(dir, name)
	b.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
	return path
}

func (b *bench) user(account string) string {
	return "system:serviceaccount:" + b.namespace + ":" + account
}

// serve starts the agent: a gRPC server with the health service, and an agent service that implements no call.
func (b *bench) serve(dir string) {
	b.t.Helper()
	pair, err := credentials.NewKeyPair()
	b.Expect(err).NotTo(HaveOccurred())
	b.certificate = pair[corev1.TLSCertKey]
	certificate, key := b.file(dir, "tls.crt", string(b.certificate)), b.file(dir, "tls.key", string(pair[corev1.TLSPrivateKeyKey]))
	tls, err := ServerTLS(certificate, key, b.options.Log)
	b.Expect(err).NotTo(HaveOccurred())
	b.authorizer, err = New(b.options)
	b.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer(append(b.authorizer.ServerOptions(), grpc.Creds(tls))...)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	agentpb.RegisterAgentServer(server, agentpb.UnimplementedAgentServer{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	b.Expect(err).NotTo(HaveOccurred())
	b.address = listener.Addr().String()
	go func() { _ = server.Serve(listener) }()
	b.t.Cleanup(server.Stop)
}

// dial connects to the agent with the transport credentials.
func (b *bench) dial(transport grpccredentials.TransportCredentials) grpc_health_v1.HealthClient {
	b.t.Helper()
	connection, err := grpc.NewClient(b.address, grpc.WithTransportCredentials(transport), grpc.WithNoProxy())
	b.Expect(err).NotTo(HaveOccurred())
	b.t.Cleanup(func() { _ = connection.Close() })
	return grpc_health_v1.NewHealthClient(connection)
}

// call calls the agent with this authorization header; without one if it is empty.
func (b *bench) call(header string) error {
	b.t.Helper()
	pinned, err := credentials.Pinned(b.certificate)
	b.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if header != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
	}
	_, err = b.dial(pinned).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		b.seen = append(b.seen, err.Error())
	}
	return err
}

func (b *bench) callWith(token string) error {
	b.t.Helper()
	return b.call("Bearer " + token)
}

// token returns a real token of the account for the audiences.
func (b *bench) token(account string, audiences ...string) string {
	b.t.Helper()
	seconds := int64(600)
	response, err := b.client.CoreV1().ServiceAccounts(b.namespace).CreateToken(b.t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	return b.secret(response.Status.Token)
}

// secret records a token that must not appear in logs and answers.
func (b *bench) secret(token string) string {
	b.secrets = append(b.secrets, token)
	return token
}

// delegate lets the agent ask the API server about tokens and rights.
func (b *bench) delegate() {
	b.t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		Name:     b.namespace,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: b.namespace, Name: "agent"}},
	}
	b.Expect(b.client.RbacV1().ClusterRoleBindings().Create(b.t.Context(), binding, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	b.t.Cleanup(func() {
		_ = b.client.RbacV1().ClusterRoleBindings().Delete(context.Background(), b.namespace, metav1.DeleteOptions{})
	})
}

// permit lets the account use the Workspace with this name.
func (b *bench) permit(account, name string) {
	b.t.Helper()
	role := &rbacv1.Role{
		Name: account + "-" + name, Namespace: b.namespace,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"auto.pulumi.com"}, Resources: []string{"workspaces/rpc"}, ResourceNames: []string{name}, Verbs: []string{"use"}}},
	}
	b.Expect(b.client.RbacV1().Roles(b.namespace).Create(b.t.Context(), role, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	_, err := b.client.RbacV1().RoleBindings(b.namespace).Create(b.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: b.namespace, Name: account}},
	}, metav1.CreateOptions{})
	b.Expect(err).NotTo(HaveOccurred())
}

// expectNoSecrets looks for the parts of every token in the log and in all answers.
func (b *bench) expectNoSecrets() {
	written := b.log.String() + fmt.Sprint(b.seen)
	for _, token := range b.secrets {
		for part := range strings.SplitSeq(token, ".") {
			if len(part) > 10 {
				b.Expect(written).NotTo(ContainSubstring(part))
			}
		}
	}
}

// lockedBuffer is a bytes.Buffer for concurrent use.
type lockedBuffer struct {
	mu      sync.Mutex
	content bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.content.String()
}
