package auth

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"
)

const (
	tokenReviews         = "/apis/authentication.k8s.io/v1/tokenreviews"
	subjectAccessReviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
)

// tokenReview is as much of authentication.k8s.io/v1 TokenReview as the agent needs.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated"`
		User          userInfo `json:"user"`
		Audiences     []string `json:"audiences"`
	} `json:"status"`
}

// userInfo is a user as the API server knows it.
type userInfo struct {
	Username string              `json:"username"`
	UID      string              `json:"uid"`
	Groups   []string            `json:"groups"`
	Extra    map[string][]string `json:"extra"`
}

// subjectAccessReview is as much of authorization.k8s.io/v1 SubjectAccessReview as the agent needs.
type subjectAccessReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		User               string              `json:"user"`
		UID                string              `json:"uid,omitempty"`
		Groups             []string            `json:"groups,omitempty"`
		Extra              map[string][]string `json:"extra,omitempty"`
		ResourceAttributes resourceAttributes  `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

type resourceAttributes struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Version     string `json:"version"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource"`
}

// decideOnline asks the API server. The error is a *forbiddenError when the agent may not ask.
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
			bounded(user.Username), a.options.Namespace, a.options.Name), nil
	}
	return allow(unverifiedEnd(token)), nil
}

// reviewToken asks whose the token is; ok is false when it is nobody's, or not for this agent.
func (a *Authorizer) reviewToken(ctx context.Context, token string) (user userInfo, ok bool, err error) {
	review := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	review.Spec.Token, review.Spec.Audiences = token, []string{a.options.Audience}
	var answer tokenReview
	if err := a.api.call(ctx, http.MethodPost, tokenReviews, review, &answer); err != nil {
		return userInfo{}, false, err
	}
	// An API server that knows nothing of audiences leaves them out: then the token was for anybody.
	return answer.Status.User, answer.Status.Authenticated && slices.Contains(answer.Status.Audiences, a.options.Audience), nil
}

// reviewAccess asks whether the user may use the workspace.
func (a *Authorizer) reviewAccess(ctx context.Context, user userInfo) (bool, error) {
	review := subjectAccessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
	review.Spec.User, review.Spec.UID, review.Spec.Groups, review.Spec.Extra = user.Username, user.UID, user.Groups, user.Extra
	review.Spec.ResourceAttributes = resourceAttributes{
		Namespace: a.options.Namespace, Name: a.options.Name, Verb: "use",
		Group: "auto.pulumi.com", Version: "v1alpha1", Resource: "workspaces", Subresource: "rpc",
	}
	var answer subjectAccessReview
	if err := a.api.call(ctx, http.MethodPost, subjectAccessReviews, review, &answer); err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
