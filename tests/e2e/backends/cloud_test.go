package backends_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

const (
	// accessToken is a valid access token of Pulumi Cloud.
	accessToken = "pul-" + credentialCanary
	// console is the host on which Pulumi Cloud would show its pages.
	console = "app.pulumi.test"
	// consoleDomain is the environment variable with that host.
	consoleDomain = "PULUMI_CONSOLE_DOMAIN"
)

// pulumiCloud starts a stand-in for Pulumi Cloud, which runs until the test ends.
func pulumiCloud(t *testing.T) (*cloud.Server, backend) {
	service := cloud.New(accessToken)
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	t.Cleanup(func() {
		if unknown := service.Unknown(); len(unknown) > 0 {
			t.Logf("Pulumi Cloud does not know %v", unknown)
		}
	})
	login := func(token string) variables {
		return variables{"PULUMI_ACCESS_TOKEN": token, consoleDomain: console}
	}
	return service, backend{
		url: server.URL, env: login(accessToken), wrong: login(credentialCanary), says: "No credentials provided or are invalid",
	}
}

func TestStackLivesInPulumiCloud(t *testing.T) {
	_, there := pulumiCloud(t)
	there.live(t, "cloud")
}

// kubectl shows the permalink of an update in a column, as in the walkthrough of the Pulumi Kubernetes Operator.
func TestColumnsShowThePageOfThePulumiCloudAndTheAge(t *testing.T) {
	t.Parallel()
	const name = "cloud-page"
	service, there := pulumiCloud(t)
	a := deploy(t, name, there.url, there.env, func(stack *pulumiv1.Stack) {
		// A value from a Secret would be masked in the permalink.
		stack.Spec.EnvRefs[consoleDomain] = pulumiv1.ResourceRef{Type: pulumiv1.ResourceRefLiteral, LiteralRef: &pulumiv1.LiteralRef{Value: console}}
	})
	first := a.Await(systemtest.Showing("1"))
	page := "http://" + console + "/" + cloud.User + "/" + name + "/dev/updates/"
	a.Expect(first.Status.LastUpdate.Permalink).To(Equal(page + "1"))
	a.Expect(a.row("update", first.Status.LastUpdate.Name)).To(HaveKeyWithValue("URL", page+"1"))

	a.push(program(name, "2"))
	second := a.Await(systemtest.Showing("2"))
	row := a.row("stack", name)
	a.Expect(row).To(HaveKeyWithValue("PERMALINK", page+"2"))
	a.Expect(row).To(HaveKeyWithValue("AGE", MatchRegexp(`^\d+[smh]`)))
	a.Expect(a.row("update", second.Status.LastUpdate.Name)).To(HaveKeyWithValue("URL", page+"2"))

	// A failed update also has a permalink: that is where people look first.
	a.push(program(name, "${missing}"))
	failed := a.Await(func(stack *pulumiv1.Stack) bool {
		return stack.Status.LastUpdate != nil && stack.Status.LastUpdate.State == pulumiv1.StackUpdateFailed
	})
	a.Expect(failed.Status.LastUpdate.Permalink).To(HavePrefix(page))
	stack := strings.Join([]string{cloud.User, name, "dev"}, "/")
	a.Expect(service.Updates(stack)[:3]).To(Equal([]cloud.Update{
		{Kind: "update", Status: "succeeded"}, {Kind: "update", Status: "succeeded"}, {Kind: "update", Status: "failed"},
	}))

	a.push(program(name, "3"))
	a.Await(systemtest.Showing("3"))
	a.remove()
	ended := service.Updates(stack)
	a.Expect(ended[len(ended)-1]).To(Equal(cloud.Update{Kind: "destroy", Status: "succeeded"}))
}

// columnGap separates the columns of kubectl's tables; a header may have single spaces in it.
var columnGap = regexp.MustCompile(` {2,}`)

// row returns what kubectl shows of an object, by column.
func (a *app) row(kind, name string) map[string]string {
	a.Helper()
	printed, err := system.ControlPlane.Kubectl(a.Context(), "get", kind, name, "--namespace="+a.Fixture.Name)
	a.Succeed(err)
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	a.Expect(lines).To(HaveLen(2), printed)
	row := map[string]string{}
	columns := columnGap.Split(strings.TrimSpace(lines[0]), -1)
	for i, column := range columns {
		start, end := strings.Index(lines[0], column), len(lines[1])
		if i+1 < len(columns) {
			end = min(end, strings.Index(lines[0], columns[i+1]))
		}
		if start < end {
			row[column] = strings.TrimSpace(lines[1][start:end])
		}
	}
	return row
}

// refusingServer answers every request with the status and the headers, like a service that denies access.
func refusingServer(t *testing.T, status int, headers http.Header) (address string) {
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		maps.Copy(response.Header(), headers)
		response.WriteHeader(status)
		_ = json.NewEncoder(response).Encode(map[string]any{"code": status, "message": http.StatusText(status)})
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// busyCloud implements as much of Pulumi Cloud's protocol as is needed by an update that is refused because another update is running.
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
