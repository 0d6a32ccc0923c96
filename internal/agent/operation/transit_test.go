package operation_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

// transit answers the two requests that pulumi sends to the transit engine of a Vault, and can be made to hang. Its ciphertexts are the
// plaintexts with a prefix; tests/e2e uses a real Vault.
type transit struct {
	*httptest.Server
	// hold makes requests wait until their connections end. held receives a value for each of these requests.
	hold atomic.Bool
	held chan struct{}
	// denied makes transit refuse requests.
	denied atomic.Bool
}

func newTransit(t *testing.T) *transit {
	t.Helper()
	s := &transit{held: make(chan struct{}, 100)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *transit) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	content, err := io.ReadAll(request.Body)
	if s.hold.Load() {
		// The end of the connection is noticed only after the body is read.
		s.held <- struct{}{}
		<-request.Context().Done()
		return
	}
	_, path, _ := strings.Cut(request.URL.Path, "/v1/transit/")
	kind, key, _ := strings.Cut(path, "/")
	prefix := "vault:v1:" + key + ":"
	var body struct{ Plaintext, Ciphertext string }
	if err != nil || json.Unmarshal(content, &body) != nil || s.denied.Load() || kind == "decrypt" && !strings.HasPrefix(body.Ciphertext, prefix) {
		response.WriteHeader(http.StatusForbidden)
		_, _ = response.Write([]byte(`{"errors": ["permission denied"]}`))
		return
	}
	_ = json.NewEncoder(response).Encode(map[string]any{"data": map[string]string{
		"ciphertext": prefix + body.Plaintext, "plaintext": strings.TrimPrefix(body.Ciphertext, prefix),
	}})
}

// provider makes an operation use the secrets provider with this name, which may be the server.
func (s *transit) provider(name string) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) {
		request.SecretsProvider = name
		request.Env = append(request.Env, variable("VAULT_ADDR", s.URL, false), variable("VAULT_TOKEN", "canary-value-token", true),
			variable("VAULT_MAX_RETRIES", "0", false))
	}
}
