package cloud

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
)

// maxRequest bounds the size of a request, in bytes. The deployments of tests are small.
const maxRequest = 16 << 20

// read decodes the body of a request. The CLI compresses large bodies.
func read(request *http.Request, into any) error {
	body := io.Reader(request.Body)
	if request.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(request.Body)
		if err != nil {
			return fmt.Errorf("unpack the request: %w", err)
		}
		body = unpacked
	}
	if err := json.NewDecoder(io.LimitReader(body, maxRequest)).Decode(into); err != nil {
		return fmt.Errorf("decode the request: %w", err)
	}
	return nil
}

func badRequest(err error) (int, any) {
	return problem(http.StatusBadRequest, "Bad Request: "+err.Error())
}

// capabilities returns an empty list, so that the CLI sends whole deployments.
func (s *Server) capabilities(*http.Request) (int, any) {
	return http.StatusOK, map[string]any{"capabilities": []any{}}
}

func (s *Server) user(*http.Request) (int, any) {
	return http.StatusOK, map[string]any{"githubLogin": User, "name": User, "organizations": []any{}}
}

func (s *Server) project(request *http.Request) (int, any) {
	prefix := request.PathValue("org") + "/" + request.PathValue("project") + "/"
	for name := range s.stacks {
		if strings.HasPrefix(name, prefix) {
			return http.StatusOK, nil
		}
	}
	return notFound(request)
}

func (s *Server) create(request *http.Request) (int, any) {
	var wanted struct {
		StackName string            `json:"stackName"`
		Tags      map[string]string `json:"tags"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	name := path.Join(request.PathValue("org"), request.PathValue("project"), wanted.StackName)
	if s.stacks[name] != nil {
		return problem(http.StatusConflict, "Conflict: Stack already exists.")
	}
	s.stacks[name] = &stack{tags: wanted.Tags, deployment: json.RawMessage(noDeployment), begun: map[string]string{}}
	return http.StatusOK, map[string]any{}
}

func (s *Server) show(known *stack, request *http.Request) (int, any) {
	return http.StatusOK, map[string]any{
		"id": key(request), "orgName": request.PathValue("org"), "projectName": request.PathValue("project"),
		"stackName": request.PathValue("stack"), "tags": known.tags, "version": len(known.updates), "activeUpdate": known.running,
	}
}

func (s *Server) remove(known *stack, request *http.Request) (int, any) {
	// The stack itself is one of the resources.
	if known.resources() > 1 && request.URL.Query().Get("force") != "true" {
		return problem(http.StatusBadRequest, "Bad Request: Stack still contains resources.")
	}
	delete(s.stacks, key(request))
	return http.StatusNoContent, nil
}

// resources returns the number of resources in the deployment.
func (s *stack) resources() int {
	var kept struct {
		Deployment struct {
			Resources []any `json:"resources"`
		} `json:"deployment"`
	}
	if err := json.Unmarshal(s.deployment, &kept); err != nil {
		return 0 // an invalid deployment has no resources
	}
	return len(kept.Deployment.Resources)
}

func (s *Server) list(*http.Request) (int, any) {
	var stacks []any
	for name, known := range s.stacks {
		parts := strings.Split(name, "/")
		stacks = append(stacks, map[string]any{
			"orgName": parts[0], "projectName": parts[1], "stackName": parts[2], "resourceCount": known.resources(),
		})
	}
	return http.StatusOK, map[string]any{"stacks": stacks}
}

func (s *Server) export(known *stack, _ *http.Request) (int, any) {
	return http.StatusOK, known.deployment
}

func (s *Server) tag(known *stack, request *http.Request) (int, any) {
	tags := map[string]string{}
	if err := read(request, &tags); err != nil {
		return badRequest(err)
	}
	known.tags = tags
	return http.StatusNoContent, nil
}

// preview is the kind of an operation that changes nothing and is not in the stack's history of updates.
const preview = "preview"

// begin creates an update. After start has started it, the stack is locked until the update is complete.
func (s *Server) begin(known *stack, request *http.Request) (int, any) {
	kind := request.PathValue("kind")
	switch kind {
	case "update", "refresh", "destroy", preview:
	default:
		return s.other(request)
	}
	var wanted struct {
		Options struct {
			DryRun bool `json:"dryRun"`
		} `json:"options"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	if wanted.Options.DryRun {
		kind = preview
	}
	id := fmt.Sprintf("%s-%d", kind, len(known.begun)+1)
	known.begun[id] = kind
	return http.StatusOK, map[string]any{"updateID": id}
}

// start starts an update. The path contains "update" for every kind.
func (s *Server) start(known *stack, request *http.Request) (int, any) {
	id := request.PathValue("id")
	kind, found := known.begun[id]
	switch {
	case !found:
		return s.other(request)
	case known.running != "":
		return problem(http.StatusConflict, "Conflict: Another update is currently in progress.")
	}
	known.running = id
	version := len(known.updates)
	if kind != preview {
		version++
	}
	return http.StatusOK, map[string]any{"version": version, "token": lease(id)}
}

func (s *Server) save(known *stack, request *http.Request) (int, any) {
	switch request.PathValue("as") {
	case "checkpoint", "checkpointverbatim":
	default:
		return s.other(request)
	}
	var wanted saved
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	known.deployment = wanted.content()
	return http.StatusNoContent, nil
}

func (s *Server) renew(_ *stack, request *http.Request) (int, any) {
	return http.StatusOK, map[string]any{"token": lease(request.PathValue("id"))}
}

func (s *Server) complete(known *stack, request *http.Request) (int, any) {
	var end ended
	if err := read(request, &end); err != nil {
		return badRequest(err)
	}
	known.running = ""
	if kind := known.begun[request.PathValue("id")]; kind != preview {
		known.updates = append(known.updates, Update{Kind: kind, Status: end.Status})
	}
	return http.StatusNoContent, nil
}

// sealed is the prefix of the plaintext in what stands for a ciphertext.
const sealed = "sealed:"

// seal does not encrypt: everybody who can read the state of a test may read the values. It only makes the result differ from the
// plaintext.
func seal(plaintext []byte) []byte {
	return []byte(sealed + base64.StdEncoding.EncodeToString(plaintext))
}

func unseal(ciphertext []byte) ([]byte, error) {
	encoded, found := strings.CutPrefix(string(ciphertext), sealed)
	if !found {
		return nil, fmt.Errorf("the ciphertext is not one of this service")
	}
	return base64.StdEncoding.DecodeString(encoded)
}

func encrypt(_ *stack, request *http.Request) (int, any) {
	var wanted struct {
		Plaintext []byte `json:"plaintext"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	return http.StatusOK, map[string]any{"ciphertext": seal(wanted.Plaintext)}
}

func decrypt(_ *stack, request *http.Request) (int, any) {
	var wanted struct {
		Ciphertext []byte `json:"ciphertext"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	plaintext, err := unseal(wanted.Ciphertext)
	if err != nil {
		return badRequest(err)
	}
	return http.StatusOK, map[string]any{"plaintext": plaintext}
}

func encryptAll(_ *stack, request *http.Request) (int, any) {
	var wanted struct {
		Plaintexts [][]byte `json:"plaintexts"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	ciphertexts := make([][]byte, 0, len(wanted.Plaintexts))
	for _, plaintext := range wanted.Plaintexts {
		ciphertexts = append(ciphertexts, seal(plaintext))
	}
	return http.StatusOK, map[string]any{"ciphertexts": ciphertexts}
}

// decryptAll returns the plaintexts by their ciphertexts.
func decryptAll(_ *stack, request *http.Request) (int, any) {
	var wanted struct {
		Ciphertexts [][]byte `json:"ciphertexts"`
	}
	if err := read(request, &wanted); err != nil {
		return badRequest(err)
	}
	plaintexts := map[string][]byte{}
	for _, ciphertext := range wanted.Ciphertexts {
		plaintext, err := unseal(ciphertext)
		if err != nil {
			return badRequest(err)
		}
		plaintexts[base64.StdEncoding.EncodeToString(ciphertext)] = plaintext
	}
	return http.StatusOK, map[string]any{"plaintexts": plaintexts}
}
