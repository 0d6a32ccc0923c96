package auth

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

func TestAFloodOfBadTokensNeitherReachesTheAPIServerNorShutsOutTheController(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	good := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(good)).To(Succeed())
	seen := map[codes.Code]int{}
	for range 10 * reviewBurst {
		seen[status.Code(b.authorizer.authorize(t.Context(), rand.Text()))]++
	}
	b.Expect(seen[codes.Unauthenticated]).To(BeNumerically("<", 5*reviewBurst))
	b.Expect(seen[codes.Unavailable]).To(BeNumerically(">", reviewBurst))
	b.Expect(b.callWith(good)).To(Succeed())
}

func TestABadTokenIsReviewedOnce(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.Expect(b.callWith("garbage")).To(haveCode(codes.Unauthenticated))
	b.way.bar(true)
	b.Expect(b.callWith("garbage")).To(haveCode(codes.Unauthenticated))
}

func TestCallsThatNobodyHasDecidedOnAreBounded(t *testing.T) {
	b := newBench(t)
	good, late := b.token("controller", b.options.Audience), b.token("controller", b.options.Audience)
	b.Expect(b.callWith(good)).To(Succeed())
	pinned, err := credentials.Pinned(b.certificate)
	b.Expect(err).NotTo(HaveOccurred())
	connection, err := grpc.NewClient(b.address, grpc.WithTransportCredentials(pinned), grpc.WithNoProxy())
	b.Expect(err).NotTo(HaveOccurred())
	defer connection.Close()
	// Each call sends its headers, and nothing of its request.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range maxUnproven {
		ctx := metadata.AppendToOutgoingContext(ctx, "authorization", fmt.Sprint("Bearer ", i))
		_, err := connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, grpc_health_v1.Health_Check_FullMethodName)
		b.Expect(err).NotTo(HaveOccurred())
	}
	b.Eventually(func() int { return len(b.authorizer.undecided) }).WithTimeout(patience).Should(Equal(maxUnproven))
	b.Expect(b.callWith(late)).To(And(haveCode(codes.Unavailable), MatchError(ContainSubstring("too many calls"))))
	b.Expect(b.callWith(good)).To(Succeed())
	cancel()
	b.Eventually(func() error { return b.callWith(late) }).WithTimeout(patience).Should(Succeed())
	b.Eventually(func() int { return len(b.authorizer.undecided) }).WithTimeout(patience).Should(BeZero())
}
