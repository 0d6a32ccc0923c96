package auth

import (
	"context"
	"crypto/tls"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

func TestTheControllerWithItsTokensIsServed(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	// The controller needs a right to request tokens of its own ServiceAccount. The administrator has every right.
	tokens, err := credentials.NewTokens(cluster.UserConfig(b.user("controller"), "system:masters"))
	b.Expect(err).NotTo(HaveOccurred())
	pinned, err := credentials.Pinned(b.certificate)
	b.Expect(err).NotTo(HaveOccurred())
	agent, err := client.New(b.address, client.Options{TransportCredentials: pinned, PerRPCCredentials: tokens.For(b.options.Audience)})
	b.Expect(err).NotTo(HaveOccurred())
	defer agent.Close()
	// The agent of this test implements no call, but it accepts the caller.
	b.Expect(agent.GetInfo(t.Context())).Error().To(MatchError(ContainSubstring("not implemented")))

	other, err := client.New(b.address, client.Options{TransportCredentials: pinned, PerRPCCredentials: tokens.For(b.options.Audience + "-2")})
	b.Expect(err).NotTo(HaveOccurred())
	defer other.Close()
	b.Expect(other.GetInfo(t.Context())).Error().To(MatchError(client.ErrDenied))
}

func TestAConnectionThatIsNotEncryptedWithTLS13IsRefused(t *testing.T) {
	b := newBench(t)
	for name, transport := range map[string]grpccredentials.TransportCredentials{
		"plaintext": insecure.NewCredentials(),
		"TLS 1.2":   grpccredentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := b.dial(transport).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		cancel()
		b.Expect(err).To(haveCode(codes.Unavailable), name)
	}
}

func TestANewCertificateIsServedWithoutARestart(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	first, err := credentials.NewKeyPair()
	b.Expect(err).NotTo(HaveOccurred())
	second, err := credentials.NewKeyPair()
	b.Expect(err).NotTo(HaveOccurred())
	pair := &keyPair{
		certificateFile: b.file(dir, "tls.crt", string(first[corev1.TLSCertKey])), keyFile: b.file(dir, "tls.key", string(first[corev1.TLSPrivateKeyKey])),
		log: b.options.Log,
	}
	old := pair.current()
	b.Expect(pair.current().Certificate).To(Equal(old.Certificate))
	// This is in the middle of a replacement, and while the volume is briefly unavailable.
	b.file(dir, "tls.crt", string(second[corev1.TLSCertKey]))
	b.Expect(pair.current().Certificate).To(Equal(old.Certificate))
	b.Expect(os.Remove(pair.keyFile)).To(Succeed())
	b.Expect(pair.current().Certificate).To(Equal(old.Certificate))
	b.file(dir, "tls.key", string(second[corev1.TLSPrivateKeyKey]))
	b.Expect(pair.current().Certificate).NotTo(Equal(old.Certificate))
	b.Expect(ServerTLS(pair.certificateFile, pair.certificateFile, b.options.Log)).Error().To(HaveOccurred())
}

func TestAStreamIsAuthorisedAndDoesNotLastForEver(t *testing.T) {
	b := newBench(t)
	b.authorizer.streamAge = 100 * time.Millisecond
	pinned, err := credentials.Pinned(b.certificate)
	b.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := func(ctx context.Context) (grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], error) {
		stream, err := b.dial(pinned).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		b.Expect(err).NotTo(HaveOccurred())
		if _, err = stream.Recv(); err != nil {
			return nil, err
		}
		return stream, nil
	}
	with := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	b.Expect(watch(ctx)).Error().To(haveCode(codes.Unauthenticated))
	b.Expect(watch(with(b.token("stranger", b.options.Audience)))).Error().To(haveCode(codes.PermissionDenied))
	stream, err := watch(with(b.token("controller", b.options.Audience)))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(stream.Recv()).Error().To(And(haveCode(codes.Unavailable), MatchError(ContainSubstring("call again"))))
}
