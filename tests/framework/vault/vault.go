// Package vault runs a real key management service, HashiCorp Vault with its transit engine, on loopback over plain HTTP. It keeps its keys
// only in memory.
package vault

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// name is the name of the tool, of the server's directory and of its log.
	name = "vault"
	// requestTimeout bounds one request.
	requestTimeout = 30 * time.Second
	// maxAnswer bounds how much of a response is read, in bytes.
	maxAnswer = 64 << 10
)

// Server is a running Vault.
type Server struct {
	// Address is the URL of the server.
	Address string

	root    string // the token of the administrator
	client  http.Client
	process *supervise.Process
}

// Start starts a Vault whose transit engine has no key yet. The server ends at the latest with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane) (*Server, error) {
	program, err := tools.Path(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{Address: "http://" + address, root: rand.Text(), client: http.Client{Timeout: requestTimeout}}
	s.process, err = cp.StartServer(ctx, controlplane.Server{
		Name: name,
		Path: program,
		Args: []string{"server", "-dev", "-dev-no-store-token", "-dev-listen-address=" + address},
		Env:  []string{"VAULT_DEV_ROOT_TOKEN_ID=" + s.root, "VAULT_DISABLE_MLOCK=true"},
		// Status 200 means that Vault is unsealed.
		Ready: cp.AnswersOK(s.Address + "/v1/sys/health"),
	})
	if err != nil {
		return nil, err
	}
	return s, s.send(ctx, "sys/mounts/transit", map[string]any{"type": "transit"}, nil)
}

// CreateKey creates a key of the transit engine and returns a token that permits encryption and decryption with the key, and nothing else.
func (s *Server) CreateKey(ctx context.Context, key string) (token string, err error) {
	if err := s.send(ctx, "transit/keys/"+key, map[string]any{}, nil); err != nil {
		return "", err
	}
	rules := fmt.Sprintf(`path "transit/encrypt/%[1]s" { capabilities = ["update"] }
path "transit/decrypt/%[1]s" { capabilities = ["update"] }`, key)
	if err := s.send(ctx, "sys/policies/acl/"+key, map[string]any{"policy": rules}, nil); err != nil {
		return "", err
	}
	var created struct {
		Auth struct {
			ClientToken string `json:"client_token"`
		} `json:"auth"`
	}
	err = s.send(ctx, "auth/token/create", map[string]any{"policies": []string{key}, "no_default_policy": true}, &created)
	return created.Auth.ClientToken, err
}

// Stop stops the server. All keys are lost.
func (s *Server) Stop() error { return s.process.Stop(0) }

func (s *Server) send(ctx context.Context, path string, content, into any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("ask Vault: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Address+"/v1/"+path, bytes.NewReader(encoded))
	if err != nil {
		return fmt.Errorf("ask Vault: %w", err)
	}
	request.Header.Set("X-Vault-Token", s.root)
	response, err := s.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask Vault: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask Vault: %s: %w", path, err)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("ask Vault: %s: %s: %s", path, response.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
