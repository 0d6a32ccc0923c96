// Package cloud stands in for Pulumi Cloud, which cannot be had here: it speaks as much of its protocol as the pulumi CLI needs to
// create a stack, to preview, update, refresh and destroy it, and to remove it. It keeps everything in memory.
package cloud

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// User is who the access token belongs to. Stacks that name no organization belong to the user.
const User = "acme"

// Server is the API of Pulumi Cloud, an http.Handler.
type Server struct {
	token string
	mux   *http.ServeMux

	mu      sync.Mutex
	stacks  map[string]*stack
	unknown []string
}

// stack is what the service keeps of a stack.
type stack struct {
	tags       map[string]string
	deployment json.RawMessage   // versioned, as it was saved
	updates    []Update          // without previews
	begun      map[string]string // the kinds of updates and previews, by their ids
	running    string            // the id of the update that is under way
}

// Update is one that ended.
type Update struct {
	Kind   string // update, refresh or destroy
	Status string // succeeded, failed or cancelled
}

// noDeployment is the deployment of a stack that was never updated.
const noDeployment = `{"version": 3, "deployment": {}}`

// New returns a service that lets in who has the access token.
func New(token string) *Server {
	s := &Server{token: token, mux: http.NewServeMux(), stacks: map[string]*stack{}}
	const name = "/api/stacks/{org}/{project}/{stack}"
	for pattern, handle := range map[string]func(*http.Request) (int, any){
		"GET /api/capabilities": s.capabilities,
		"GET /api/user":         s.user,
		"GET /api/user/stacks":  s.list,
		// It has no other default organization than the user.
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
		// The CLI tells of the values that it has shown.
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
	return s
}

func (s *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	s.mux.ServeHTTP(response, request)
}

// Stacks are the names of the stacks that there are, with organization and project.
func (s *Server) Stacks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.stacks))
}

// Updates are the updates of the stack that ended, the first one first. The place of one in the list, from 1, is its version.
func (s *Server) Updates(name string) []Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.stacks[name]; known != nil {
		return slices.Clone(known.updates)
	}
	return nil
}

// Unknown are the requests that the service does not know, for a message about a failure.
func (s *Server) Unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unknown)
}

// problem is how the service says that something went wrong.
func problem(status int, message string) (int, any) {
	return status, map[string]any{"code": status, "message": message}
}

func notFound(*http.Request) (int, any) { return problem(http.StatusNotFound, "Not Found") }

func ignore(*stack, *http.Request) (int, any) { return http.StatusOK, map[string]any{} }

// answer makes a handler that lets in only who has the access token, or the lease of an update, and writes what handle returns.
func (s *Server) answer(handle func(*http.Request) (int, any)) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		s.mu.Lock()
		status, content := problem(http.StatusUnauthorized, "Unauthorized: No credentials provided or are invalid.")
		kind, credentials, _ := strings.Cut(request.Header.Get("Authorization"), " ")
		// withUpdate looks at the lease.
		if kind == "update-token" || kind == "token" && credentials == s.token {
			status, content = handle(request)
		}
		s.mu.Unlock()
		response.Header().Set("Content-Type", "application/json")
		response.WriteHeader(status)
		_ = json.NewEncoder(response).Encode(content) // a client that goes away has no use for it
	}
}

func (s *Server) other(request *http.Request) (int, any) {
	s.unknown = append(s.unknown, request.Method+" "+request.URL.Path)
	return notFound(request)
}

// key is the name of the stack that a request is about.
func key(request *http.Request) string {
	return strings.Join([]string{request.PathValue("org"), request.PathValue("project"), request.PathValue("stack")}, "/")
}

// withStack is for requests about a stack that exists, by those who have the access token.
func (s *Server) withStack(handle func(*stack, *http.Request) (int, any)) func(*http.Request) (int, any) {
	return func(request *http.Request) (int, any) {
		known := s.stacks[key(request)]
		if known == nil {
			return notFound(request)
		}
		return handle(known, request)
	}
}

// withUpdate is for requests about the update that is under way, by those who have its lease.
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

// ended is what a request to end an update has.
type ended struct {
	Status string `json:"status"`
}

// saved is what a request to save a deployment has: with a layer around it, or without.
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
