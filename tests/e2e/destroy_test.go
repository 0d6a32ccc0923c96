package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// retriedLate makes a failed destroy wait for an hour, so that only a request or an edit repeats it.
func retriedLate(s *pulumiv1.Stack) { s.Spec.RetryInterval = &metav1.Duration{Duration: time.Hour} }

// resourceFixture is a play with resources of the test provider. Each resource has a journal and a file.
type resourceFixture struct {
	*fixture
	dir string
}

func (r *resourceFixture) journal(resource string) string {
	return filepath.Join(r.dir, resource+".journal")
}

func (r *resourceFixture) file(resource string) string { return filepath.Join(r.dir, resource) }

// write replaces the content of the resource's file, as a person would do by hand.
func (r *resourceFixture) write(resource, content string) {
	r.Helper()
	r.Expect(os.WriteFile(r.file(resource), []byte(content), 0o600)).To(Succeed())
}

// journalEntries returns the entries of the resource's journal, in order.
func (r *resourceFixture) journalEntries(resource string) []string {
	r.Helper()
	content, err := os.ReadFile(r.journal(resource))
	r.Succeed(err)
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// created and deleted are the entries in the journal of a resource that was created, and of one that was deleted.
var created, deleted = []string{"create start", "create end"}, []string{"delete start", "delete end"}

// urn returns the URN of the resource.
func (r *resourceFixture) urn(resource string) string {
	return "urn:pulumi:dev::" + r.Name + "::test:index:Sleep::" + resource
}

// sleep returns the lines of a program for a resource with the properties, a journal and the options.
func (r *resourceFixture) sleep(resource, properties, options string) []string {
	return []string{"  " + resource + ":", "    type: test:index:Sleep",
		fmt.Sprintf("    properties: {journal: %s, %s}", r.journal(resource), properties), "    options: {version: 0.1.0" + options + "}"}
}

// newThings deploys a Stack that can have resources of the test provider.
func newThings(p *fixture, changes ...func(*pulumiv1.Stack)) *resourceFixture {
	p.Helper()
	p.deployed(append([]func(*pulumiv1.Stack){retriedLate}, changes...)...)
	p.InstallProvider(p.Name)
	return &resourceFixture{fixture: p, dir: p.TempDir()}
}

// deployedThings starts a Stack with the resources "first" and "second", each with the further options, and waits until it is Ready.
// "second" depends on "first".
func deployedThings(p *fixture, options string, changes ...func(*pulumiv1.Stack)) *resourceFixture {
	p.Helper()
	r := newThings(p, append([]func(*pulumiv1.Stack){destroyed}, changes...)...)
	lines := []string{"resources:"}
	for resource, needs := range map[string]string{"first": "", "second": ", dependsOn: [\"${first}\"]"} {
		lines = append(lines, r.sleep(resource, fmt.Sprintf("seconds: 0, file: %s, content: x", r.file(resource)), needs+options)...)
	}
	r.Await(ready(r.publish(r.yaml(lines...)).Digest))
	return r
}

// retry asks for another attempt.
func (r *resourceFixture) retry() {
	r.Helper()
	r.Change(systemtest.Annotate(pulumiv1.ReconcileRequestAnnotation, time.Now().Format(time.RFC3339Nano)))
}

func TestDestroyThatFailsHalfWayGoesOnWhereItStopped(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted; see TestDeletedStackDestroysItsResourcesFirst")
	r := deployedThings(begin(t, "deleted-half"), "")
	// The provider cannot delete the resource, because there is a directory that is not empty instead of its file.
	r.Expect(os.Remove(r.file("first"))).To(Succeed())
	r.Expect(os.MkdirAll(filepath.Join(r.file("first"), "full"), 0o755)).To(Succeed())
	r.Delete()
	failed := r.Await(says(pulumiv1.RetryingAfterFailureReason))
	r.Expect(statuscheck.Message(failed)).To(And(HavePrefix("destroy failed (attempt 1)"), ContainSubstring("directory not empty")))
	r.Expect(r.stateOf("first")).NotTo(BeNil())
	r.Expect(r.stateOf("second")).To(BeNil(), "what was destroyed is no longer in the state")

	r.Expect(os.RemoveAll(r.file("first"))).To(Succeed())
	r.retry()
	r.awaitDestroyed()
	r.Expect(r.journalEntries("second")).To(Equal(slices.Concat(created, deleted)), "nothing is destroyed twice")
	r.Expect(r.journalEntries("first")).To(Equal(slices.Concat(created, deleted[:1], deleted)))
}

func TestDestroyOfAProtectedResourceNamesItAndGoesOnWhenItIsNotAnyMore(t *testing.T) {
	suite.Long(t, "further options of a destroy")
	r := deployedThings(begin(t, "deleted-protected"), ", protect: true")
	r.Delete()
	failed := r.Await(says(pulumiv1.RetryingAfterFailureReason))
	r.Expect(statuscheck.Message(failed)).To(And(ContainSubstring(r.urn("second")), ContainSubstring("protected")))
	r.Expect(r.file("first")).To(BeAnExistingFile())
	r.Expect(r.file("second")).To(BeAnExistingFile())

	for _, resource := range []string{"first", "second"} {
		r.pulumi("state", "unprotect", r.urn(resource), "--yes")
	}
	r.retry()
	r.AwaitGone()
	r.Expect(r.file("first")).NotTo(BeAnExistingFile())
	r.Expect(r.file("second")).NotTo(BeAnExistingFile())
}

func TestDestroyIsOfEverythingWhateverTheTargetsAre(t *testing.T) {
	suite.Long(t, "further options of a destroy")
	r := deployedThings(begin(t, "deleted-targets"), "")
	r.Change(func(s *pulumiv1.Stack) {
		s.Spec.Targets = []string{r.urn("second")}
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Target: []string{r.urn("second")}}}
	})
	r.Await(ready(""))
	r.Delete()
	r.AwaitGone()
	for _, resource := range []string{"first", "second"} {
		r.Expect(r.journalEntries(resource)).To(HaveLen(4), "created once, deleted once")
	}
	r.Expect(r.resources()).To(BeZero())
}

func TestDestroyRefreshesRunsTheProgramAndRemovesTheStackWhenAsked(t *testing.T) {
	suite.Long(t, "further options of a destroy")
	r := deployedThings(begin(t, "deleted-options"), "", func(s *pulumiv1.Stack) {
		s.Spec.Refresh, s.Spec.RunProgram = true, true
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Remove: new(true)}}
	})
	// Someone has deleted the file of a resource. After a refresh, the destroy has nothing to do for that resource.
	r.Expect(os.Remove(r.file("second"))).To(Succeed())
	before := len(r.journalEntries("second"))
	r.Delete()
	r.AwaitGone()
	r.Expect(r.journalEntries("second")[before:]).To(Equal([]string{"read start", "read end"}))
	r.Expect(r.journalEntries("first")).To(ContainElement("delete end"))
	r.Expect(r.calls(r.Name)).To(ContainElement(And(
		ContainSubstring(" destroy "), ContainSubstring("--refresh"), ContainSubstring("--run-program"))))
	r.Expect(r.HasState(r.Name, "dev")).To(BeFalse())
}

func TestDestroyWithoutRefreshLeavesItToTheProvider(t *testing.T) {
	suite.Long(t, "further options of a destroy")
	r := deployedThings(begin(t, "deleted-plain"), "")
	r.Expect(os.Remove(r.file("second"))).To(Succeed())
	r.Delete()
	r.AwaitGone()
	r.Expect(r.journalEntries("second")).To(Equal(slices.Concat(created, deleted)))
	r.Expect(r.HasState(r.Name, "dev")).To(BeTrue(), "the stack and its history stay, empty")
	r.Expect(r.resources()).To(BeZero())
}

// inReverse makes the Stack be destroyed after the Stacks that depend on it.
func inReverse(s *pulumiv1.Stack) {
	s.Spec.DestroyOnFinalize, s.Spec.DestroyAfterDependents = true, true
}

// needs makes the Stack depend on another Stack of its namespace.
func needs(name string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: name}} }
}

// destroys returns those of the named Stacks that were destroyed, in the order in which their destroys began.
func (p *fixture) destroys(names ...string) (order []string) {
	for _, call := range p.calls(names...) {
		for _, name := range names {
			if strings.HasPrefix(call, p.Directory(name)) && strings.Contains(call, " destroy ") {
				order = append(order, name)
			}
		}
	}
	return order
}

func TestStacksThatAreDeletedTogetherAreDestroyedInReverseOrder(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "deleted-layers")
	journal := filepath.Join(t.TempDir(), "journal")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})
	artifact := p.publish(p.returning(1))
	// The alphabetical order of the names is the order in which the Stacks must not be destroyed.
	layers := []string{"a-network", "b-database", "c-web"}
	for i, layered := range layers {
		changes := []func(*pulumiv1.Stack){inReverse}
		if i > 0 {
			changes = append(changes, needs(layers[i-1]))
		}
		p.layer(layered, changes...)
		p.AwaitStack(layered, ready(artifact.Digest))
		p.InstallProvider(layered)
	}
	artifact = p.publish(p.yaml("resources:", "  thing:", "    type: test:index:Sleep",
		fmt.Sprintf("    properties: {seconds: 0, deleteSeconds: 1, journal: %s}", journal), "    options: {version: 0.1.0}"))
	for _, layered := range layers {
		p.AwaitStack(layered, ready(artifact.Digest))
	}

	_, err := system.ControlPlane.Kubectl(p.Context(), append([]string{"delete", "--namespace=" + p.Name, "stacks", "--wait=false"}, layers...)...)
	p.Succeed(err)
	p.AwaitStack(layers[0], func(s *pulumiv1.Stack) bool {
		return says(pulumiv1.DependentsExistReason)(s) && strings.Contains(statuscheck.Message(s), p.Name+"/b-database (is being deleted)")
	})
	p.awaitLayers()
	reversed := slices.Clone(layers)
	slices.Reverse(reversed)
	p.Expect(p.destroys(layers...)).To(Equal(reversed))
	content, err := os.ReadFile(journal)
	p.Succeed(err)
	p.Expect(string(content)).To(HaveSuffix(strings.Repeat("delete start\ndelete end\n", 3)), "each one ended before the next one began")
}

func TestStackIsKeptAsLongAsOthersDependOnItThatNobodyDeletes(t *testing.T) {
	suite.Long(t, "further orders of deletion")
	p := begin(t, "deleted-needed")
	p.deployed(inReverse)
	var users []string
	for i := range 7 {
		users = append(users, fmt.Sprint("user-", i))
		p.layer(users[i], needs(p.Name), suspended)
	}
	p.Delete()
	waiting := p.Await(says(pulumiv1.DependentsExistReason))
	p.Expect(statuscheck.Message(waiting)).To(And(ContainSubstring("user-0, "+p.Name+"/user-1"), ContainSubstring("user-4, 2 more;"),
		ContainSubstring("destroyAfterDependents to false")))
	p.Expect(p.Updates()).To(HaveLen(1), "nothing is destroyed")

	// Some dependents are deleted, one is edited so that it no longer depends on the Stack.
	p.deleteLayers(users[:6]...)
	p.awaitLayers(p.Name, "user-6")
	p.Await(func(s *pulumiv1.Stack) bool {
		return strings.Contains(statuscheck.Message(s), "any longer: "+p.Name+"/user-6;")
	})
	p.ChangeStack("user-6", func(s *pulumiv1.Stack) { s.Spec.DependsOn = nil })
	p.awaitDestroyed()
}

func TestNobodyWaitsForDependentsInACycleOrWithoutAReason(t *testing.T) {
	suite.Long(t, "further orders of deletion")
	p := begin(t, "deleted-cycle")
	p.deployed(inReverse)
	p.layer("other", inReverse, needs(p.Name), func(s *pulumiv1.Stack) { s.Spec.Prerequisites = []pulumiv1.PrerequisiteRef{{Name: p.Name}} })
	p.AwaitStack("other", ready(""))
	p.Change(needs("other"))
	p.Await(notReady(pulumiv1.DependencyCycleReason))
	p.deleteLayers(p.Name, "other")
	p.awaitLayers()
	p.Expect(p.destroys(p.Name, "other")).To(ConsistOf(p.Name, "other"))

	for name, edit := range map[string]func(*pulumiv1.Stack){
		"deleted-needed-orphan": orphan,
		"deleted-needed-kept":   func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize = false },
		"deleted-needed-option": func(s *pulumiv1.Stack) { s.Spec.DestroyAfterDependents = false },
	} {
		left := p.beside(name)
		left.deployed(inReverse)
		left.layer("user", needs(name), suspended)
		left.Delete()
		left.Await(says(pulumiv1.DependentsExistReason))
		left.Change(edit)
		left.AwaitGone()
		left.Expect(left.resources() == 0).To(Equal(name == "deleted-needed-option"))
	}
}

// TestDependentsOfAnotherShardAreWaitedFor runs alone, because it restarts the controller.
func TestDependentsOfAnotherShardAreWaitedFor(t *testing.T) {
	suite.Long(t, "further orders of deletion")
	p := alone(t, "deleted-sharded")
	p.deployed(inReverse, func(s *pulumiv1.Stack) { s.Labels = map[string]string{"shard": "one"} })
	// The objects of another shard are not watched.
	p.restartController("--watch-label-selector=shard=one", "--requeue-dependency=5s")
	defer p.restartController()
	p.layer("user", needs(p.Name))
	p.Delete()
	waiting := p.Await(says(pulumiv1.DependentsExistReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring(p.Name + "/user;"))
	p.deleteLayers("user")
	p.awaitDestroyed()
}
