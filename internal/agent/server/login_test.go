package server

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
)

func TestIncompleteLoginIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*agentpb.PulumiCloudLogin)
		says   string
	}{
		"complete":               {change: func(*agentpb.PulumiCloudLogin) {}},
		"without an expiration":  {change: func(l *agentpb.PulumiCloudLogin) { l.Expiration = nil }},
		"no organization":        {func(l *agentpb.PulumiCloudLogin) { l.Organization = "" }, "the login names no organization"},
		"a team and a user":      {func(l *agentpb.PulumiCloudLogin) { l.User = "alice" }, "the login names both a team and a user"},
		"a relative path":        {func(l *agentpb.PulumiCloudLogin) { l.TokenFile = "token" }, "the login has no file with a token"},
		"no time to do anything": {func(l *agentpb.PulumiCloudLogin) { l.Expiration = durationpb.New(0) }, "the expiration of the login"},
		"no duration":            {func(l *agentpb.PulumiCloudLogin) { l.Expiration = &durationpb.Duration{Nanos: -1, Seconds: 1} }, "the expiration of the login"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			login := &agentpb.PulumiCloudLogin{Organization: "acme", Team: "network", Expiration: durationpb.New(time.Hour), TokenFile: "/var/run/secrets/token"}
			tt.change(login)
			err := validate(&agentpb.StartOperationRequest{
				Id: "a", Kind: agentpb.OperationKind_OPERATION_KIND_UP, Stack: "dev", Login: login,
				Source: &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}},
			})
			if tt.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(status.Code(err)).To(Equal(codes.InvalidArgument))
			g.Expect(err).To(MatchError(ContainSubstring(tt.says)))
		})
	}
}
