package faults_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stack-controller/stack-controller/tests/faults/campaign"
	"github.com/stack-controller/stack-controller/tests/supervise"
)

// leaveProcess starts a process that looks like one that pulumi left behind.
func leaveProcess(t *testing.T) *supervise.Process {
	g := NewWithT(t)
	name := filepath.Join(t.TempDir(), "pulumi-left")
	content, err := os.ReadFile("/bin/sleep")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(name, content, 0o700)).To(Succeed())
	process, err := world.system.ControlPlane.Supervisor().Run(supervise.Command{
		Name: "pulumi-left", Path: name, Args: []string{"600"}, Env: []string{"PULUMI_HOME=" + world.dataDir() + "/home"},
		Log: filepath.Join(world.system.Dir, "left.log"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = process.Stop(0) }) // an error means that it was stopped
	return process
}

// A Stack that says more than is true, and an Update that did not end, are not settled. The controller is stopped meanwhile: it would
// put it right.
func TestAnUpdateLeftOverAndAnOldCommitAreSeen(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	apps := make([]*campaign.App, 1)
	g.Expect(world.Renew(ctx, apps, "left")).To(Succeed())
	a := apps[0]
	g.Expect(world.Audit(apps)).To(Succeed())
	g.Expect(world.main.stop()).To(Succeed())

	update := &autov1alpha1.Update{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: "left-over"},
		Spec:       autov1alpha1.UpdateSpec{WorkspaceName: a.Name, StackName: "dev", Type: autov1alpha1.UpdateTypeUp},
	}
	g.Expect(world.Client.Create(ctx, update)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, apps)).To(MatchError(ContainSubstring("Update left-over is")))
	g.Expect(world.Client.Delete(ctx, update)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, apps)).To(Succeed())

	stack := &pulumiv1.Stack{}
	g.Expect(world.Client.Get(ctx, a.Key(), stack)).To(Succeed())
	digest := stack.Status.LastUpdate.LastSuccessfulCommit
	stack.Status.LastUpdate.LastSuccessfulCommit = "sha256:old"
	g.Expect(world.Client.Status().Update(ctx, stack)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, apps)).To(MatchError(ContainSubstring("with another update than that of the last change")))
	stack.Status.LastUpdate.LastSuccessfulCommit = digest
	g.Expect(world.Client.Status().Update(ctx, stack)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, apps)).To(Succeed())

	a.Expect("unheard")
	g.Expect(world.CheckSettled(ctx, apps)).To(MatchError(ContainSubstring("the request is not handled")))
	a.Expect("")
	g.Expect(a.Push(func() {})).To(Succeed())
	g.Expect(world.CheckSettled(ctx, apps)).To(MatchError(ContainSubstring("there is no artifact of commit")))

	before := world.main.started()
	world.main.start(world.ctx)
	g.Expect(world.main.awaitStart(context.WithoutCancel(ctx), before)).To(Succeed())
	g.Expect(a.Remove(ctx)).To(Succeed())
	g.Expect(world.Settle(ctx, apps)).To(Succeed())
}

// What is left behind is not settled, whoever left it.
func TestLeftoversAreSeen(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	g.Expect(world.CheckSettled(ctx, nil)).To(Succeed())

	lock := filepath.Join(world.backend(), ".pulumi", "locks", "organization", "nobody", "dev", "1.json")
	g.Expect(os.MkdirAll(filepath.Dir(lock), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(lock, nil, 0o600)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, nil)).To(MatchError(ContainSubstring("locks in the backend")))
	g.Expect(os.Remove(lock)).To(Succeed())

	process := leaveProcess(t)
	// The kernel tells a parent that a program was started before the process has the program's name and environment.
	check := func() error { return world.CheckSettled(ctx, nil) }
	g.Eventually(check).Should(MatchError(And(ContainSubstring("processes"), ContainSubstring("pulumi-left"))))
	g.Expect(process.Stop(0)).To(Succeed())
	g.Expect(world.CheckSettled(ctx, nil)).To(Succeed())
}
