package credentials_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

// patience is how long a test waits for something that has to happen.
const patience = 30 * time.Second

func TestTheKeyPairIsDataOfATLSSecret(t *testing.T) {
	g := NewWithT(t)
	data := newKeyPair(g)
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(data).To(HaveLen(2))
	g.Expect(pair.Leaf.NotBefore).To(BeTemporally("<", time.Now()))
	g.Expect(pair.Leaf.NotAfter).To(BeTemporally(">", time.Now().AddDate(9, 11, 0)))
	g.Expect(pair.Leaf.PublicKeyAlgorithm).To(Equal(x509.ECDSA))
	g.Expect(newKeyPair(g)[corev1.TLSPrivateKeyKey]).NotTo(Equal(data[corev1.TLSPrivateKeyKey]))
}

func TestOnlyTheAgentWithThePinnedCertificateIsTalkedTo(t *testing.T) {
	g := NewWithT(t)
	agent, other := newKeyPair(g), newKeyPair(g)
	address, imposter := serve(t, agent, tls.VersionTLS13), serve(t, other, tls.VersionTLS13)
	g.Expect(check(t, address, agent[corev1.TLSCertKey])).To(Succeed())
	g.Expect(check(t, imposter, agent[corev1.TLSCertKey])).To(MatchError(ContainSubstring("not the one that the workspace's agent was given")))
	// An attacker with the certificate, which is public, but without its key.
	thief := tls.Certificate{Certificate: keyPair(g, agent).Certificate, PrivateKey: keyPair(g, other).PrivateKey}
	g.Expect(check(t, serveWith(t, &tls.Config{Certificates: []tls.Certificate{thief}}), agent[corev1.TLSCertKey])).To(MatchError(ContainSubstring("signature")))
	// An attacker that appends the right certificate to its own.
	chain := keyPair(g, other)
	chain.Certificate = append(chain.Certificate, keyPair(g, agent).Certificate...)
	g.Expect(check(t, serveWith(t, &tls.Config{Certificates: []tls.Certificate{chain}}), agent[corev1.TLSCertKey])).
		To(MatchError(ContainSubstring("not the one")))
	g.Expect(check(t, serve(t, agent, tls.VersionTLS12), agent[corev1.TLSCertKey])).To(MatchError(ContainSubstring("protocol version")))
}

func TestWhatIsNotOneCertificateCannotBePinned(t *testing.T) {
	g := NewWithT(t)
	pair := newKeyPair(g)
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for name, data := range map[string][]byte{
		"nothing": nil, "text": []byte("x"), "key": pair[corev1.TLSPrivateKeyKey], "broken": broken,
		"two": bytes.Repeat(pair[corev1.TLSCertKey], 2),
	} {
		g.Expect(credentials.Pinned(data)).Error().To(HaveOccurred(), name)
	}
}

func TestTheAudienceNamesTheWorkspace(t *testing.T) {
	NewWithT(t).Expect(credentials.Audience("team", "demo")).To(Equal("auto.pulumi.com/workspaces/team/demo"))
}

func newKeyPair(g *WithT) map[string][]byte {
	data, err := credentials.NewKeyPair()
	g.Expect(err).NotTo(HaveOccurred())
	return data
}

func keyPair(g *WithT, data map[string][]byte) tls.Certificate {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	g.Expect(err).NotTo(HaveOccurred())
	return pair
}

// serve starts a gRPC server with the key pair and returns its address.
func serve(t *testing.T, data map[string][]byte, version uint16) string {
	return serveWith(t, &tls.Config{Certificates: []tls.Certificate{keyPair(NewWithT(t), data)}, MaxVersion: version})
}

func serveWith(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer(grpc.Creds(grpccredentials.NewTLS(config)))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// check calls the server at the address, which must have the certificate.
func check(t *testing.T, address string, certificate []byte) error {
	t.Helper()
	pinned, err := credentials.Pinned(certificate)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(pinned), grpc.WithNoProxy())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer connection.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(connection).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}
