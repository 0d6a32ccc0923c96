package server

import (
	"fmt"
	"path/filepath"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// maxStackName bounds the name of a stack, in bytes. "organization/project/stack" with parts of the maximum length fits.
const maxStackName = 512

// validate refuses a request that can never work, with INVALID_ARGUMENT. The operation itself finds problems that depend on the program,
// the environment or the backend.
func validate(request *agentpb.StartOperationRequest) error {
	invalid := func(format string, args ...any) error {
		return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
	}
	if !agentpb.ValidOperationID(request.GetId()) {
		return invalid("id %q is not 1 to 64 letters, digits and inner dashes", plaintext.Cut(request.GetId(), 64))
	}
	if _, known := agentpb.OperationKind_name[int32(request.GetKind())]; !known || request.GetKind() == agentpb.OperationKind_OPERATION_KIND_UNSPECIFIED {
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
	if err := validateLogin(request.GetLogin(), invalid); err != nil {
		return err
	}
	if err := validatePlan(request, invalid); err != nil {
		return err
	}
	return validateSource(request, invalid)
}

// validateLogin refuses a login of which something is missing.
func validateLogin(login *agentpb.PulumiCloudLogin, invalid func(string, ...any) error) error {
	expiration := login.GetExpiration()
	switch {
	case login == nil:
		return nil
	case login.GetOrganization() == "":
		return invalid("the login names no organization")
	case login.GetTeam() != "" && login.GetUser() != "":
		return invalid("the login names both a team and a user")
	case !filepath.IsAbs(login.GetTokenFile()):
		return invalid("the login has no file with a token")
	case expiration != nil && (expiration.CheckValid() != nil || expiration.AsDuration() <= 0):
		return invalid("the expiration of the login is not a duration of more than zero")
	}
	return nil
}

// validatePlan refuses an incomplete plan, a missing plan, and a plan for an operation that has none.
func validatePlan(request *agentpb.StartOperationRequest, invalid func(string, ...any) error) error {
	plan, kind := request.GetPlan(), request.GetKind()
	switch {
	case plan == nil && kind.Planned():
		return invalid("the operation has no plan to carry out")
	case plan == nil:
		return nil
	case len(plan.GetKey()) != agentpb.PlanKeySize:
		return invalid("the key of the plan does not have %d bytes", agentpb.PlanKeySize)
	case kind.Planned() && (plan.GetExpected().GetInputs() == "" || plan.GetExpected().GetState() == "" || plan.GetExpected().GetChanges() == ""):
		return invalid("the plan to carry out has no digests")
	case needsPlan(request) && plan.GetFileDigest() == "":
		return invalid("the plan to carry out has no file")
	case !kind.Planned() && kind != agentpb.OperationKind_OPERATION_KIND_PREVIEW && kind != agentpb.OperationKind_OPERATION_KIND_DESTROY_PREVIEW:
		return invalid("only a preview of an up or of a destroy is kept as a plan")
	}
	return nil
}

func validateSource(request *agentpb.StartOperationRequest, invalid func(string, ...any) error) error {
	switch source := request.GetSource().(type) {
	case *agentpb.StartOperationRequest_Artifact:
		if source.Artifact.GetDigest() == "" {
			return invalid("the artifact has no digest")
		}
	case *agentpb.StartOperationRequest_Local:
	case *agentpb.StartOperationRequest_Project:
		switch {
		case source.Project.GetName() == "" || source.Project.GetRuntime() == "":
			return invalid("the project has no name or no runtime")
		case request.GetKind().Unplanned() == agentpb.OperationKind_OPERATION_KIND_UP || request.GetKind() == agentpb.OperationKind_OPERATION_KIND_PREVIEW:
			return invalid("only a destroy or a refresh works without a program")
		}
	default:
		return invalid("the operation names no source")
	}
	return nil
}
