package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
)

// In these tests the agent may not ask the API server about tokens.

func TestWithoutTheRightToAskOnlyTheControllerIsAccepted(t *testing.T) {
	b := newBench(t)
	b.permit("controller", workspace)
	b.permit("stranger", workspace)
	b.Expect(b.callWith(b.token("controller", b.options.Audience))).To(Succeed())
	b.Expect(b.callWith(b.token("stranger", b.options.Audience))).To(And(haveCode(codes.PermissionDenied),
		MatchError(And(ContainSubstring(b.user("stranger")), ContainSubstring("system:auth-delegator")))))
	b.Expect(strings.Count(b.log.String(), "may not ask the API server about callers")).To(Equal(1))
}

// kubelet renews the token of a ServiceAccount that was created again only when the former one ends.
func TestAServiceAccountThatWasCreatedAgainDoesNotLockTheControllerOut(t *testing.T) {
	b := newBench(t)
	b.Expect(b.callWith(b.token("controller", b.options.Audience))).To(Succeed())
	b.Expect(os.WriteFile(b.options.TokenFile, []byte("of the former ServiceAccount"), 0o600)).To(Succeed())
	b.authorizer.offlineUntil.Store(new(time.Now().Add(-time.Second)))
	b.Expect(b.callWith(b.token("controller", b.options.Audience))).To(Succeed())
	b.Expect(b.callWith(b.token("stranger", b.options.Audience))).To(haveCode(codes.PermissionDenied))
}

func TestATokenThatTheClusterDidNotMakeForThisAgentIsRefusedOffline(t *testing.T) {
	b := newBench(t)
	good := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(good)).To(Succeed())
	b.Expect(b.callWith(b.forge(good, b.clusterKey(), nil))).To(Succeed(), "the forger does not work")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	b.Expect(err).NotTo(HaveOccurred())
	public, err := x509.MarshalPKIXPublicKey(b.clusterKey().Public())
	b.Expect(err).NotTo(HaveOccurred())
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	encode := base64.RawURLEncoding.EncodeToString
	parts := strings.Split(good, ".")
	claims := func(name string, value any) string { return b.forge(good, b.clusterKey(), map[string]any{name: value}) }

	tests := []struct{ name, token, message string }{
		{"the audience of the API server", b.token("controller"), "for another audience"},
		{"another workspace's audience", b.token("controller", b.options.Audience+"-2"), "for another audience"},
		{"one more audience", b.token("controller", b.options.Audience, "vault"), "for another audience"},
		{"no audience", claims("aud", nil), "for another audience"},
		{"the signature of another key", b.forge(good, other, nil), "signature does not match"},
		{"other claims with the old signature", parts[0] + "." + strings.Split(claims("sub", b.user("controller")+"2"), ".")[1] + "." + parts[2], "signature does not match"},
		{"the algorithm none", encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", "signature of a public key"},
		{"the algorithm none with a signature", encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + "." + parts[2], "signature of a public key"},
		{"HS256 with the public key as the secret", b.forge(good, publicPEM, nil), "signature of a public key"},
		{"HS256 with the encoded public key as the secret", b.forge(good, public, nil), "signature of a public key"},
		{"ended", b.forge(good, b.clusterKey(), ended()), "has ended"},
		{"without an end", claims("exp", nil), "never ends"},
		{"of the future", claims("nbf", time.Now().Add(time.Hour).Unix()), "not valid yet"},
		{"issued in the future", claims("iat", time.Now().Add(time.Hour).Unix()), "not valid yet"},
		{"another issuer", claims("iss", "https://issuer.example.com"), "another issuer"},
		{"two dots", "a.b.c", "signature of a public key"},
		{"garbage", "garbage", "signature of a public key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(*testing.T) {
			// The test is about the decision, not about the rate limit.
			b.authorizer.limit.SetBurst(1000)
			b.authorizer.limit.SetLimit(1000)
			b.Expect(b.callWith(b.secret(tt.token))).To(And(haveCode(codes.Unauthenticated), MatchError(ContainSubstring(tt.message))))
		})
	}
	b.Expect(b.callWith(claims("sub", b.user("controller")+"2"))).To(haveCode(codes.PermissionDenied))
}

func TestOfflineTheAPIServerIsNotNeededForANewToken(t *testing.T) {
	b := newBench(t)
	first, second := b.token("controller", b.options.Audience), b.token("controller", b.options.Audience)
	b.Expect(b.callWith(first)).To(Succeed())
	b.way.bar(true)
	b.Expect(b.callWith(second)).To(Succeed())
}

func TestWithoutKeysNothingIsDecided(t *testing.T) {
	b := newBench(t)
	until := time.Now().Add(time.Hour)
	b.authorizer.offlineUntil.Store(&until)
	b.way.bar(true)
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(haveCode(codes.Unavailable))
	b.way.bar(false)
	b.authorizer.issuer.tried = time.Time{}
	b.Expect(b.callWith(token)).To(Succeed())
}

func TestANewKeyOfTheIssuerIsFound(t *testing.T) {
	b := newBench(t)
	good := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(good)).To(Succeed())
	// This is as if the key were newer than the keys that the agent has read.
	b.authorizer.issuer.keys = nil
	next := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(next)).To(And(haveCode(codes.Unauthenticated), MatchError(ContainSubstring("not signed with a key of this cluster"))))
	connections := b.way.connections.Load()
	b.Expect(b.callWith(b.token("controller", b.options.Audience))).To(haveCode(codes.Unauthenticated))
	b.Expect(b.way.connections.Load()).To(Equal(connections), "the keys were read again at once")
	b.authorizer.issuer.tried = time.Now().Add(-refreshInterval)
	b.Expect(b.callWith(b.token("controller", b.options.Audience))).To(Succeed())
}
