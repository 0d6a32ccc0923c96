package update

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/controller/inputs"
)

const (
	// accessTokenVariable has an access token for Pulumi Cloud.
	accessTokenVariable = "PULUMI_ACCESS_TOKEN"
	// minExpiration is the least that an access token is valid by default, and expirationMargin is how much longer than the operation:
	// Pulumi needs the token until it has stopped.
	minExpiration, expirationMargin = time.Hour, 15 * time.Minute
)

// login returns how the operation with the environment logs in to Pulumi Cloud; nil when the environment has what is needed. The error is
// an *inputs.InvalidError.
func (r *inputReader) login(workspace *autov1alpha1.Workspace, request *agentpb.StartOperationRequest) (*agentpb.PulumiCloudLogin, error) {
	cloud := workspace.Spec.PulumiCloud
	if cloud == nil {
		return nil, nil
	}
	if !r.pods {
		return nil, inputs.Invalidf("pulumiCloud.oidc of workspace %q: without a pod, there is no token of a ServiceAccount to log in with", workspace.Name)
	}
	if err := workspace.CheckPulumiCloud(); err != nil {
		return nil, inputs.Invalidf("workspace %q: %s", workspace.Name, err)
	}
	for _, variable := range request.GetEnv() {
		text, known := variable.GetValue().(*agentpb.EnvironmentVariable_Text)
		if variable.GetName() == accessTokenVariable && (!known || text.Text != "") {
			return nil, inputs.Invalidf("workspace %q: %s", workspace.Name, autov1alpha1.ErrTwoLogins)
		}
	}
	oidc := &cloud.OIDC
	return &agentpb.PulumiCloudLogin{
		Organization: oidc.Organization, Team: oidc.Team, User: oidc.User,
		Expiration: durationpb.New(expirationOf(oidc, request.GetTimeout().AsDuration())),
		TokenFile:  autov1alpha1.PulumiCloudTokenDir + "/" + autov1alpha1.PulumiCloudTokenFile,
	}, nil
}

// expirationOf returns how long the access token of an operation is valid that has the timeout, 0 for none.
func expirationOf(oidc *autov1alpha1.PulumiCloudOIDC, timeout time.Duration) time.Duration {
	if oidc.Expiration != nil {
		return oidc.Expiration.Duration
	}
	return max(minExpiration, timeout+expirationMargin)
}
