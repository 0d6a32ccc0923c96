package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/statuscheck"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// inReverse is a Stack that is destroyed after those that depend on it.
func inReverse(s *pulumiv1.Stack) {
	s.Spec.DestroyOnFinalize, s.Spec.DestroyAfterDependents = true, true
}

// needs makes the Stack depend on another one, in another namespace.
func needs(name string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Spec.DependsOn = []meta.DependencyReference{{Name: name}} }
}

// destroys returns the names of the Stacks of the namespace in the order in which their destroys began.
func (p *play) destroys(names ...string) (order []string) {
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
	p := begin(t, "deleted-layers")
	journal := filepath.Join(t.TempDir(), "journal")
	p.enter(&sourcev1.ExternalArtifact{ObjectMeta: p.Meta(p.Name)})
	artifact := p.publish(p.returning(1))
	// The names sort in the order in which the Stacks must not go.
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

	// One after the other they go, or do not depend on it any more.
	p.deleteLayers(users[:6]...)
	p.awaitLayers(p.Name, "user-6")
	p.Await(func(s *pulumiv1.Stack) bool {
		return strings.Contains(statuscheck.Message(s), "any more: "+p.Name+"/user-6;")
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

// TestDependentsOfAnotherShardAreWaitedFor runs alone: it restarts the controller.
func TestDependentsOfAnotherShardAreWaitedFor(t *testing.T) {
	suite.Long(t, "further orders of deletion")
	p := alone(t, "deleted-sharded")
	p.deployed(inReverse, func(s *pulumiv1.Stack) { s.Labels = map[string]string{"shard": "one"} })
	// What another shard looks after is not watched.
	p.restartController("--watch-label-selector=shard=one", "--requeue-dependency=5s")
	defer p.restartController()
	p.layer("user", needs(p.Name))
	p.Delete()
	waiting := p.Await(says(pulumiv1.DependentsExistReason))
	p.Expect(statuscheck.Message(waiting)).To(ContainSubstring(p.Name + "/user;"))
	p.deleteLayers("user")
	p.awaitDestroyed()
}
