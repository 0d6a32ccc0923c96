package flux_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// bootstrapped has the objects that "flux bootstrap" applies.
const bootstrapped = `
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: flux-system}
spec: {interval: 1h, url: URL/fleet, ref: {branch: main}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: flux-system}
spec:
  interval: 1h
  path: ./clusters/production
  prune: true
  sourceRef: {kind: GitRepository, name: flux-system}
`

// fleet returns the files of the example, and those of its tenant. Only the variables differ from the example.
func (p *fixture) fleet(alerts string) (files, tenant gitserver.Files) {
	p.Helper()
	all, err := gitserver.FilesFromDir(filepath.Join(tools.RepositoryRoot(), "docs", "examples", "fleet"))
	p.Succeed(err)
	files, tenant = gitserver.Files{}, gitserver.Files{}
	for name, content := range all {
		if inside, isTenants := strings.CutPrefix(name, "team-a/"); isTenants {
			tenant[inside] = content
		} else {
			files[name] = content
		}
	}
	const variables = "clusters/production/variables.yaml"
	files[variables] = strings.NewReplacer("s3://acme-pulumi-state", system.BackendURL, "https://github.com/acme", strings.TrimSuffix(system.Git.URL(""), "/"),
		"https://hooks.example.com/infrastructure", alerts).Replace(files[variables])
	return files, tenant
}

func TestFleetRepositoryIsAppliedAndACommitRollsThroughIt(t *testing.T) {
	t.Parallel()
	inNamespace := func(name string) *fixture { return &fixture{systemtest.New(t, system, name, systemtest.Patience)} }
	p, platform, team := inNamespace(localsystem.Namespace), inNamespace("platform"), inNamespace("team-a")
	end := receive(t)
	files, tenant := p.fleet(end.URL + "/webhook")
	repository, _, err := system.Git.Create("fleet", files)
	p.Succeed(err)
	_, _, err = system.Git.Create("team-a", tenant)
	p.Succeed(err)
	p.apply(bootstrapped)
	for _, place := range []*fixture{platform, team} {
		p.Eventually(func() error {
			return system.Client.Get(p.Context(), client.ObjectKey{Name: place.Name}, &corev1.Namespace{})
		}).Should(Succeed(), "it comes from the repository")
	}
	_, commands := p.guide("../examples/fleet/README.md", strings.NewReplacer("$PASSPHRASE", passphraseCanary, "$TEAM_A_PASSPHRASE", passphraseCanary,
		"$WEBHOOK_TOKEN", webhookToken))
	p.Expect(commands).To(HaveLen(1))
	p.shell(commands[0])
	for _, name := range []string{"flux-system", "infrastructure", "apps", "notifications", "tenants"} {
		p.await(kustomizations, name, status.CurrentStatus)
	}
	team.await(kustomizations, "team-a", status.CurrentStatus)
	p.Expect(systemtest.Output(team.stack("website"), "page")).To(Equal(`"https://example.com/production"`))
	shop := platform.stack("shop")
	p.Expect(statuscheck.Ready("")(shop)).To(BeTrue(), "the Kustomization waited for it")
	p.Expect(systemtest.Output(shop, "network")).To(Equal(`"10.0.0.0/16"`))

	// The first commit changes both programs.
	edited := gitserver.Files{
		"programs/network/Pulumi.yaml": strings.Replace(files["programs/network/Pulumi.yaml"], "10.0.0.0/16", "10.1.0.0/16", 1),
		"programs/shop/Pulumi.yaml":    strings.Replace(files["programs/shop/Pulumi.yaml"], "version: 1", "version: 2", 1),
	}
	sha, err := repository.Commit(edited)
	p.Succeed(err)
	pushed := time.Now()
	p.Expect(p.call("fleet", "github", webhookToken)).To(Equal(http.StatusOK))
	platform.AwaitStack("network", deployed(sha))
	shop = platform.AwaitStack("shop", deployed(sha))
	p.Logf("from the push to the end of the Stack that depends on another in %.1f s", time.Since(pushed).Seconds())
	p.Expect(systemtest.Output(shop, "network")).To(Equal(`"10.1.0.0/16"`), "it was updated after the other one")
	p.Expect(systemtest.Output(shop, "version")).To(Equal("2"))
	for _, name := range []string{"network", "shop"} {
		p.Eventually(func() bool {
			return slices.ContainsFunc(end.seen("StackCreated", sha), func(event eventv1.Event) bool {
				return event.InvolvedObject.Name == name && event.Metadata["cluster"] == "production"
			})
		}).Should(BeTrue(), "no alert about "+name)
	}

	rollout := &autov1alpha1.StackRollout{}
	platform.Eventually(func(g Gomega) {
		platform.Get("programs", rollout)
		g.Expect(conditions.IsTrue(rollout, autov1alpha1.RolloutComplete)).To(BeTrue())
		g.Expect(rollout.Status.Target.Revision).To(HaveSuffix(sha))
		g.Expect(rollout.Status.Waves).To(HaveExactElements(And(HaveField("Name", "infrastructure"), HaveField("Updated", BeEquivalentTo(1))),
			And(HaveField("Name", "applications"), HaveField("Updated", BeEquivalentTo(1)))))
	}).Should(Succeed())

	// The second commit changes no program.
	ran := len(platform.Updates())
	sha, err = repository.Commit(gitserver.Files{"README.md": "other"})
	p.Succeed(err)
	p.Expect(p.call("fleet", "github", webhookToken)).To(Equal(http.StatusOK))
	platform.AwaitStack("shop", deployed(sha))
	p.Expect(platform.Updates()).To(HaveLen(ran))

	p.tenantStaysInItsNamespace(team)
	p.removeApps(repository, platform)
}

// tenantStaysInItsNamespace checks what the role of the tenant's ServiceAccount allows and does not allow.
func (p *fixture) tenantStaysInItsNamespace(team *fixture) {
	p.Helper()
	for object, want := range map[string]string{
		"stacks.pulumi.com --namespace=team-a": "yes", "stacks.pulumi.com --namespace=platform": "no", "secrets --namespace=team-a": "no",
	} {
		args := append([]string{"auth", "can-i", "create", "--as=system:serviceaccount:team-a:team-a"}, strings.Fields(object)...)
		answer, _ := system.ControlPlane.Kubectl(team.Context(), args...) // "no" is an exit code, too
		p.Expect(strings.TrimSpace(answer)).To(Equal(want), object)
	}
}

// removeApps removes the applications from the cluster with a commit.
func (p *fixture) removeApps(repository *gitserver.Repository, platform *fixture) {
	p.Helper()
	_, err := repository.Remove("clusters/production/apps.yaml")
	p.Succeed(err)
	p.Expect(p.call("fleet", "github", webhookToken)).To(Equal(http.StatusOK))
	platform.AwaitAbsent("shop", &pulumiv1.Stack{})
	p.Expect(statuscheck.Ready("")(platform.stack("network"))).To(BeTrue())
	p.Expect(platform.HasState("shop", "production")).To(BeTrue(), "the stack is empty, and its history stays")
}

// flux runs Flux's command line in the namespace, and returns its output.
func (p *fixture) flux(args ...string) (string, error) {
	p.Helper()
	flux, err := tools.Path(p.Context(), "flux", nil)
	p.Succeed(err)
	cmd := exec.CommandContext(p.Context(), flux, append(args, "--namespace="+p.Name)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(system.Dir, "flux-home"), "KUBECONFIG="+system.ControlPlane.KubeconfigPath, "NO_COLOR=1")
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// isKnownToFlux shows the Stack of the Kustomization with Flux's command line, and deploys a commit of its source with it.
func (p *fixture) isKnownToFlux(source *gitserver.Repository) {
	p.Helper()
	for _, args := range [][]string{{"trace", "stack", "network"}, {"trace", "network", "--kind=Stack", "--api-version=pulumi.com/v1"}} {
		traced, err := p.flux(args...)
		p.Expect(err).NotTo(HaveOccurred(), traced)
		for _, line := range []string{"Object: +Stack/network", "Status: +Managed by Flux", "Kustomization: +delivery", "GitRepository: +" + p.Name} {
			p.Expect(traced).To(MatchRegexp("(?m)^" + line + "$"))
		}
	}
	tree, err := p.flux("tree", "kustomization", "delivery")
	p.Expect(err).NotTo(HaveOccurred(), tree)
	p.Expect(tree).To(MatchRegexp("(?m)^.── Stack/" + p.Name + "/network$"))

	// The command line knows built-in kinds only: it shows the event of the Kustomization about the Stack, but no events of the Stack.
	events, err := p.flux("events")
	p.Expect(err).NotTo(HaveOccurred(), events)
	p.Expect(events).To(ContainSubstring("Stack/" + p.Name + "/network created"))
	p.Expect(regexp.MustCompile(`\sStack/network\s`).MatchString(events)).To(BeFalse(), "docs/cli.md says that flux events has no events of Stacks")
	refused, err := p.flux("events", "--for=Stack/network")
	p.Expect(err).To(HaveOccurred())
	p.Expect(refused).To(ContainSubstring("'Stack' is not a recognized Flux kind"))

	sha, err := source.Commit(systemtest.Returning("network", 2))
	p.Succeed(err)
	reconciled, err := p.flux("reconcile", "source", "git", "network-source")
	p.Expect(err).NotTo(HaveOccurred(), reconciled)
	p.Expect(reconciled).To(ContainSubstring("fetched revision main@sha1:" + sha))
	p.AwaitStack("network", systemtest.Showing("2"))
	p.Expect(p.stack("network").Status.LastUpdate.Revision).To(Equal("main@sha1:" + sha))
}
