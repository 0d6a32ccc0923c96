// Package auth decides who may call the agent of a workspace. Every call has a bearer token for the audience of this workspace only. The
// API server returns the user of the token (TokenReview), and whether that user may use the workspace (SubjectAccessReview: verb use on
// workspaces/rpc). If the agent's ServiceAccount may not create these reviews, the agent verifies the token with the API server's public
// keys and accepts only the controller.
//
// Decisions are cached for a short time, so that neither a busy controller nor a flood of bad tokens causes load on the API server. While
// the API server is unavailable, callers that were accepted before stay accepted until their token expires: a running operation is not lost
// because the API server restarts.
//
// No error and no log line contains a token, or a part of one.
package auth

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

const (
	// maxHeaderSize bounds the headers of a call, in bytes; the token is the largest of them.
	maxHeaderSize = 64 << 10
	// reviewRate and reviewBurst bound the decisions per second on unknown tokens. The controller has a new token every few minutes.
	reviewRate, reviewBurst = 10, 20
	// logRate and logBurst bound the log lines per second about refused calls.
	logRate, logBurst = 1, 10
)

// Options identify the workspace of the agent and configure access to the API server.
type Options struct {
	// Namespace and Name are those of the Workspace.
	Namespace, Name string
	// Audience is the audience that a token must have.
	Audience string
	// Controller is the user name of the controller, system:serviceaccount:NAMESPACE:NAME. It is the only user that is accepted if the agent
	// may not ask the API server who may use the workspace.
	Controller string
	// TokenFile contains the agent's own token for the API server. CAFile contains the CA certificates of the API server. Both files may
	// change at any time.
	TokenFile, CAFile string
	Log               *slog.Logger
}

// Authorizer decides on calls. It is safe for concurrent use.
type Authorizer struct {
	options Options
	log     *slog.Logger
	api     *apiServer
	issuer  *issuer
	cache   *cache
	// reviews makes calls with the same token wait for one decision.
	reviews singleflight.Group
	// limit bounds new decisions, logLimit the log lines about refused calls.
	limit, logLimit *rate.Limiter
	undecided       undecidedCalls
	// online makes the agent log only once that it asks the API server.
	online sync.Once
	// streamAge is how long a stream may last.
	streamAge time.Duration
	// offlineUntil is the time until which the agent does not ask the API server for reviews again; nil if the agent was never forbidden to
	// ask.
	offlineUntil atomic.Pointer[time.Time]
}

// New returns an Authorizer that uses the API server in the environment variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT,
// which every container has. It does not call the API server yet.
func New(options Options) (*Authorizer, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in every container of a pod")
	}
	api := &apiServer{url: "https://" + net.JoinHostPort(host, port), tokenFile: options.TokenFile, caFile: options.CAFile}
	return &Authorizer{
		options: options, log: options.Log, api: api, issuer: &issuer{api: api}, cache: newCache(maxEntries),
		limit: rate.NewLimiter(reviewRate, reviewBurst), logLimit: rate.NewLimiter(logRate, logBurst), undecided: make(undecidedCalls, maxUnproven),
		streamAge: maxStreamAge,
	}, nil
}

// ServerOptions returns the options with which a gRPC server authorises every call of every service, before any other interceptor.
func (a *Authorizer) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxHeaderListSize(maxHeaderSize),
		grpc.InTapHandle(a.admit),
		grpc.UnaryInterceptor(a.unary),
		grpc.StreamInterceptor(a.stream),
	}
}
