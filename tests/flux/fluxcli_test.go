package flux_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/stage/scene"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// flux runs Flux's command line in the namespace, and returns what it prints.
func (p *play) flux(args ...string) (string, error) {
	p.Helper()
	flux, err := tools.Path(p.Context(), "flux", nil)
	p.Succeed(err)
	cmd := exec.CommandContext(p.Context(), flux, append(args, "--namespace="+p.Name)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(system.Dir, "flux-home"), "KUBECONFIG="+system.ControlPlane.KubeconfigPath, "NO_COLOR=1")
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// isKnownToFlux has Flux's command line show the Stack of the Kustomization, and deploy a commit of its source.
func (p *play) isKnownToFlux(source *gitserver.Repository) {
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

	// The kinds that it knows are built in: of the Stack it shows what the Kustomization says.
	events, err := p.flux("events")
	p.Expect(err).NotTo(HaveOccurred(), events)
	p.Expect(events).To(ContainSubstring("Stack/" + p.Name + "/network created"))
	p.Expect(regexp.MustCompile(`\sStack/network\s`).MatchString(events)).To(BeFalse(), "docs/cli.md says that flux events has no events of Stacks")
	refused, err := p.flux("events", "--for=Stack/network")
	p.Expect(err).To(HaveOccurred())
	p.Expect(refused).To(ContainSubstring("'Stack' is not a recognized Flux kind"))

	sha, err := source.Commit(scene.Returning("network", 2))
	p.Succeed(err)
	reconciled, err := p.flux("reconcile", "source", "git", "network-source")
	p.Expect(err).NotTo(HaveOccurred(), reconciled)
	p.Expect(reconciled).To(ContainSubstring("fetched revision main@sha1:" + sha))
	p.AwaitStack("network", scene.Showing("2"))
	p.Expect(p.stack("network").Status.LastUpdate.Revision).To(Equal("main@sha1:" + sha))
}
