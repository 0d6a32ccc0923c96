// Package cloud stands in for Pulumi Cloud, which is not available to tests. It implements as much of the protocol as the pulumi CLI needs
// to create a stack, to preview, update, refresh and destroy it, and to remove it. It keeps everything in memory.
package cloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// User is the owner of the access token. Stacks without an organization belong to the user.
const User = "acme"

// Server is the API of Pulumi Cloud, an http.Handler.
type Server struct {
	token string
	mux   *http.ServeMux

	mu      sync.Mutex
	stacks  map[string]*stack
	unknown []string
	// trust says which tokens are exchanged; nil for none. issued has when each access token expires that was issued for one.
	trust     *Trust
	issued    map[string]time.Time
	exchanges []Exchange
	requests  []string
}

// stack is what the service stores of a stack.
type stack struct {
	tags       map[string]string
	deployment json.RawMessage   // with its version, as the CLI saved it
	updates    []Update          // without previews
	begun      map[string]string // kinds of the updates and previews, by ID
	running    string            // ID of the running update
}

// Update is an update that has ended.
type Update struct {
	Kind   string // update, refresh or destroy
	Status string // succeeded, failed or cancelled
}

// noDeployment is the deployment of a stack that was never updated.
const noDeployment = `{"version": 3, "deployment": {}}`

// New returns a service that accepts requests with the access token. If it is empty, only those that the service issues are accepted.
func New(token string) *Server {
	s := &Server{token: token, mux: http.NewServeMux(), stacks: map[string]*stack{}, issued: map[string]time.Time{}}
	const name = "/api/stacks/{org}/{project}/{stack}"
	for pattern, handle := range map[string]func(*http.Request) (int, any){
		"GET /api/capabilities": s.capabilities,
		"GET /api/user":         s.user,
		"GET /api/user/stacks":  s.list,
		// The user has no other default organization.
		"GET /api/user/organizations/default": notFound,
		"HEAD /api/stacks/{org}/{project}":    s.project,
		"POST /api/stacks/{org}/{project}":    s.create,
		"GET " + name:                         s.withStack(s.show),
		"DELETE " + name:                      s.withStack(s.remove),
		"GET " + name + "/export":             s.withStack(s.export),
		"PATCH " + name + "/tags":             s.withStack(s.tag),
		"GET " + name + "/updates/latest":     notFound,
		"POST " + name + "/encrypt":           s.withStack(encrypt),
		"POST " + name + "/decrypt":           s.withStack(decrypt),
		// With these requests the CLI reports which values it has shown.
		"POST " + name + "/decrypt/{what}":           s.withStack(ignore),
		"POST " + name + "/batch-encrypt":            s.withStack(encryptAll),
		"POST " + name + "/batch-decrypt":            s.withStack(decryptAll),
		"POST " + name + "/{kind}":                   s.withStack(s.begin),
		"POST " + name + "/{kind}/{id}":              s.withStack(s.start),
		"PATCH " + name + "/{kind}/{id}/{as}":        s.withUpdate(s.save),
		"POST " + name + "/{kind}/{id}/renew_lease":  s.withUpdate(s.renew),
		"POST " + name + "/{kind}/{id}/complete":     s.withUpdate(s.complete),
		"POST " + name + "/{kind}/{id}/events/batch": s.withUpdate(ignore),
	} {
		s.mux.HandleFunc(pattern, s.answer(handle))
	}
	s.mux.HandleFunc("/", s.answer(s.other))
	s.mux.HandleFunc("POST /api/oauth/token", func(response http.ResponseWriter, request *http.Request) {
		s.mu.Lock()
		status, content := s.exchange(request)
		s.mu.Unlock()
		write(response, status, content)
	})
	return s
}

func (s *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, request.Method+" "+request.URL.Path)
	s.mu.Unlock()
	s.mux.ServeHTTP(response, request)
}

// Stacks returns the names of all stacks, with organization and project.
func (s *Server) Stacks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.stacks))
}

// Updates returns the updates of the stack that have ended, the oldest first. The version of an update is its position in the list, from 1.
func (s *Server) Updates(name string) []Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.stacks[name]; known != nil {
		return slices.Clone(known.updates)
	}
	return nil
}

// Unknown returns the requests that the service does not implement, for the message of a failed test.
func (s *Server) Unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unknown)
}

// Requests returns the requests since the last call.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := s.requests
	s.requests = nil
	return requests
}

// problem returns an error in the format of the service.
func problem(status int, message string) (int, any) {
	return status, map[string]any{"code": status, "message": message}
}

func notFound(*http.Request) (int, any) { return problem(http.StatusNotFound, "Not Found") }

func ignore(*stack, *http.Request) (int, any) { return http.StatusOK, map[string]any{} }

// answer returns a handler that writes what handle returns. It accepts requests with the access token, or with the lease of an update.
func (s *Server) answer(handle func(*http.Request) (int, any)) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		s.mu.Lock()
		status, content := problem(http.StatusUnauthorized, "Unauthorized: No credentials provided or are invalid.")
		kind, credentials, _ := strings.Cut(request.Header.Get("Authorization"), " ")
		// withUpdate checks the lease.
		if kind == "update-token" || kind == "token" && s.knows(credentials) {
			status, content = handle(request)
		}
		s.mu.Unlock()
		write(response, status, content)
	}
}

func write(response http.ResponseWriter, status int, content any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(content) // a client that disconnects does not need the rest
}

func (s *Server) other(request *http.Request) (int, any) {
	s.unknown = append(s.unknown, request.Method+" "+request.URL.Path)
	return notFound(request)
}

// key returns the name of the stack that a request is about.
func key(request *http.Request) string {
	return strings.Join([]string{request.PathValue("org"), request.PathValue("project"), request.PathValue("stack")}, "/")
}

// withStack handles requests about an existing stack, with the access token.
func (s *Server) withStack(handle func(*stack, *http.Request) (int, any)) func(*http.Request) (int, any) {
	return func(request *http.Request) (int, any) {
		known := s.stacks[key(request)]
		if known == nil {
			return notFound(request)
		}
		return handle(known, request)
	}
}

// withUpdate handles requests about the running update, with its lease.
func (s *Server) withUpdate(handle func(*stack, *http.Request) (int, any)) func(*http.Request) (int, any) {
	return s.withStack(func(known *stack, request *http.Request) (int, any) {
		id := request.PathValue("id")
		if id != known.running {
			return problem(http.StatusConflict, "Conflict: The update is not in progress.")
		}
		if request.Header.Get("Authorization") != "update-token "+lease(id) {
			return problem(http.StatusForbidden, "Forbidden: The lease is not that of the update.")
		}
		return handle(known, request)
	})
}

// lease is the token of an update.
func lease(id string) string { return "lease-of-" + id }

// ended is the body of a request to end an update.
type ended struct {
	Status string `json:"status"`
}

// saved is the body of a request to save a deployment, with an envelope or without.
type saved struct {
	Untyped    json.RawMessage `json:"untypedDeployment"`
	Version    int             `json:"version"`
	Deployment json.RawMessage `json:"deployment"`
}

func (s saved) content() json.RawMessage {
	if s.Untyped != nil {
		return s.Untyped
	}
	return json.RawMessage(fmt.Sprintf(`{"version": %d, "deployment": %s}`, s.Version, s.Deployment))
}
