// Package auth decides who may call the agent of a workspace. Every call carries a bearer token for the audience of this
// one workspace. The API server says whose it is (TokenReview) and whether that user may use the workspace
// (SubjectAccessReview: verb use on workspaces/rpc). Where the agent's ServiceAccount may not ask that, the agent verifies
// the token with the API server's public keys and accepts the controller only.
//
// What was decided is remembered for a short time, so that neither a busy controller nor a flood of bad tokens becomes
// a load on the API server. While the API server is away, whoever was accepted before stays accepted until the token
// ends: an operation that runs is not lost because the API server restarts.
//
// No error and no log line has a token, or a part of one, in it.
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
	// reviewRate and reviewBurst bound the decisions per second on tokens that were not seen before. The controller has
	// a new token every few minutes.
	reviewRate, reviewBurst = 10, 20
	// logRate and logBurst bound the lines per second about refused calls.
	logRate, logBurst = 1, 10
)

// Options say which workspace the agent belongs to and how to ask the API server.
type Options struct {
	// Namespace and Name are those of the Workspace.
	Namespace, Name string
	// Audience is what a token has to be for.
	Audience string
	// Controller is the user name of the controller, system:serviceaccount:NAMESPACE:NAME. Only it is accepted where the
	// API server cannot be asked who may use the workspace.
	Controller string
	// TokenFile has the agent's own token for the API server, CAFile the certificates that the API server's is signed with.
	// Both may change at any time.
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
	// limit bounds new decisions, logLimit what is logged of them.
	limit, logLimit *rate.Limiter
	unproven        slots
	// online says once that the API server is asked.
	online sync.Once
	// streamAge is how long a stream may last.
	streamAge time.Duration
	// offlineUntil is until when the API server is not asked for reviews again; nil if it was never refused to ask.
	offlineUntil atomic.Pointer[time.Time]
}

// New returns an Authorizer that asks the API server of the environment variables KUBERNETES_SERVICE_HOST and
// KUBERNETES_SERVICE_PORT, which every container has. It does not call it yet.
func New(options Options) (*Authorizer, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("find the API server: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, as they are in every container of a pod")
	}
	api := &apiServer{url: "https://" + net.JoinHostPort(host, port), tokenFile: options.TokenFile, caFile: options.CAFile}
	return &Authorizer{
		options: options, log: options.Log, api: api, issuer: &issuer{api: api}, cache: newCache(maxEntries),
		limit: rate.NewLimiter(reviewRate, reviewBurst), logLimit: rate.NewLimiter(logRate, logBurst), unproven: make(slots, maxUnproven),
		streamAge: maxStreamAge,
	}, nil
}

// ServerOptions make a gRPC server authorise every call of every service, before any other interceptor sees it.
func (a *Authorizer) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxHeaderListSize(maxHeaderSize),
		grpc.InTapHandle(a.admit),
		grpc.UnaryInterceptor(a.unary),
		grpc.StreamInterceptor(a.stream),
	}
}
