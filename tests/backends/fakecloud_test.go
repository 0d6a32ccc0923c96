package backends_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// refusingServer answers every request with the status and the headers, as a service does that does not let one in.
func refusingServer(t *testing.T, status int, headers http.Header) (address string) {
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		for name, values := range headers {
			response.Header()[name] = values
		}
		response.WriteHeader(status)
		_ = json.NewEncoder(response).Encode(map[string]any{"code": status, "message": http.StatusText(status)})
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// busyCloud speaks as much of Pulumi Cloud's protocol as an update needs that is refused because another one is under way.
func busyCloud(t *testing.T) (url string) {
	answer := func(response http.ResponseWriter, status int, content any) {
		response.Header().Set("Content-Type", "application/json")
		response.WriteHeader(status)
		_ = json.NewEncoder(response).Encode(content)
	}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		switch path := request.URL.Path; {
		case path == "/api/user":
			answer(response, http.StatusOK, map[string]any{"githubLogin": "acme", "name": "acme", "organizations": []any{}})
		case request.Method == http.MethodPost && strings.HasPrefix(path, "/api/stacks/") && strings.HasSuffix(path, "/update"):
			answer(response, http.StatusConflict, map[string]any{
				"code": http.StatusConflict, "message": "Conflict: Another update is currently in progress.",
			})
		case request.Method == http.MethodPost && strings.HasSuffix(path, "encrypt"):
			answer(response, http.StatusOK, map[string]any{"ciphertext": "AAAA", "ciphertexts": []string{"AAAA"}})
		case request.Method == http.MethodGet && strings.HasSuffix(path, "/export"):
			answer(response, http.StatusOK, map[string]any{"version": 3, "deployment": map[string]any{}})
		case request.Method == http.MethodGet && strings.HasPrefix(path, "/api/stacks/"):
			parts := strings.Split(path, "/")
			answer(response, http.StatusOK, map[string]any{
				"orgName": parts[3], "projectName": parts[len(parts)-2], "stackName": parts[len(parts)-1], "version": 1, "activeUpdate": "",
			})
		default:
			t.Logf("Pulumi Cloud was asked for %s %s", request.Method, path)
			answer(response, http.StatusNotFound, map[string]any{"code": http.StatusNotFound, "message": "Not Found"})
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}
