package credentials

import (
	"context"
	"fmt"

	"google.golang.org/grpc/credentials"
)

// perCall adds the token to each call.
type perCall struct {
	tokens   *Tokens
	audience string
}

var _ credentials.PerRPCCredentials = (*perCall)(nil)

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (c *perCall) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	request, _ := credentials.RequestInfoFromContext(ctx)
	if err := credentials.CheckSecurityLevel(request.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
		return nil, fmt.Errorf("send a token to audience %s: %w", c.audience, err)
	}
	token, err := c.tokens.get(ctx, c.audience)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (c *perCall) RequireTransportSecurity() bool {
	return true
}
