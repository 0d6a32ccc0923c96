package flux_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// comment is a comment of a pull request.
type comment struct {
	ID   int64             `json:"id"`
	Body string            `json:"body"`
	User map[string]string `json:"user"`
}

// pullRequest serves pull request 42 with its comments, as Gitea does.
type pullRequest struct {
	*httptest.Server
	mu       sync.Mutex
	comments []*comment
	requests []string
}

func openPullRequest(t *testing.T) *pullRequest {
	t.Helper()
	p := &pullRequest{}
	const path = "/api/v1/repos/acme/infrastructure/issues"
	routes := http.NewServeMux()
	handle := func(pattern string, answer func(request *http.Request, body string) any) {
		routes.HandleFunc(pattern, func(response http.ResponseWriter, request *http.Request) {
			body := comment{}
			_ = json.NewDecoder(io.LimitReader(request.Body, maxBody)).Decode(&body) // a body that is not JSON has no text
			p.mu.Lock()
			defer p.mu.Unlock()
			p.requests = append(p.requests, request.Method+" "+request.URL.Path)
			response.Header().Set("Content-Type", "application/json")
			if request.Method == http.MethodPost {
				response.WriteHeader(http.StatusCreated)
			}
			_ = json.NewEncoder(response).Encode(answer(request, body.Body)) // a client that has closed the connection needs no answer
		})
	}
	user := map[string]string{"login": "flux"}
	handle("GET /api/v1/version", func(*http.Request, string) any { return map[string]string{"version": "1.24.0"} })
	handle("GET /api/v1/user", func(*http.Request, string) any { return user })
	handle("GET "+path+"/42/comments", func(*http.Request, string) any { return p.comments })
	handle("POST "+path+"/42/comments", func(_ *http.Request, body string) any {
		p.comments = append(p.comments, &comment{ID: int64(len(p.comments)) + 1, Body: body, User: user})
		return p.comments[len(p.comments)-1]
	})
	handle("PATCH "+path+"/comments/{id}", func(request *http.Request, body string) any {
		id, err := strconv.Atoi(request.PathValue("id"))
		if err != nil || id < 1 || id > len(p.comments) {
			return nil
		}
		p.comments[id-1].Body = body
		return p.comments[id-1]
	})
	p.Server = httptest.NewServer(routes)
	t.Cleanup(p.Close)
	return p
}

// texts returns the texts of the comments.
func (p *pullRequest) texts() (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, comment := range p.comments {
		texts = append(texts, comment.Body)
	}
	return texts
}

// stashes returns a program with resources of the names, which need no provider.
func stashes(project string, names ...string) gitserver.Files {
	lines := []string{"resources:"}
	for _, name := range names {
		lines = append(lines, "  "+name+": {type: 'pulumi:index:Stash', properties: {input: "+name+"}}")
	}
	return systemtest.Program(project, lines...)
}

// TestPullRequestShowsWhatItWouldChange applies the manifests of the guide, with another repository and backend.
func TestPullRequestShowsWhatItWouldChange(t *testing.T) {
	p := begin(t, "reviewed")
	end := openPullRequest(t)
	repository, _, err := system.Git.Create(p.Name, stashes(p.Name, "logs"))
	p.Succeed(err)
	const branch = "deployed" // stays at its commit, while main, the branch of the pull request, gets commits
	p.Succeed(repository.NewBranch(branch))
	main := system.NewStack(p.Name, p.Name, "")
	main.Spec.FluxSource, main.Spec.ProjectRepo, main.Spec.Branch = nil, repository.URL, branch
	p.Create(main, p.Secret("git-token", map[string]string{"token": gitToken}))
	p.Await(statuscheck.Ready(""))
	state := p.State(p.Name, "dev")
	_, err = repository.Commit(stashes(p.Name, "logs", "audit"))
	p.Succeed(err)

	manifests, _ := p.guide("pull-requests.md", strings.NewReplacer("namespace: default", "namespace: "+p.Name,
		"https://git.example.com/acme/infrastructure\n  ref", repository.URL+"\n  ref", "branch: pull-request-42", "branch: "+gitserver.Branch,
		"https://git.example.com/acme/infrastructure\n  secretRef", end.URL+"/acme/infrastructure\n  secretRef",
		"  annotations:\n    event", "  labels: {example.com/preview: \"true\"}\n  annotations:\n    event",
		"acme/network/prod", "dev\n  backend: "+system.BackendURL,
		"PULUMI_ACCESS_TOKEN", "PULUMI_CONFIG_PASSPHRASE", "pulumi-preview", "pulumi", "accessToken", "passphrase"))
	p.Expect(manifests).To(HaveLen(2))
	p.apply(manifests[1])
	p.apply(manifests[0])
	const preview = "network-pr-42"
	p.AwaitStack(preview, statuscheck.Ready(""))
	// notification-controller sets no status of an Alert, and may not have seen this one yet.
	p.Eventually(func() []string {
		p.RequestStack(preview)
		return end.texts()
	}, p.Patience, "1s").Should(ConsistOf(And(ContainSubstring("preview succeeded: 1 create, "), ContainSubstring("\n- create pulumi:index:Stash audit"))))

	sha, err := repository.Commit(stashes(p.Name, "audit", "more"))
	p.Succeed(err)
	p.annotate(gitRepositories, preview, map[string]string{"reconcile.fluxcd.io/requestedAt": sha})
	p.Eventually(end.texts).Should(ConsistOf(And(ContainSubstring(sha), ContainSubstring("- create pulumi:index:Stash more"),
		ContainSubstring("- delete pulumi:index:Stash logs"))), "the comment is edited")

	stack := &pulumiv1.Stack{ObjectMeta: p.Meta(preview)}
	p.Succeed(system.Client.Delete(p.Context(), stack))
	p.AwaitAbsent(preview, stack)
	p.Expect(p.State(p.Name, "dev")).To(Equal(state), "a preview changes nothing")
}
