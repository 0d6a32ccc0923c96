package credentials_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

func TestTheTokenIsTheControllersOwnForTheAudience(t *testing.T) {
	g := NewWithT(t)
	c := newController(t, true)
	g.Expect(c.tokens.Identity(t.Context())).To(Equal("system:serviceaccount:" + c.namespace + ":controller"))
	audience := credentials.Audience("team", "demo")
	g.Expect(c.call(audience)).To(Succeed())
	token := c.last()
	review := func(audience string) authenticationv1.TokenReviewStatus {
		review, err := c.client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
		}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		return review.Status
	}
	g.Expect(review(audience)).To(And(HaveField("Authenticated", true), HaveField("User.Username", "system:serviceaccount:"+c.namespace+":controller")))
	g.Expect(review(credentials.Audience("team", "demo2"))).To(HaveField("Authenticated", false))

	g.Expect(c.call(audience)).To(Succeed())
	g.Expect(c.last()).To(Equal(token), "it is not kept")
	g.Expect(c.call(audience + "2")).To(Succeed())
	g.Expect(c.last()).NotTo(Equal(token))
}

func TestCallsAtTheSameTimeShareOneToken(t *testing.T) {
	g := NewWithT(t)
	c := newController(t, true)
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() { _ = c.call("shared") })
	}
	calls.Wait()
	g.Expect(c.distinct()).To(Equal(1))
}

func TestAControllerThatMayNotHaveATokenSaysSo(t *testing.T) {
	g := NewWithT(t)
	c := newController(t, false)
	err := c.call("audience")
	g.Expect(status.Code(err)).To(Equal(codes.Unauthenticated))
	g.Expect(err).To(MatchError(And(ContainSubstring("serviceaccounts/token"), ContainSubstring("audience"))))

	tokens, err := credentials.NewTokens(cluster.Config())
	g.Expect(err).NotTo(HaveOccurred())
	c.tokens = tokens
	g.Expect(c.call("audience")).To(MatchError(ContainSubstring(`does not run as a ServiceAccount but as "admin"`)))
}

func TestATokenIsNeverSentInClear(t *testing.T) {
	g := NewWithT(t)
	c := newController(t, true)
	g.Expect(c.tokens.For("a").RequireTransportSecurity()).To(BeTrue())
	g.Expect(c.tokens.For("a").GetRequestMetadata(t.Context())).Error().To(HaveOccurred())
	_, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(c.tokens.For("a")))
	g.Expect(err).To(HaveOccurred())
	g.Expect(c.distinct()).To(BeZero())
}

// controller is the ServiceAccount of a controller, with a server that records the tokens that it receives.
type controller struct {
	t                  *testing.T
	client             kubernetes.Interface
	namespace, address string
	certificate        []byte
	tokens             *credentials.Tokens

	mu       sync.Mutex
	received []string
}

// newController creates a ServiceAccount, with or without the right to request its own tokens.
func newController(t *testing.T, permitted bool) *controller {
	t.Helper()
	g := NewWithT(t)
	client, err := kubernetes.NewForConfig(cluster.Config())
	g.Expect(err).NotTo(HaveOccurred())
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{GenerateName: "tokens-"}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	c := &controller{t: t, client: client, namespace: namespace.Name}
	meta := metav1.ObjectMeta{Namespace: c.namespace, Name: "controller"}
	_, err = client.CoreV1().ServiceAccounts(c.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	if permitted {
		_, err = client.RbacV1().Roles(c.namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"controller"}, Verbs: []string{"create"}},
		}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = client.RbacV1().RoleBindings(c.namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "controller"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: c.namespace, Name: "controller"}},
		}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	config, err := cluster.ServiceAccountConfig(t.Context(), c.namespace, "controller")
	g.Expect(err).NotTo(HaveOccurred())
	c.tokens, err = credentials.NewTokens(config)
	g.Expect(err).NotTo(HaveOccurred())
	c.serve()
	return c
}

func (c *controller) serve() {
	g := NewWithT(c.t)
	pair := newKeyPair(g)
	c.certificate = pair[corev1.TLSCertKey]
	own := keyPair(g, pair)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	c.address = listener.Addr().String()
	server := grpc.NewServer(grpc.Creds(grpccredentials.NewServerTLSFromCert(&own)), grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			headers, _ := metadata.FromIncomingContext(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.received = append(c.received, strings.TrimPrefix(strings.Join(headers.Get("authorization"), " "), "Bearer "))
			return handler(ctx, request)
		}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	c.t.Cleanup(server.Stop)
}

// call sends a token for the audience.
func (c *controller) call(audience string) error {
	pinned, err := credentials.Pinned(c.certificate)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(pinned), grpc.WithPerRPCCredentials(c.tokens.For(audience)), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func (c *controller) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received[len(c.received)-1]
}

// distinct returns how many different tokens the server received.
func (c *controller) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	set := map[string]bool{}
	for _, token := range c.received {
		set[token] = true
	}
	return len(set)
}
