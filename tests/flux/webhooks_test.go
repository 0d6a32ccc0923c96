package flux_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	webhookToken = "webhook-token-52f1"
	push         = `{"ref": "refs/heads/main"}`
)

// webhookTypes are the headers with which git servers prove who they are.
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

// call calls the webhook of the Receiver as a git server does after a push, and returns the status of the answer.
func (p *play) call(receiver, kind, token string) int {
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

// deployed is a Stack that is Ready with the commit.
func deployed(sha string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && strings.HasSuffix(stack.Status.LastAppliedRevision, sha)
	}
}

func TestPushIsDeployedByTheWebhookOfEachKindOfGitServer(t *testing.T) {
	p := begin(t, "pushed")
	repository := p.repository(p.Name, scene.Returning(p.Name, 0))
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
		sha, err := repository.Commit(scene.Returning(p.Name, `"`+kind+`"`))
		p.Succeed(err)
		p.Expect(p.call(kind, kind, webhookToken)).To(Equal(http.StatusOK), kind)
		p.Expect(scene.Output(p.Await(deployed(sha)), "x")).To(Equal(`"` + kind + `"`))
		p.Logf("%s: from the push to succeeded in %.1f s", kind, time.Since(pushed).Seconds())
	}
	p.Expect(p.Updates()).To(HaveLen(1+len(webhookTypes)), "a call without the right token asks for nothing")
}

// TestGuideOfWebhooksDeploysAPushInEachOfItsWays runs what is written in the guide, with another repository and backend.
func TestGuideOfWebhooksDeploysAPushInEachOfItsWays(t *testing.T) {
	p := begin(t, "guided")
	program := func(value int) gitserver.Files {
		return gitserver.Files{"api-gateway/Pulumi.yaml": scene.Returning("api-gateway", value)["Pulumi.yaml"]}
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

// TestResyncFrequencyDeploysAPushThatNobodyAnnounces waits for the shortest interval that there is.
func TestResyncFrequencyDeploysAPushThatNobodyAnnounces(t *testing.T) {
	p := begin(t, "polled")
	p.Patience = 90 * time.Second
	repository, sha, err := system.Git.Create(p.Name, scene.Returning(p.Name, 0))
	p.Succeed(err)
	stack := system.NewStack(p.Name, p.Name, "")
	stack.Spec.FluxSource, stack.Spec.ProjectRepo, stack.Spec.Branch = nil, repository.URL, gitserver.Branch
	stack.Spec.ResyncFrequency = &metav1.Duration{Duration: time.Minute}
	p.Create(stack)
	p.Await(deployed(sha))
	sha, err = repository.Commit(scene.Returning(p.Name, 1))
	p.Succeed(err)
	p.Await(deployed(sha))
	p.Expect(p.Updates()).To(HaveLen(2))
}

var block = regexp.MustCompile("(?ms)^ *```(ya?ml|sh)\n(.*?)^ *```$")

// guide returns the manifests and the commands of a guide, with replacements.
func (p *play) guide(name string, replace *strings.Replacer) (manifests, commands []string) {
	p.Helper()
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", name))
	p.Succeed(err)
	for _, match := range block.FindAllStringSubmatch(string(content), -1) {
		if text := replace.Replace(match[2]); match[1] == "sh" {
			commands = append(commands, text)
		} else {
			manifests = append(manifests, text)
		}
	}
	return manifests, commands
}

// shell runs what a reader types, with the namespace of the scene as the default one.
func (p *play) shell(command string) string {
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
