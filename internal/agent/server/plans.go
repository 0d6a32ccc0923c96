package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/operation"
)

const (
	// pushedPlan is the file of the plan that was pushed, and incomingPlan of the plan that is being pushed, in the directory of the agent.
	pushedPlan   = "plan"
	incomingPlan = "plan.incoming"
	// takenPlan is the file of the plan that an operation carries out, in the directory of its records.
	takenPlan = "taken-plan.gz"
	// planChunk is the maximum size of the part of a plan in a message, in bytes.
	planChunk = 128 << 10
)

// plans holds the plan that the next operation is to carry out. After a restart of the agent, the plan has to be pushed again.
type plans struct {
	root *os.Root

	mu sync.Mutex
	// present is the digest of the plan; empty while there is none.
	present string
}

// PushPlan implements the call of the protocol.
func (s *Server) PushPlan(stream grpc.ClientStreamingServer[agentpb.PushPlanRequest, agentpb.PushPlanResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return status.Error(codes.InvalidArgument, "the header of the plan is missing")
	}
	header := first.GetHeader()
	if err := checkHeader(header, "plan", agentpb.MaxPlanSize); err != nil {
		return err
	}
	if !s.plans.mu.TryLock() {
		return agentpb.Refuse(agentpb.ReasonBusy, "another plan is arriving")
	}
	defer s.plans.mu.Unlock()
	if err := s.plans.receive(stream, header); err != nil {
		return err
	}
	return stream.SendAndClose(&agentpb.PushPlanResponse{})
}

// receive stores the plan. mu is held.
func (p *plans) receive(stream grpc.ClientStreamingServer[agentpb.PushPlanRequest, agentpb.PushPlanResponse], header *agentpb.PlanHeader) (err error) {
	p.present = ""
	if err := ignoreMissing(p.root.Remove(incomingPlan)); err != nil {
		return status.Errorf(codes.Internal, "prepare for the plan: %v", err)
	}
	file, err := p.root.OpenFile(incomingPlan, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return status.Errorf(codes.Internal, "prepare for the plan: %v", err)
	}
	err = writeChunks(stream, header, file, "plan")
	if closed := file.Close(); err == nil && closed != nil {
		err = status.Errorf(codes.Internal, "store the plan: %v", closed)
	}
	if err != nil {
		return err
	}
	if err := p.root.Rename(incomingPlan, pushedPlan); err != nil {
		return status.Errorf(codes.Internal, "store the plan: %v", err)
	}
	p.present = header.GetDigest()
	return nil
}

// has reports whether the plan is here.
func (p *plans) has(digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return digest != "" && p.present == digest
}

// take moves the plan to the operation. No other operation can use it after that.
func (p *plans) take(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.present = ""
	if err := p.root.Rename(pushedPlan, path.Join(recordsName, id, takenPlan)); err != nil {
		return fmt.Errorf("take the plan: %w", err)
	}
	return nil
}

// needsPlan reports whether the operation carries out a plan for which Pulumi's plan file is needed.
func needsPlan(request *agentpb.StartOperationRequest) bool {
	return request.GetKind() == agentpb.OperationKind_OPERATION_KIND_PLANNED_UP && !request.GetPlan().GetWithoutFile()
}

// pathsOf returns the paths where the operation reads and writes files.
func (s *sources) pathsOf(request *agentpb.StartOperationRequest, project string) (operation.Paths, error) {
	paths := operation.Paths{Project: project, Results: filepath.Join(s.dir, recordsName, request.GetId())}
	if needsPlan(request) {
		paths.Plan = filepath.Join(paths.Results, takenPlan)
	}
	if request.GetArtifact() == nil {
		return paths, nil
	}
	var err error
	paths.LeftOut, err = s.leftOut()
	return paths, err
}

// GetPlan implements the call of the protocol.
func (s *Server) GetPlan(request *agentpb.GetPlanRequest, stream grpc.ServerStreamingServer[agentpb.PlanPart]) error {
	known, err := s.executor.find(request.GetId())
	if err != nil {
		return err
	}
	id := known.snapshot().GetId()
	if known.snapshot().GetState() != agentpb.OperationState_OPERATION_STATE_SUCCEEDED {
		return status.Errorf(codes.NotFound, "operation %q has no plan", id)
	}
	text, textSize, err := s.records.openPlan(id, operation.PlanText, agentpb.MaxPlanText)
	if err != nil {
		return status.Errorf(codes.NotFound, "operation %q has no plan: %v", id, err)
	}
	defer text.Close()
	file, fileSize, err := s.records.openPlan(id, operation.PlanFile, agentpb.MaxPlanSize)
	content := io.LimitReader(text, textSize)
	switch {
	case err == nil:
		defer file.Close()
		content = io.MultiReader(io.LimitReader(file, fileSize), content)
	case !errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.Internal, "read the plan: %v", err)
	}
	if err := stream.Send(&agentpb.PlanPart{FileSize: fileSize, TextSize: textSize}); err != nil {
		return err
	}
	for {
		// A message must not be changed after it was sent.
		chunk := make([]byte, planChunk)
		n, err := content.Read(chunk)
		if n > 0 {
			if err := stream.Send(&agentpb.PlanPart{Chunk: chunk[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Internal, "read the plan: %v", err)
		}
	}
}

// openPlan opens a file that the operation wrote. The file must be a regular one of at most limit bytes.
func (r *records) openPlan(id, name string, limit int64) (file *os.File, size int64, err error) {
	info, err := r.root.Lstat(path.Join(id, name))
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, 0, fmt.Errorf("it is no file of at most %d bytes", limit)
	}
	file, err = r.root.Open(path.Join(id, name))
	return file, info.Size(), err
}

// dropPlan removes the plan that an operation carried out.
func (r *records) dropPlan(id string) {
	_ = r.root.Remove(path.Join(id, takenPlan))
}
