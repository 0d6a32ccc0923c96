package auth

import (
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
)

// These tests use an API server with answers that the real one in the other tests does not give.

func TestAnAPIServerThatKnowsNothingOfAudiencesIsNotBelieved(t *testing.T) {
	a := newForeign(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"status":{"authenticated":true,"user":{"username":"system:serviceaccount:a:b"},"allowed":true}}`))
	})
	NewWithT(t).Expect(a.authorize(t.Context(), "token")).To(haveCode(codes.Unauthenticated))
}

func TestWhatIsNoAnswerDecidesNothing(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"overloaded": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"redirected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://198.18.0.1/", http.StatusTemporaryRedirect)
		},
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"too long": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxResponse+1)) },
		// The keys are forbidden as well.
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newForeign(t, handler)
			token := "eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.e30.AAAA"
			NewWithT(t).Expect(a.authorize(t.Context(), token)).To(haveCode(codes.Unavailable))
		})
	}
}

// newForeign returns an Authorizer that asks an API server with this handler.
func newForeign(t *testing.T, handler http.HandlerFunc) *Authorizer {
	t.Helper()
	g := NewWithT(t)
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	t.Setenv("KUBERNETES_SERVICE_HOST", address.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", address.Port())
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	g.Expect(os.WriteFile(token, []byte("token"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600)).To(Succeed())
	a, err := New(Options{Audience: "audience", Controller: "system:serviceaccount:a:b", TokenFile: token, CAFile: ca, Log: slog.New(slog.DiscardHandler)})
	g.Expect(err).NotTo(HaveOccurred())
	return a
}

func TestTheAddressOfTheAPIServerMayBeIPv6(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBERNETES_SERVICE_HOST", "2001:db8::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	a, err := New(Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.api.url).To(Equal("https://[2001:db8::1]:443"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	g.Expect(New(Options{})).Error().To(MatchError(ContainSubstring("KUBERNETES_SERVICE_HOST")))
}
