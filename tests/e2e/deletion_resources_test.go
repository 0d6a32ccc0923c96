package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/provider/install"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// retriedLate leaves it to requests and edits when a failed destroy is tried again.
func retriedLate(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} }

// things are resources of the test provider, with a journal and a file each.
type things struct {
	t    *testing.T
	g    *WithT
	name string
	dir  string
}

func (r *things) journal(resource string) string { return filepath.Join(r.dir, resource+".journal") }

func (r *things) file(resource string) string { return filepath.Join(r.dir, resource) }

// deeds returns what was done to the resource, in order.
func (r *things) deeds(resource string) []string {
	content, err := os.ReadFile(r.journal(resource))
	r.g.Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// urn is the name of the resource in pulumi's state.
func (r *things) urn(resource string) string {
	return "urn:pulumi:dev::" + r.name + "::test:index:Sleep::" + resource
}

// inState tells whether pulumi's state has the resource.
func (r *things) inState(resource string) bool { return stateOf(r.g, r.name, resource) != nil }

// retry asks for another attempt.
func (r *things) retry() {
	change(r.t.Context(), r.g, r.name, func(s *pulumiv1.Stack) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, pulumiv1.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano))
	})
}

// delete deletes the Stack.
func (r *things) delete() {
	r.g.Expect(system.Client.Delete(r.t.Context(), &pulumiv1.Stack{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: r.name}})).To(Succeed())
}

// deployedThings starts a Stack with the resources "first" and "second", which depends on it, each with these further options, and waits
// until it is Ready.
func deployedThings(t *testing.T, g *WithT, name, options string, changes ...func(*pulumiv1.Stack)) *things {
	t.Helper()
	r := &things{t: t, g: g, name: name, dir: t.TempDir()}
	deployed(t, g, name, append([]func(*pulumiv1.Stack){destroyed, retriedLate}, changes...)...)
	g.Expect(install.Install(t.Context(), filepath.Join(directoryOf(name), "state", "home", ".pulumi"))).To(Succeed())
	lines := []string{"resources:"}
	for resource, needs := range map[string]string{"first": "", "second": ", dependsOn: [\"${first}\"]"} {
		lines = append(lines, "  "+resource+":", "    type: test:index:Sleep",
			fmt.Sprintf("    properties: {seconds: 0, journal: %s, file: %s, content: x}", r.journal(resource), r.file(resource)),
			"    options: {version: 0.1.0"+needs+options+"}")
	}
	artifact := artifacts.put("v2", packed(yamlProgram(name, lines...)))
	g.Expect(publish(t.Context(), name, artifact)).To(Succeed())
	await(t.Context(), g, name, ready(artifact.Digest))
	return r
}

// pulumiByHand runs the CLI as a person does, who has the passphrase.
func pulumiByHand(t *testing.T, g *WithT, project string, args ...string) {
	t.Helper()
	cli, err := tools.Path(t.Context(), "pulumi", nil)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "Pulumi.yaml"), []byte("name: "+project+"\nruntime: yaml\n"), 0o600)).To(Succeed())
	cmd := exec.CommandContext(t.Context(), cli, append(args, "--stack=dev", "--non-interactive")...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PULUMI_HOME=" + filepath.Join(dir, "home"), "PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_BACKEND_URL=" + system.BackendURL, "PULUMI_CONFIG_PASSPHRASE=" + passphraseCanary,
	}
	output, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))
}

func TestDestroyThatFailsHalfWayGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "deleted-half", "")
	// What the provider deletes cannot be deleted: a directory that is not empty is in its place.
	g.Expect(os.Remove(r.file("first"))).To(Succeed())
	g.Expect(os.MkdirAll(filepath.Join(r.file("first"), "full"), 0o755)).To(Succeed())
	r.delete()
	failed := await(t.Context(), g, r.name, says(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(failed)).To(And(HavePrefix("destroy failed (attempt 1)"), ContainSubstring("directory not empty")))
	g.Expect(r.inState("first")).To(BeTrue())
	g.Expect(r.inState("second")).To(BeFalse(), "what was destroyed is not in the state any more")

	g.Expect(os.RemoveAll(r.file("first"))).To(Succeed())
	r.retry()
	awaitGone(t.Context(), g, r.name)
	g.Expect(resources(g, r.name)).To(BeZero())
	created := []string{"create start", "create end"}
	g.Expect(r.deeds("second")).To(Equal(slices.Concat(created, []string{"delete start", "delete end"})), "nothing is destroyed twice")
	g.Expect(r.deeds("first")).To(Equal(slices.Concat(created, []string{"delete start", "delete start", "delete end"})))
}

func TestDestroyOfAProtectedResourceNamesItAndGoesOnWhenItIsNotAnyMore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "deleted-protected", ", protect: true")
	r.delete()
	failed := await(t.Context(), g, r.name, says(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(failed)).To(And(ContainSubstring(r.urn("second")), ContainSubstring("protected")))
	g.Expect(r.file("first")).To(BeAnExistingFile())
	g.Expect(r.file("second")).To(BeAnExistingFile())

	for _, resource := range []string{"first", "second"} {
		pulumiByHand(t, g, r.name, "state", "unprotect", r.urn(resource), "--yes")
	}
	r.retry()
	awaitGone(t.Context(), g, r.name)
	g.Expect(r.file("first")).NotTo(BeAnExistingFile())
	g.Expect(r.file("second")).NotTo(BeAnExistingFile())
}

func TestDestroyIsOfEverythingWhateverTheTargetsAre(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "deleted-targets", "")
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) {
		s.Spec.Targets = []string{r.urn("second")}
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Target: []string{r.urn("second")}}}
	})
	await(t.Context(), g, r.name, ready(""))
	r.delete()
	awaitGone(t.Context(), g, r.name)
	for _, resource := range []string{"first", "second"} {
		g.Expect(r.deeds(resource)).To(HaveLen(4), "created once, deleted once")
	}
	g.Expect(resources(g, r.name)).To(BeZero())
}

func TestDestroyRefreshesRunsTheProgramAndRemovesTheStackWhenAsked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "deleted-options", "", func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.RunProgram = true, true
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Remove: new(true)}}
	})
	// Somebody deleted a resource: after a refresh there is nothing to destroy of it.
	g.Expect(os.Remove(r.file("second"))).To(Succeed())
	before := len(r.deeds("second"))
	r.delete()
	awaitGone(t.Context(), g, r.name)
	g.Expect(r.deeds("second")[before:]).To(Equal([]string{"read start", "read end"}))
	g.Expect(r.deeds("first")).To(ContainElement("delete end"))
	g.Expect(pulumi.calls(g)).To(ContainElement(And(
		HavePrefix(directoryOf(r.name)), ContainSubstring(" destroy "), ContainSubstring("--refresh"), ContainSubstring("--run-program"))))
	g.Expect(hasStack(r.name)).To(BeFalse())
}

func TestDestroyWithoutRefreshLeavesItToTheProvider(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := deployedThings(t, g, "deleted-plain", "")
	g.Expect(os.Remove(r.file("second"))).To(Succeed())
	r.delete()
	awaitGone(t.Context(), g, r.name)
	g.Expect(r.deeds("second")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}))
	g.Expect(hasStack(r.name)).To(BeTrue(), "the stack and its history stay, empty")
	g.Expect(resources(g, r.name)).To(BeZero())
}
