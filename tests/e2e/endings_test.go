package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
	"github.com/stack-controller/stack-controller/tests/provider/install"
)

// slowly is the program of these tests: a resource "quick", and one "slow" after it, which takes so many seconds.
func (r *things) slowly(seconds int) gitserver.Files {
	lines := []string{"resources:"}
	for _, resource := range []string{"quick", "slow"} {
		options, takes := "", 0
		if resource == "slow" {
			options, takes = ", dependsOn: [\"${quick}\"]", seconds
		}
		lines = append(lines, "  "+resource+":", "    type: test:index:Sleep",
			fmt.Sprintf("    properties: {seconds: %d, journal: %s}", takes, r.journal(resource)),
			"    options: {version: 0.1.0"+options+"}")
	}
	return yamlProgram(r.name, lines...)
}

// inTheMiddle starts a Stack, and returns once it creates the slow resource, which does not end by itself.
func inTheMiddle(t *testing.T, g *WithT, name string, changes ...func(*pulumiv1.Stack)) *things {
	t.Helper()
	r := &things{t: t, g: g, name: name, dir: t.TempDir()}
	deployed(t, g, name, append([]func(*pulumiv1.Stack){retriedLate}, changes...)...)
	g.Expect(install.Install(t.Context(), filepath.Join(directoryOf(name), "state", "home", ".pulumi"))).To(Succeed())
	g.Expect(publish(t.Context(), name, artifacts.put("v2", packed(r.slowly(1000))))).To(Succeed())
	g.Eventually(func() string {
		content, _ := os.ReadFile(r.journal("slow"))
		return string(content)
	}).WithTimeout(patience).WithPolling(pollInterval).Should(Equal("create start\n"))
	return r
}

// hurries publishes a program whose slow resource is quick.
func (r *things) hurries() *meta.Artifact {
	artifact := artifacts.put("v3", packed(r.slowly(0)))
	r.g.Expect(publish(r.t.Context(), r.name, artifact)).To(Succeed())
	return artifact
}

// locks are those that the backend has for the stack.
func (r *things) locks() []string {
	found, err := filepath.Glob(filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "locks", "organization", r.name, "dev", "*.json"))
	r.g.Expect(err).NotTo(HaveOccurred())
	return found
}

// last is the Update that was recorded last.
func (r *things) last(stack *pulumiv1.Stack) *autov1alpha1.Update {
	found := updates(r.t.Context(), r.g, r.name)
	for i := range found {
		if found[i].Name == stack.Status.LastUpdate.Name {
			return &found[i]
		}
	}
	r.t.Fatalf("update %s is gone", stack.Status.LastUpdate.Name)
	return nil
}

func annotate(name, value string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, value) }
}

func TestSuspendedStackEndsItsUpdateWhenItIsAskedTo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inTheMiddle(t, g, "cancelled")
	running := func() int {
		count := 0
		for _, update := range updates(t.Context(), g, r.name) {
			if !update.IsComplete() {
				count++
			}
		}
		return count
	}
	// Neither alone ends anything: a Stack that goes on would start the same again.
	change(t.Context(), g, r.name, annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	g.Consistently(running).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(Equal(1))
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { delete(s.Annotations, pulumiv1.CancelUpdateAnnotation); s.Spec.Suspend = true })
	g.Consistently(running).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(Equal(1))

	change(t.Context(), g, r.name, annotate(pulumiv1.CancelUpdateAnnotation, "true"))
	stack := await(t.Context(), g, r.name, notReady(pulumiv1.SuspendedReason))
	g.Expect(readyMessage(stack)).To(ContainSubstring("its last up did not succeed: the operation was cancelled: pulumi stopped gracefully"))
	g.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.CanceledReason))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeZero())
	g.Expect(stack.Status.History.Latest().LastReconciledStatus).To(Equal("cancelled"))
	g.Expect(r.last(stack).Status.State).To(Equal(autov1alpha1.UpdateStateCancelled))
	g.Expect(r.deeds("quick")).To(Equal([]string{"create start", "create end"}))
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start", "create aborted"}))
	g.Expect(r.locks()).To(BeEmpty())
	artifact := r.hurries()
	g.Consistently(running).WithTimeout(2 * time.Second).WithPolling(pollInterval).Should(BeZero())

	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { s.Spec.Suspend = false })
	stack = await(t.Context(), g, r.name, ready(artifact.Digest))
	g.Expect(r.deeds("quick")).To(Equal([]string{"create start", "create end"}))
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start", "create aborted", "create start", "create end"}))
	g.Expect(r.last(stack).Spec.AfterInterruption).To(HaveValue(BeTrue()), "what was cut off may have left something")
	g.Expect(stack.Status.LastUpdate.Unsettled).To(BeFalse())
}

func TestTimeoutEndsAnUpdateGracefullyAndIsAFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inTheMiddle(t, g, "timeout", func(s *pulumiv1.Stack) { s.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second} })
	stack := await(t.Context(), g, r.name, notReady(pulumiv1.RetryingAfterFailureReason))
	g.Expect(readyMessage(stack)).To(MatchRegexp(
		`^up failed \(attempt 1\), next attempt in .*: the operation took longer than its timeout: pulumi stopped gracefully`))
	g.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.TimeoutReason))
	g.Expect(stack.Status.LastUpdate.Failures).To(BeEquivalentTo(1))
	update := r.last(stack)
	g.Expect(conditions.GetReason(update, autov1alpha1.UpdateFailed)).To(Equal(autov1alpha1.TimeoutReason))
	g.Expect(update.Status.EndTime.Sub(update.Status.StartTime.Time)).To(BeNumerically("~", 20*time.Second, 10*time.Second))
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start", "create aborted"}))
	g.Expect(r.locks()).To(BeEmpty())

	artifact := r.hurries()
	await(t.Context(), g, r.name, ready(artifact.Digest))
	g.Expect(r.deeds("quick")).To(Equal([]string{"create start", "create end"}))
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start", "create aborted", "create start", "create end"}))
}

// killPulumi ends the pulumi process of the Stack's operation, as the kernel does when memory runs out.
func killPulumi(g *WithT, name string) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	g.Expect(err).NotTo(HaveOccurred())
	killed := false
	for _, path := range paths {
		content, _ := os.ReadFile(path)
		arguments := strings.Split(string(content), "\x00")
		if !strings.Contains(string(content), "--config-file="+directoryOf(name)) || filepath.Base(arguments[0]) != "pulumi" {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		killed = true
	}
	g.Expect(killed).To(BeTrue(), "pulumi does not run")
}

func TestCreationThatWasCutOffIsNotRepeatedAlthoughAllThatToldOfItIsGone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inTheMiddle(t, g, "cut-off")
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	killPulumi(g, r.name)
	stack := await(t.Context(), g, r.name, notReady(pulumiv1.SuspendedReason))
	g.Expect(stack.Status.LastUpdate.Reason).To(Equal(autov1alpha1.InterruptedReason))
	g.Expect(stack.Status.LastUpdate.Unsettled).To(BeTrue())

	// The agent goes with all that it knew, and somebody removes the lock.
	deleteWorkspace(t, g, r.name)
	awaitNoWorkspace(t, g, r.name)
	g.Eventually(directoryOf(r.name)).WithTimeout(patience).WithPolling(pollInterval).ShouldNot(BeADirectory())
	g.Expect(r.locks()).To(HaveLen(1))
	pulumiByHand(t, g, r.name, "cancel", "--yes")
	artifact := r.hurries()
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) {
		s.Spec.Suspend, s.Spec.RetryInterval = false, &metav1.Duration{Duration: 2 * time.Second}
	})
	stack = await(t.Context(), g, r.name, func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate.Failures >= 2 })
	g.Expect(stack.Status.LastUpdate.Message).To(And(ContainSubstring(r.urn("slow")), ContainSubstring("could create it twice")))
	g.Expect(stack.Status.LastUpdate.Unsettled).To(BeTrue())
	g.Expect(stack.Status.LastUpdate.LastAttemptedCommit).To(Equal(artifact.Digest))
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start"}))
}

func TestStackWhoseCreationWasCutOffIsNotLetGoUntilSomebodyLooked(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inTheMiddle(t, g, "cut-off-deleted", destroyed)
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) { s.Spec.Suspend = true })
	killPulumi(g, r.name)
	stack := await(t.Context(), g, r.name, notReady(pulumiv1.SuspendedReason))
	g.Expect(system.Client.Delete(t.Context(), stack)).To(Succeed())
	change(t.Context(), g, r.name, func(s *pulumiv1.Stack) {
		s.Spec.Suspend, s.Spec.RetryInterval = false, &metav1.Duration{Duration: 2 * time.Second}
	})
	stack = await(t.Context(), g, r.name, func(s *pulumiv1.Stack) bool { return s.Status.LastUpdate.Failures >= 2 })
	g.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypeDestroy))
	g.Expect(readyMessage(stack)).To(And(ContainSubstring(r.urn("slow")), ContainSubstring("--clear-pending-creates"),
		ContainSubstring(pulumiv1.OrphanAnnotation+"=true")))
	g.Expect(r.deeds("quick")).To(Equal([]string{"create start", "create end", "delete start", "delete end"}), "all that is known is destroyed")

	pulumiByHand(t, g, r.name, "refresh", "--yes", "--skip-preview", "--clear-pending-creates")
	awaitGone(t.Context(), g, r.name)
	g.Expect(r.deeds("slow")).To(Equal([]string{"create start"}))
}
