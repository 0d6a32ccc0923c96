package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// maxStackName bounds the name of a stack, in bytes. "organization/project/stack" with the longest parts fits.
const maxStackName = 512

// validate refuses a request that can never work, with INVALID_ARGUMENT. What depends on the program, the environment
// or the backend is for the operation to find out.
func validate(request *proto.StartOperationRequest) error {
	invalid := func(format string, args ...any) error {
		return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
	}
	if !proto.ValidOperationID(request.GetId()) {
		return invalid("id %q is not 1 to 64 letters, digits and inner dashes", clip(request.GetId(), 64))
	}
	if _, known := proto.OperationKind_name[int32(request.GetKind())]; !known || request.GetKind() == proto.OperationKind_OPERATION_KIND_UNSPECIFIED {
		return invalid("operation kind %d is not known", request.GetKind())
	}
	if name := request.GetStack(); name == "" || len(name) > maxStackName || !utf8.ValidString(name) {
		return invalid("the name of the stack does not have 1 to %d bytes", maxStackName)
	}
	if request.GetOptions().GetParallel() < 0 {
		return invalid("parallel is negative")
	}
	for name, duration := range map[string]*durationpb.Duration{"timeout": request.GetTimeout(), "cancel_grace": request.GetCancelGrace()} {
		if duration != nil && (duration.CheckValid() != nil || duration.AsDuration() < 0) {
			return invalid("%s is not a duration of zero or more", name)
		}
	}
	return validateSource(request, invalid)
}

func validateSource(request *proto.StartOperationRequest, invalid func(string, ...any) error) error {
	switch source := request.GetSource().(type) {
	case *proto.StartOperationRequest_Artifact:
		if source.Artifact.GetDigest() == "" {
			return invalid("the artifact has no digest")
		}
	case *proto.StartOperationRequest_Local:
	case *proto.StartOperationRequest_Project:
		switch {
		case source.Project.GetName() == "" || source.Project.GetRuntime() == "":
			return invalid("the project has no name or no runtime")
		case request.GetKind() != proto.OperationKind_OPERATION_KIND_DESTROY && request.GetKind() != proto.OperationKind_OPERATION_KIND_REFRESH:
			return invalid("only a destroy or a refresh works without a program")
		}
	default:
		return invalid("the operation names no source")
	}
	return nil
}
