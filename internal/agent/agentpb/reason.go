package agentpb

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain marks the error details that belong to this protocol.
const errorDomain = "agent.stack-controller"

// Reason is the reason why the agent refused a call with FAILED_PRECONDITION. It is sent as the ErrorInfo of the status, so that no client
// has to parse the message.
type Reason string

const (
	// ReasonSourceMissing says that the agent does not have the artifact that the operation names; push it first.
	ReasonSourceMissing Reason = "SOURCE_MISSING"
	// ReasonPlanMissing says that the agent does not have the plan that the operation carries out; push it first.
	ReasonPlanMissing Reason = "PLAN_MISSING"
	// ReasonBusy says that an operation is not done, or the source is being replaced; try again later.
	ReasonBusy Reason = "BUSY"
	// ReasonFetchFailed says that the agent could not download the artifact; try again later.
	ReasonFetchFailed Reason = "FETCH_FAILED"
	// ReasonPulumiUnsupported says that the agent does not support the version of the pulumi CLI; no operation ever starts.
	ReasonPulumiUnsupported Reason = "PULUMI_UNSUPPORTED"
)

// Refuse returns the FAILED_PRECONDITION error with the reason and a message for people.
func Refuse(reason Reason, message string) error {
	refused := status.New(codes.FailedPrecondition, message)
	detailed, err := refused.WithDetails(&errdetails.ErrorInfo{Reason: string(reason), Domain: errorDomain})
	if err != nil {
		return refused.Err()
	}
	return detailed.Err()
}

// ReasonOf returns the reason in an error from Refuse, also after it was sent over gRPC; empty for every other error.
func ReasonOf(err error) Reason {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return Reason(info.GetReason())
		}
	}
	return ""
}
