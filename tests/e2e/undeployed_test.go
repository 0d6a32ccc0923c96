package e2e_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// There is nothing to destroy for a Stack whose updates never ran Pulumi, so nobody has to say that the resources may stay.
func TestStackThatNeverRanAnythingCanBeDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		files gitserver.Files
		edit  func(*pulumiv1.Stack)
		is    func(*pulumiv1.Stack) bool
	}{
		"never-parsed": {gitserver.Files{"Pulumi.yaml": "name: [\n"}, func(*pulumiv1.Stack) {}, failedAtLeast(2)},
		"never-found":  {nil, func(s *pulumiv1.Stack) { s.Spec.SecretEnvs = []string{"missing"} }, func(s *pulumiv1.Stack) bool { return s.Status.CurrentUpdate != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			p := begin(t, name)
			files := test.files
			if files == nil {
				files = p.returning(1)
			}
			p.start(p.put(files), destroyed, test.edit)
			p.Await(test.is)
			p.Delete()
			p.AwaitGone()
		})
	}
}

func failedAtLeast(times int64) func(*pulumiv1.Stack) bool {
	return func(s *pulumiv1.Stack) bool {
		return s.Status.LastUpdate != nil && s.Status.LastUpdate.Failures >= times
	}
}

// An update that failed halfway knows the project, which is all that a destroy without the program needs.
func TestStackThatFailedHalfwayIsDestroyedWithoutItsSource(t *testing.T) {
	suite.Long(t, "further states in which a Stack is deleted")
	p := begin(t, "failed-halfway")
	p.start(p.put(gitserver.Files{"Pulumi.yaml": "name: [\n"}), destroyed, retriedLate)
	p.Await(failedAtLeast(1))
	p.InstallProvider(p.Name)
	r := &resourceFixture{fixture: p, dir: p.TempDir()}
	artifact := r.publish(r.yaml(slices.Concat([]string{"resources:"}, r.sleep("first", "file: "+r.file("first")+", content: x", ""),
		r.sleep("second", "failMessage: no quota", ", dependsOn: [\"${first}\"]"))...))
	r.Await(func(s *pulumiv1.Stack) bool {
		last := s.Status.LastUpdate
		return last != nil && last.LastAttemptedCommit == artifact.Digest && last.State == pulumiv1.StackUpdateFailed
	})
	r.Expect(r.file("first")).To(BeAnExistingFile())
	r.Expect(system.Client.Delete(r.Context(), &sourcev1.ExternalArtifact{ObjectMeta: r.Meta(r.Name)})).To(Succeed())
	r.Delete()
	r.AwaitGone()
	r.Expect(r.file("first")).NotTo(BeAnExistingFile())
}
