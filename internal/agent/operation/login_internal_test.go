package operation

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestOnlyAFailureOfTheAccessTokenIsSaidToBeOneOfTheLogin(t *testing.T) {
	const (
		updateFailed    = agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED
		unauthenticated = agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED
		loggedOut       = "failed to serialize snapshot: this command requires logging in; try running `pulumi login` first"
		expired         = "the access token of the login by OIDC to Pulumi Cloud as organization acme expired at "
	)
	for name, tt := range map[string]struct {
		left     time.Duration
		reason   agentpb.FailureReason
		message  string
		want     agentpb.FailureReason
		beginsAs string
	}{
		"expired before Pulumi begins":  {-time.Second, unauthenticated, "PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", unauthenticated, expired},
		"expired while Pulumi works":    {-time.Second, updateFailed, loggedOut, unauthenticated, expired},
		"expired, and something else":   {-time.Second, updateFailed, "no quota is left", updateFailed, "no quota is left"},
		"revoked while Pulumi works":    {time.Hour, unauthenticated, loggedOut, unauthenticated, "Pulumi Cloud does not accept the access token"},
		"a provider has no credentials": {time.Hour, updateFailed, "GET https://cloud: 401 Unauthorized", updateFailed, "GET https://cloud"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := &operation{request: &agentpb.StartOperationRequest{Login: &agentpb.PulumiCloudLogin{Organization: "acme"}}, session: &session{expires: time.Now().Add(tt.left)}}
			f, ok := errors.AsType[*failure](o.explainLogin(failed(tt.reason, "%s", tt.message)))
			g.Expect(ok).To(BeTrue())
			g.Expect(f.message).To(And(HavePrefix(tt.beginsAs), ContainSubstring(tt.message)))
			g.Expect(f.reason).To(Equal(tt.want))
			o.session = nil
			g.Expect(o.explainLogin(failed(tt.reason, "%s", tt.message))).To(MatchError(tt.message), "an operation that did not log in")
		})
	}
}
