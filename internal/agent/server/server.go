// Package server implements the agent of a workspace: the gRPC service, the executor that owns the operations, and the source of the
// program.
//
// The directory of the agent contains everything that survives the agent: operations/<id>/ with the state and the result of each operation,
// source/ with the program, source.digest with the digest of its artifact, and home/, which pulumi uses. Programs that the agent runs can
// write to the directory, so its content is not trusted more than the programs themselves. In a pod, the directory is a volume that also
// contains files of others, which the agent leaves alone.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/source/artifact/archive"
)

// Options configure a Server.
type Options struct {
	// Dir is the directory of the agent. It has to exist; Lock creates it.
	Dir string
	// Workspace is the root of local sources. When it is directly in Dir, as in a pod, it becomes a link to the program of the
	// last operation, unless it has files of its own.
	Workspace string
	// LocalRoot is the root of local sources with an absolute directory. If it is empty, such sources are refused.
	LocalRoot string
	// SourceMounts are relative paths at which each source has a link to the same path in Dir/mounts. Nothing can be mounted in the source
	// itself, because it is replaced. None is in another one.
	SourceMounts []string
	// Runner runs pulumi.
	Runner Runner
	// Limits bound a source that is delivered.
	Limits archive.Limits
	// IdleTimeout is the time without a call and without an operation after which Serve ends; 0 means never.
	IdleTimeout time.Duration
	// TerminationGrace is the time from the end of the context of Serve until the agent is killed: the grace period of a pod. 0 means that the
	// agent is not killed.
	TerminationGrace time.Duration
	// Version is the version of the agent.
	Version string
	// GRPC are additional options, for credentials and authorisation.
	GRPC []grpc.ServerOption
	Log  *slog.Logger
}

// Server implements the gRPC service of one agent. It owns the agent's directory.
type Server struct {
	agentpb.UnimplementedAgentServer

	options  Options
	log      *slog.Logger
	root     *os.Root
	records  *records
	sources  *sources
	plans    *plans
	executor *executor
	activity *activity
}

// New opens the existing directory, with the operations and the source that an earlier agent left in it. The caller holds the lock of the
// directory.
func New(options Options) (*Server, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the directory of the agent: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the agent: %w", err)
	}
	s := &Server{options: options, log: options.Log, root: root, activity: newActivity()}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

func (s *Server) open() (err error) {
	if s.sources, err = openSources(s.root, &s.options); err != nil {
		return err
	}
	if s.records, err = openRecords(s.root); err != nil {
		return err
	}
	s.plans = &plans{root: s.root}
	s.executor, err = newExecutor(s.log, s.options.Runner, s.records, s.sources, s.plans)
	return err
}

// Close releases the directory. Serve has to have ended.
func (s *Server) Close() error {
	_ = s.records.root.Close()
	return s.root.Close()
}

// GetInfo implements the call of the protocol.
func (s *Server) GetInfo(context.Context, *agentpb.GetInfoRequest) (*agentpb.Info, error) {
	return &agentpb.Info{
		AgentVersion:  s.options.Version,
		PulumiVersion: s.options.Runner.Version(),
		SourceDigest:  s.sources.digest(),
		Operations:    s.executor.list(),
	}, nil
}

// StartOperation implements the call of the protocol.
func (s *Server) StartOperation(_ context.Context, request *agentpb.StartOperationRequest) (*agentpb.Operation, error) {
	if err := validate(request); err != nil {
		return nil, err
	}
	if problem := cli.Problem(s.options.Runner.Version(), false); problem != "" {
		return nil, agentpb.Refuse(agentpb.ReasonPulumiUnsupported, problem)
	}
	return s.executor.start(request)
}

// GetOperation implements the call of the protocol.
func (s *Server) GetOperation(_ context.Context, request *agentpb.GetOperationRequest) (*agentpb.Operation, error) {
	return s.executor.get(request.GetId())
}

// CancelOperation implements the call of the protocol.
func (s *Server) CancelOperation(_ context.Context, request *agentpb.CancelOperationRequest) (*agentpb.Operation, error) {
	return s.executor.cancelOperation(request.GetId())
}

// ForgetOperation implements the call of the protocol.
func (s *Server) ForgetOperation(_ context.Context, request *agentpb.ForgetOperationRequest) (*agentpb.ForgetOperationResponse, error) {
	return &agentpb.ForgetOperationResponse{}, s.executor.forget(request.GetId())
}
