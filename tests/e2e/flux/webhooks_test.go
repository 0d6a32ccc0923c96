package flux_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gstruct"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	webhookToken = "webhook-token-52f1"
	push         = `{"ref": "refs/heads/main"}`
)

// webhookTypes set the headers with which each type of git server authenticates itself.
var webhookTypes = map[string]func(header http.Header, token, body string){
	"github": func(header http.Header, token, body string) {
		header.Set("X-GitHub-Event", "push")
		header.Set("X-Hub-Signature-256", signature(token, body))
	},
	"gitlab": func(header http.Header, token, _ string) {
		header.Set("X-Gitlab-Event", "Push Hook")
		header.Set("X-Gitlab-Token", token)
	},
	"generic-hmac": func(header http.Header, token, body string) { header.Set("X-Signature", signature(token, body)) },
}

func signature(token, body string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// call calls the webhook of the Receiver as a git server does after a push, and returns the status code.
func (p *fixture) call(receiver, kind, token string) int {
	p.Helper()
	path, _, err := unstructured.NestedString(p.await(receivers, receiver, status.CurrentStatus).Object, "status", "webhookPath")
	p.Succeed(err)
	request, err := http.NewRequestWithContext(p.Context(), http.MethodPost, system.ControlPlane.ReceiverURL+path, strings.NewReader(push))
	p.Succeed(err)
	request.Header.Set("Content-Type", "application/json")
	webhookTypes[kind](request.Header, token, push)
	response, err := http.DefaultClient.Do(request)
	p.Succeed(err)
	p.Succeed(response.Body.Close())
	return response.StatusCode
}

// deployed matches a Stack that is Ready with the commit.
func deployed(sha string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && strings.HasSuffix(stack.Status.LastAppliedRevision, sha)
	}
}

func TestPushIsDeployedByTheWebhookOfEachKindOfGitServer(t *testing.T) {
	p := begin(t, "pushed")
	repository := p.repository(p.Name, systemtest.Returning(p.Name, 0))
	p.Create(p.Secret("webhook-token", map[string]string{"token": webhookToken}), system.NewStack(p.Name, p.Name, sourcev1.GitRepositoryKind))
	for kind := range webhookTypes {
		p.apply(strings.ReplaceAll(`
apiVersion: notification.toolkit.fluxcd.io/v1
kind: Receiver
metadata: {name: KIND}
spec:
  type: KIND
  secretRef: {name: webhook-token}
  resources: [{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, name: pushed}]
`, "KIND", kind))
	}
	p.Await(statuscheck.Ready(""))
	for kind := range webhookTypes {
		p.Expect(p.call(kind, kind, "another token")).To(Equal(http.StatusBadRequest), kind)
		pushed := time.Now()
		sha, err := repository.Commit(systemtest.Returning(p.Name, `"`+kind+`"`))
		p.Succeed(err)
		p.Expect(p.call(kind, kind, webhookToken)).To(Equal(http.StatusOK), kind)
		p.Expect(systemtest.Output(p.Await(deployed(sha)), "x")).To(Equal(`"` + kind + `"`))
		p.Logf("%s: from the push to succeeded in %.1f s", kind, time.Since(pushed).Seconds())
	}
	p.Expect(p.Updates()).To(HaveLen(1+len(webhookTypes)), "a call without the right token asks for nothing")
}

// TestGuideOfWebhooksDeploysAPushInEachOfItsWays runs the manifests and commands of the guide, with another repository and backend.
func TestGuideOfWebhooksDeploysAPushInEachOfItsWays(t *testing.T) {
	p := begin(t, "guided")
	program := func(value int) gitserver.Files {
		return gitserver.Files{"api-gateway/Pulumi.yaml": systemtest.Returning("api-gateway", value)["Pulumi.yaml"]}
	}
	repository, sha, err := system.Git.Create(p.Name, program(0))
	p.Succeed(err)
	manifests, commands := p.guide("webhooks.md", strings.NewReplacer(
		"https://github.com/TechResolve/prod-infra.git", repository.URL,
		"namespace: default", "namespace: "+p.Name, "namespace=default", "namespace="+p.Name,
		"  stack: TechResolve/api-gateway/prod\n", "  stack: organization/api-gateway/prod\n  backend: "+system.BackendURL+`
  envRefs: {PULUMI_CONFIG_PASSPHRASE: {type: Secret, secret: {name: pulumi, key: passphrase}}}
`, `"5m" #`, `"1h" #`))
	p.Expect(manifests).To(HaveLen(3))
	p.Expect(commands).To(HaveLen(4))
	const name = "prod-api-gateway"
	p.apply(manifests[0])
	p.AwaitStack(name, deployed(sha))

	next := func(value int) string {
		sha, err := repository.Commit(program(value))
		p.Succeed(err)
		return sha
	}
	sha = next(1)
	p.shell(commands[0])
	p.AwaitStack(name, deployed(sha))

	p.shell(commands[2])
	secret := p.Secret("webhook-token", nil)
	p.Get("webhook-token", secret)
	p.apply(manifests[1])
	p.apply(manifests[2])
	p.await(receivers, "prod-infra", status.CurrentStatus)
	p.Expect(p.shell(commands[3])).To(HavePrefix("/hook/"))
	p.Expect(p.call("prod-infra", "github", string(secret.Data["token"]))).To(Equal(http.StatusOK))
	p.shell(commands[1])
	p.await(gitRepositories, "prod-infra", status.CurrentStatus)

	sha = next(2)
	pushed := time.Now()
	p.Expect(p.call(name, "generic-hmac", string(secret.Data["token"]))).To(Equal(http.StatusOK))
	p.AwaitStack(name, deployed(sha))
	p.Logf("a Receiver that names the Stack: from the push to succeeded in %.1f s", time.Since(pushed).Seconds())
	p.Expect(p.Updates()).To(HaveLen(3))
}

// TestResyncFrequencyDeploysAPushThatNobodyAnnounces waits for the shortest interval that is allowed.
func TestResyncFrequencyDeploysAPushThatNobodyAnnounces(t *testing.T) {
	p := begin(t, "polled")
	p.Patience = 90 * time.Second
	repository, sha, err := system.Git.Create(p.Name, systemtest.Returning(p.Name, 0))
	p.Succeed(err)
	stack := system.NewStack(p.Name, p.Name, "")
	stack.Spec.FluxSource, stack.Spec.ProjectRepo, stack.Spec.Branch = nil, repository.URL, gitserver.Branch
	stack.Spec.ResyncFrequency = &metav1.Duration{Duration: time.Minute}
	p.Create(stack)
	p.Await(deployed(sha))
	sha, err = repository.Commit(systemtest.Returning(p.Name, 1))
	p.Succeed(err)
	p.Await(deployed(sha))
	p.Expect(p.Updates()).To(HaveLen(2))
}

var block = regexp.MustCompile("(?ms)^ *```(ya?ml|sh)\n(.*?)^ *```$")

// document returns a page of the documentation.
func (p *fixture) document(name string) string {
	p.Helper()
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", filepath.FromSlash(name)))
	p.Succeed(err)
	return string(content)
}

// guide returns the manifests and the commands of a guide, after replacements.
func (p *fixture) guide(name string, replace *strings.Replacer) (manifests, commands []string) {
	p.Helper()
	for _, match := range block.FindAllStringSubmatch(p.document("guides/"+name), -1) {
		if text := replace.Replace(match[2]); match[1] == "sh" {
			commands = append(commands, text)
		} else {
			manifests = append(manifests, text)
		}
	}
	return manifests, commands
}

// shell runs the commands that a reader would type, with the namespace of the fixture as the default.
func (p *fixture) shell(command string) string {
	p.Helper()
	kubectl, err := tools.Path(p.Context(), "kubectl", nil)
	p.Succeed(err)
	function := `kubectl() { "` + kubectl + `" --namespace=` + p.Name + ` "$@"; }` + "\n"
	cmd := exec.CommandContext(p.Context(), "sh", "-euc", function+command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+system.ControlPlane.KubeconfigPath, "KUBECACHEDIR="+filepath.Join(system.Dir, "kubectl"))
	output, err := cmd.CombinedOutput()
	p.Expect(err).NotTo(HaveOccurred(), "%s\n%s", command, output)
	return string(output)
}

// maxBody bounds how much the servers of the tests read, in bytes.
const maxBody = 1 << 20

// commitStatus is the status of a commit that a git server receives.
type commitStatus struct{ State, Description, Context string }

// messenger receives what notification-controller sends: events for a webhook of the type generic, chat messages, and statuses of commits
// for Gitea.
type messenger struct {
	*httptest.Server
	mu       sync.Mutex
	events   []eventv1.Event
	chat     []string
	statuses map[string][]commitStatus // by commit
	problems []string
}

func receive(t *testing.T) *messenger {
	t.Helper()
	m := &messenger{statuses: map[string][]commitStatus{}}
	m.Server = httptest.NewServer(m.routes())
	t.Cleanup(m.Close)
	return m
}

const gitToken = "git-token-9c40"

func (m *messenger) routes() *http.ServeMux {
	routes := http.NewServeMux()
	handle := func(pattern string, take func(request *http.Request, body []byte) (answer any, err error)) {
		routes.HandleFunc(pattern, func(response http.ResponseWriter, request *http.Request) {
			m.mu.Lock()
			defer m.mu.Unlock()
			body, err := io.ReadAll(io.LimitReader(request.Body, maxBody))
			var answer any
			if err == nil {
				answer, err = take(request, body)
			}
			if err != nil {
				m.problems = append(m.problems, request.URL.Path+": "+err.Error())
			}
			response.Header().Set("Content-Type", "application/json")
			if request.Method == http.MethodPost && strings.Contains(pattern, "statuses") {
				response.WriteHeader(http.StatusCreated)
			}
			_ = json.NewEncoder(response).Encode(answer) // a client that has closed the connection needs no answer
		})
	}
	handle("POST /webhook", func(_ *http.Request, body []byte) (any, error) {
		var event eventv1.Event
		err := json.Unmarshal(body, &event)
		m.events = append(m.events, event)
		return nil, err
	})
	handle("POST /chat", func(_ *http.Request, body []byte) (any, error) {
		m.chat = append(m.chat, string(body))
		return nil, nil
	})
	handle("GET /api/v1/version", func(*http.Request, []byte) (any, error) { return map[string]string{"version": "1.24.0"}, nil })
	handle("GET /api/v1/repos/acme/alerted/commits/{sha}/statuses", func(*http.Request, []byte) (any, error) { return []any{}, nil })
	handle("POST /api/v1/repos/acme/alerted/statuses/{sha}", func(request *http.Request, body []byte) (any, error) {
		var status commitStatus
		if authorization := request.Header.Get("Authorization"); authorization != "token "+gitToken {
			m.problems = append(m.problems, "the token is "+authorization)
		}
		err := json.Unmarshal(body, &status)
		m.statuses[request.PathValue("sha")] = append(m.statuses[request.PathValue("sha")], status)
		return status, err
	})
	routes.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.problems = append(m.problems, "unexpected "+request.Method+" "+request.URL.Path)
		http.NotFound(response, request)
	})
	return routes
}

// seen returns the events with the reason and the revision of the commit.
func (m *messenger) seen(reason, sha string) []eventv1.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []eventv1.Event
	for _, event := range m.events {
		if event.Reason == reason && strings.HasSuffix(event.Metadata["revision"], sha) {
			found = append(found, event)
		}
	}
	return found
}

func (m *messenger) states(sha string) (states []commitStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(states, m.statuses[sha]...)
}

func (m *messenger) messages() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.chat, "\n")
}

// webhookAlert has a Provider and an Alert for a webhook, in addition to those of the guide.
const webhookAlert = `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {name: webhook}
spec: {type: generic, address: MESSENGER/webhook}
---
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: webhook}
spec:
  providerRef: {name: webhook}
  eventSeverity: info
  eventMetadata: {summary: all of it}
  eventSources: [{kind: Stack, name: alerted}]
`

func TestAlertsNotifyWebhooksChatsAndGitServersOfEachUpdate(t *testing.T) {
	p := begin(t, "alerted")
	end := receive(t)
	manifests, _ := p.guide("alerts.md", strings.NewReplacer("namespace: default", "namespace: "+p.Name,
		"https://hooks.example.com/services/T0/B0/secret", end.URL+"/chat",
		"https://git.example.com/acme/infrastructure", end.URL+"/acme/alerted", "eventSeverity: error", "eventSeverity: info"))
	p.Expect(manifests).To(HaveLen(2))
	p.Create(p.Secret("git-token", map[string]string{"token": gitToken}))
	for _, manifest := range append(manifests, strings.ReplaceAll(webhookAlert, "MESSENGER", end.URL)) {
		p.apply(manifest)
	}
	repository := p.repository(p.Name, systemtest.Returning(p.Name, 0))
	stack := system.NewStack(p.Name, p.Name, sourcev1.GitRepositoryKind)
	p.Create(stack)
	p.Await(statuscheck.Ready(""))
	// notification-controller sets no status of an Alert. It uses the Alerts as soon as it forwards a message.
	p.Eventually(func() string {
		p.Request()
		return end.messages()
	}, p.Patience, "1s").Should(ContainSubstring("up succeeded"))
	p.Await(statuscheck.Ready(""))

	good := p.commit(repository, p.Name, systemtest.Returning(p.Name, 1))
	p.Await(deployed(good))
	p.Eventually(func() []eventv1.Event { return end.seen("StackCreated", good) }).Should(HaveLen(1))
	started, succeeded := end.seen("StackUpdateDetected", good)[0], end.seen("StackCreated", good)[0]
	p.Expect(started.Message).To(HavePrefix("New commit detected: main@sha1:" + good))
	p.Expect(started.Severity).To(Equal(eventv1.EventSeverityInfo))
	p.Expect(succeeded.Message).To(And(HavePrefix("up succeeded: "), HaveSuffix("revision main@sha1:"+good)))
	p.Expect(succeeded.InvolvedObject.Kind + "/" + succeeded.InvolvedObject.Name).To(Equal("Stack/" + p.Name))
	p.Expect(succeeded.Metadata).To(gstruct.MatchKeys(gstruct.IgnoreExtras, gstruct.Keys{
		"revision": Equal("main@sha1:" + good), "commit": Equal("sha1:" + good), "summary": Equal("all of it"),
	}))
	p.Eventually(func() []commitStatus { return end.states(good) }).Should(HaveLen(1), "an update that starts has none")
	p.Expect(end.states(good)[0]).To(And(HaveField("State", "success"), HaveField("Description", "stack created")))
	p.Eventually(end.messages).Should(ContainSubstring(succeeded.Message))
	p.Expect(p.logged("StackCreated", "info")).To(ContainElement(SatisfyAll(HaveKeyWithValue("msg", succeeded.Message),
		HaveKeyWithValue("revision", "main@sha1:"+good), HaveKeyWithValue("token", HaveLen(36)))))

	bad := p.commit(repository, p.Name, systemtest.Program(p.Name, "outputs:", "  x: ${missing}"))
	p.Await(statuscheck.NotReady(pulumiv1.RetryingAfterFailureReason))
	p.Eventually(func() []eventv1.Event { return end.seen("StackUpdateFailure", bad) }).ShouldNot(BeEmpty())
	failed := end.seen("StackUpdateFailure", bad)[0]
	p.Expect(failed.Severity).To(Equal(eventv1.EventSeverityError))
	p.Expect(failed.Message).To(And(HavePrefix("up failed: "), ContainSubstring("missing")))
	p.Eventually(func() []commitStatus { return end.states(bad) }).Should(ContainElement(HaveField("State", "failure")))
	p.Eventually(end.messages).Should(ContainSubstring("up failed: "))
	p.Expect(p.logged("StackUpdateFailure", "error")).To(ContainElement(HaveKeyWithValue("msg", failed.Message)))
	end.mu.Lock()
	defer end.mu.Unlock()
	p.Expect(end.problems).To(BeEmpty())
}

// logged returns the log lines about the Stack of the fixture with the reason.
func (p *fixture) logged(reason, level string) (lines []map[string]any) {
	p.Helper()
	content, err := os.ReadFile(system.ControllerLog())
	p.Succeed(err)
	for text := range strings.Lines(string(content)) {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) == nil && line["name"] == p.Name && line["controllerKind"] == "Stack" && line["reason"] == reason {
			p.Expect(line).To(And(HaveKeyWithValue("level", level), HaveKeyWithValue("namespace", p.Name)))
			lines = append(lines, line)
		}
	}
	return lines
}
