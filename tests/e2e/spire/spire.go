// Package spire runs a real SPIFFE implementation on loopback: a SPIRE server, with its data in a PostgreSQL server, and an agent with the
// Workload API on a Unix socket. The identities are for all processes of the user who runs the tests.
package spire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/postgres"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// TrustDomain is that of all identities.
	TrustDomain = "example.org"

	serverName, agentName = "spire-server", "spire-agent"
	// node is the identity of the agent, below which all others are registered.
	node = "spiffe://" + TrustDomain + "/node"
	// commandTimeout bounds one command of the administrator.
	commandTimeout = 30 * time.Second
)

// SPIRE is a running server with one agent.
type SPIRE struct {
	// Address is that of the Workload API, for SPIFFE_ENDPOINT_SOCKET.
	Address string
	// Agent is the process with the Workload API.
	Agent *supervise.Process

	admin    string // the server's program
	socket   string // of the administrator
	selector string
}

// Start starts the server and the agent. They end at the latest with the control plane.
func Start(ctx context.Context, cp *controlplane.ControlPlane, database *postgres.Server) (*SPIRE, error) {
	s := &SPIRE{
		socket:   filepath.Join(cp.Dir, "spire.sock"),
		selector: "unix:uid:" + strconv.Itoa(os.Getuid()),
	}
	api := filepath.Join(cp.Dir, "workload.sock")
	s.Address = "unix://" + api
	var err error
	if s.admin, err = tools.Path(ctx, serverName, nil); err != nil {
		return nil, err
	}
	agent, err := tools.Path(ctx, agentName, nil)
	if err != nil {
		return nil, err
	}
	address, err := cp.FreeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	databaseHost, databasePort, err := net.SplitHostPort(database.Address)
	if err != nil {
		return nil, err
	}
	serverConfig, err := write(cp.Dir, serverName, fmt.Sprintf(`
server {
  bind_address = %q
  bind_port = %q
  socket_path = %q
  trust_domain = %q
  data_dir = %q
}
plugins {
  DataStore "sql" {
    plugin_data {
      database_type = "postgres"
      connection_string = "dbname=%s user=%s password=%s host=%s port=%s sslmode=disable"
    }
  }
  KeyManager "memory" { plugin_data {} }
  NodeAttestor "join_token" { plugin_data {} }
}
`, host, port, s.socket, TrustDomain, filepath.Join(cp.Dir, serverName), postgres.Database, postgres.User, database.Password, databaseHost, databasePort))
	if err != nil {
		return nil, err
	}
	_, err = cp.StartServer(ctx, controlplane.Server{
		Name: serverName, Path: s.admin, Args: []string{"run", "-config", serverConfig},
		Ready: func(ctx context.Context) error {
			_, err := s.run(ctx, "healthcheck")
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	token, err := s.run(ctx, "token", "generate", "-spiffeID", node)
	if err != nil {
		return nil, err
	}
	agentConfig, err := write(cp.Dir, agentName, fmt.Sprintf(`
agent {
  server_address = %q
  server_port = %q
  socket_path = %q
  trust_domain = %q
  data_dir = %q
  insecure_bootstrap = true
}
plugins {
  KeyManager "memory" { plugin_data {} }
  NodeAttestor "join_token" { plugin_data {} }
  WorkloadAttestor "unix" { plugin_data {} }
}
`, host, port, api, TrustDomain, filepath.Join(cp.Dir, agentName)))
	if err != nil {
		return nil, err
	}
	s.Agent, err = cp.StartServer(ctx, controlplane.Server{
		Name: agentName, Path: agent,
		Args: []string{"run", "-config", agentConfig, "-joinToken", strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(token), "Token:"))},
		Ready: func(ctx context.Context) error {
			output, err := exec.CommandContext(ctx, agent, "healthcheck", "-socketPath", api).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			return nil
		},
	})
	return s, err
}

func write(dir, name, content string) (path string, err error) {
	path = filepath.Join(dir, name+".conf")
	return path, os.WriteFile(path, []byte(content), 0o600)
}

// run runs a command of the administrator, and returns its output.
func (s *SPIRE) run(ctx context.Context, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	// The flags follow the names of the command.
	names := 1
	for names < len(command) && !strings.HasPrefix(command[names], "-") {
		names++
	}
	args := append(append(append([]string{}, command[:names]...), "-socketPath", s.socket), command[names:]...)
	output, err := exec.CommandContext(ctx, s.admin, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("spire-server %s: %w: %s", strings.Join(command, " "), err, output)
	}
	return string(output), nil
}

// Register registers an identity with the path, and returns the ID of the entry. Its certificates are valid for the lifetime.
func (s *SPIRE) Register(ctx context.Context, path string, lifetime time.Duration) (entry string, err error) {
	output, err := s.run(ctx, append([]string{"entry", "create"}, s.entry(path, lifetime)...)...)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(output) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "Entry ID" {
			return strings.TrimSpace(value), nil
		}
	}
	return "", errors.New("spire-server shows no entry: " + output)
}

// Rename gives the registered identity another path.
func (s *SPIRE) Rename(ctx context.Context, entry, path string, lifetime time.Duration) error {
	_, err := s.run(ctx, append([]string{"entry", "update", "-entryID", entry}, s.entry(path, lifetime)...)...)
	return err
}

// Remove removes the entry.
func (s *SPIRE) Remove(ctx context.Context, entry string) error {
	_, err := s.run(ctx, "entry", "delete", "-entryID", entry)
	return err
}

func (s *SPIRE) entry(path string, lifetime time.Duration) []string {
	return []string{
		"-parentID", node, "-spiffeID", "spiffe://" + TrustDomain + path, "-selector", s.selector,
		"-x509SVIDTTL", strconv.Itoa(int(lifetime.Seconds())),
	}
}
