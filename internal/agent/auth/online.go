package auth

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	tokenReviews         = "/apis/authentication.k8s.io/v1/tokenreviews"
	subjectAccessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// userInfo is the API server's description of a user.
type userInfo struct {
	Username, UID string
	Groups        []string
	Extra         map[string][]string
}

// decideOnline asks the API server. The error is a *forbiddenError if the agent may not ask.
func (a *Authorizer) decideOnline(ctx context.Context, token string) (decision, error) {
	user, ok, err := a.reviewToken(ctx, token)
	if err != nil {
		return decision{}, err
	}
	if !ok {
		return deny(codes.Unauthenticated,
			"the API server does not accept the token for audience %s: it is for another audience, has ended, or is no token of this cluster", a.options.Audience), nil
	}
	allowed, err := a.reviewAccess(ctx, user)
	if err != nil {
		return decision{}, err
	}
	if !allowed {
		return deny(codes.PermissionDenied,
			"user %q may not use workspace %s/%s: grant the verb use on workspaces/rpc in API group auto.pulumi.com, for this name and namespace",
			plaintext.Cut(user.Username, maxQuote), a.options.Namespace, a.options.Name), nil
	}
	return allow(unverifiedEnd(token)), nil
}

// reviewToken asks the API server for the user of the token. ok is false if the token is not valid, or not for this agent.
func (a *Authorizer) reviewToken(ctx context.Context, token string) (user userInfo, ok bool, err error) {
	review := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
		"spec": map[string]any{"token": token, "audiences": []string{a.options.Audience}},
	}
	var answer struct {
		Status struct {
			Authenticated bool
			User          userInfo
			Audiences     []string
		}
	}
	if err := a.api.call(ctx, http.MethodPost, tokenReviews, review, &answer); err != nil {
		return userInfo{}, false, err
	}
	// An API server without support for audiences leaves them out: then the token could be for any audience.
	return answer.Status.User, answer.Status.Authenticated && slices.Contains(answer.Status.Audiences, a.options.Audience), nil
}

// reviewAccess asks the API server whether the user may use the workspace.
func (a *Authorizer) reviewAccess(ctx context.Context, user userInfo) (bool, error) {
	review := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
		"spec": map[string]any{
			"user": user.Username, "uid": user.UID, "groups": user.Groups, "extra": user.Extra,
			"resourceAttributes": map[string]string{
				"namespace": a.options.Namespace, "name": a.options.Name, "verb": "use",
				"group": "auto.pulumi.com", "version": "v1alpha1", "resource": "workspaces", "subresource": "rpc",
			},
		},
	}
	var answer struct{ Status struct{ Allowed bool } }
	err := a.api.call(ctx, http.MethodPost, subjectAccessReviews, review, &answer)
	return answer.Status.Allowed, err
}
