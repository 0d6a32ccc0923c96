package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
)

// haveCode matches the gRPC code of an error.
func haveCode(code codes.Code) OmegaMatcher {
	return WithTransform(status.Code, Equal(code))
}

func TestWhoMayUseTheWorkspaceIsAccepted(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(Succeed())
	b.Expect(b.call("bearer " + token)).To(Succeed())
	// Not only the controller is accepted, but any user with the right.
	b.permit("stranger", workspace)
	b.Expect(b.callWith(b.token("stranger", b.options.Audience))).To(Succeed())
}

func TestTheAPIServerIsAskedOnceForManyCalls(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(Succeed())
	before := b.way.connections.Load()
	b.way.bar(true)
	for range 20 {
		b.Expect(b.callWith(token)).To(Succeed())
	}
	b.Expect(b.way.connections.Load()).To(Equal(before))
}

func TestWhoMayNotUseTheWorkspaceIsRefused(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	b.permit("stranger", "another-workspace")
	good := b.token("controller", b.options.Audience)
	parts := strings.Split(good, ".")
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	b.Expect(err).NotTo(HaveOccurred())

	tests := []struct {
		name, header, message string
		code                  codes.Code
	}{
		{"no token", "", "no bearer token", codes.Unauthenticated},
		{"other scheme", "Basic " + good, "not of the form", codes.Unauthenticated},
		{"no scheme", good, "not of the form", codes.Unauthenticated},
		{"garbage", "Bearer garbage", b.options.Audience, codes.Unauthenticated},
		{"too long", "Bearer " + strings.Repeat("x", maxTokenSize+1), "longer than 16 KiB", codes.Unauthenticated},
		{"the audience of the API server", "Bearer " + b.token("controller"), b.options.Audience, codes.Unauthenticated},
		{"the audience of another workspace", "Bearer " + b.token("controller", credentials.Audience(b.namespace, "another-workspace")),
			b.options.Audience, codes.Unauthenticated},
		{"a ServiceAccount without the right", "Bearer " + b.token("stranger", b.options.Audience), "may not use workspace " + b.namespace + "/" + workspace, codes.PermissionDenied},
		{"no signature", "Bearer " + parts[0] + "." + parts[1] + ".", b.options.Audience, codes.Unauthenticated},
		{"the signature of another key", "Bearer " + b.forge(good, other, nil), b.options.Audience, codes.Unauthenticated},
		{"a token that has ended", "Bearer " + b.forge(good, b.clusterKey(), ended()), b.options.Audience, codes.Unauthenticated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(*testing.T) {
			b.Expect(b.call(tt.header)).To(And(haveCode(tt.code), MatchError(ContainSubstring(tt.message))))
		})
	}
	b.Expect(b.callWith(b.forge(good, b.clusterKey(), nil))).To(Succeed(), "the forger does not work")
	b.Expect(b.callWith(good)).To(Succeed())
}

func TestARightThatIsGivenLaterIsNoticed(t *testing.T) {
	b := newBench(t)
	b.delegate()
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(haveCode(codes.PermissionDenied))
	b.permit("controller", workspace)
	b.Eventually(func() error { return b.callWith(token) }).WithTimeout(patience).WithPolling(200 * time.Millisecond).Should(Succeed())
}

func TestWhileTheAPIServerIsAwayOnlyWhoWasAcceptedBeforeIs(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	known, unknown := b.token("controller", b.options.Audience), b.token("controller", b.options.Audience)
	b.Expect(b.callWith(known)).To(Succeed())
	b.way.bar(true)
	b.expire(known, false)
	b.Expect(b.callWith(known)).To(Succeed())
	b.Expect(b.log.String()).To(ContainSubstring("accepted before is accepted on"))
	b.Expect(b.callWith(unknown)).To(haveCode(codes.Unavailable))
	// Only until the token expires.
	b.expire(known, true)
	b.Expect(b.callWith(known)).To(haveCode(codes.Unavailable))
	b.way.bar(false)
	b.Expect(b.callWith(known)).To(Succeed())
	b.Expect(b.callWith(unknown)).To(Succeed())
}

func TestTheAgentsOwnTokenIsReadAgain(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	own, err := os.ReadFile(b.options.TokenFile)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(os.WriteFile(b.options.TokenFile, []byte("expired"), 0o600)).To(Succeed())
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(And(haveCode(codes.Unavailable), MatchError(ContainSubstring("agent's own token"))))
	b.Expect(os.WriteFile(b.options.TokenFile, own, 0o600)).To(Succeed())
	b.Expect(b.callWith(token)).To(Succeed())
}

func TestAnAPIServerOfAnotherAuthorityIsNotBelieved(t *testing.T) {
	b := newBench(t)
	b.delegate()
	b.permit("controller", workspace)
	right, err := os.ReadFile(b.options.CAFile)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(os.WriteFile(b.options.CAFile, b.certificate, 0o600)).To(Succeed())
	token := b.token("controller", b.options.Audience)
	b.Expect(b.callWith(token)).To(And(haveCode(codes.Unavailable), MatchError(ContainSubstring("certificate"))))
	b.Expect(os.WriteFile(b.options.CAFile, right, 0o600)).To(Succeed())
	b.Expect(b.callWith(token)).To(Succeed())
}

// expire makes the decision on the token an old one, and the token itself expired if tokenToo is true.
func (b *bench) expire(token string, tokenToo bool) {
	b.t.Helper()
	d, ok := b.authorizer.cache.get(keyOf(token))
	b.Expect(ok).To(BeTrue())
	b.Expect(d.tokenEnd).To(BeTemporally("~", time.Now().Add(10*time.Minute), time.Minute))
	past := time.Now().Add(-time.Second)
	if d.until = past; tokenToo {
		d.tokenEnd = past
	}
	b.authorizer.cache.put(keyOf(token), d)
}

// clusterKey returns the key with which the API server signs tokens.
func (b *bench) clusterKey() *ecdsa.PrivateKey {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(cluster.Dir, "service-account.key"))
	b.Expect(err).NotTo(HaveOccurred())
	block, _ := pem.Decode(content)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	b.Expect(err).NotTo(HaveOccurred())
	return key
}

// ended returns the claims of an expired token.
func ended() map[string]any {
	past := time.Now().Add(-time.Hour)
	return map[string]any{"iat": past.Unix(), "nbf": past.Unix(), "exp": past.Add(10 * time.Minute).Unix()}
}

// forge returns a token like the real one, but with the given claims replaced, or removed where they are nil. It is signed with the given
// key, under the key id of the real token.
func (b *bench) forge(real string, key any, claims map[string]any) string {
	b.t.Helper()
	parsed, err := jwt.ParseSigned(real, algorithms())
	b.Expect(err).NotTo(HaveOccurred())
	all := map[string]any{}
	b.Expect(parsed.UnsafeClaimsWithoutVerification(&all)).To(Succeed())
	for name, value := range all {
		if number, ok := value.(float64); ok {
			all[name] = int64(number)
		}
	}
	maps.Copy(all, claims)
	maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
	algorithm := jose.ES256
	if _, symmetric := key.([]byte); symmetric {
		algorithm = jose.HS256
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: parsed.Headers[0].KeyID}}, nil)
	b.Expect(err).NotTo(HaveOccurred())
	payload, err := json.Marshal(all)
	b.Expect(err).NotTo(HaveOccurred())
	signed, err := signer.Sign(payload)
	b.Expect(err).NotTo(HaveOccurred())
	token, err := signed.CompactSerialize()
	b.Expect(err).NotTo(HaveOccurred())
	return b.secret(token)
}
