package source

import (
	"fmt"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// Reasons are those of the problems that a source can have while an operation waits for its artifact: somebody may have to help.
var Reasons = []string{
	pulumiv1.AuthenticationFailedReason,
	pulumiv1.HostKeyUnknownReason,
	pulumiv1.LFSPointersReason,
	pulumiv1.RateLimitedReason,
	pulumiv1.RepositoryNotFoundReason,
	pulumiv1.RevisionNotFoundReason,
	pulumiv1.SecretNotFoundReason,
	pulumiv1.SourceNotFoundReason,
	pulumiv1.SourceNotReadyReason,
	pulumiv1.SourceUnavailableReason,
}

// Problem says why a Stack has no artifact to run. It is not a failure of the Stack's program: waiting for a source
// never consumes an attempt.
type Problem struct {
	// Reason is the condition reason, one of the source reasons of the Stack API.
	Reason string
	// Message is for the user: it names the object and what is wrong with it.
	Message string
	// Permanent is true when only an edit by a human can help.
	Permanent bool
	// Watched is true when a change of the source wakes the Stack; otherwise the caller has to come back in time.
	Watched bool
	// Pending is true when the source is being looked at for the first time, or because somebody asked for it: the answer is on its
	// way, and there is nothing to complain of.
	Pending bool
}

// Error implements error.
func (p *Problem) Error() string {
	return p.Message
}

func waiting(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func permanent(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Permanent: true}
}
