// Package shards_test runs several stack-controllers that divide the Stacks of one API server by their labels.
package shards_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/supervise"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// fleet is a set of six Stacks that follow one source, two for each controller. The name of a Stack begins with the name of its shard.
type fleet struct {
	*systemtest.Fixture
	names []string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{Fixture: systemtest.New(t, system, "shards", systemtest.Patience)}
	f.Enter(map[string]string{localsystem.PassphraseKey: "passphrase"}, &sourcev1.ExternalArtifact{ObjectMeta: f.Meta(f.Name)})
	for _, name := range []string{"main-a", "main-b", "one-a", "one-b", "two-a", "two-b"} {
		stack := system.NewStack(f.Name, name, sourcev1.ExternalArtifactKind)
		stack.Spec.Stack, stack.Spec.FluxSource.SourceRef.Name = name, f.Name
		if shard, _, _ := strings.Cut(name, "-"); shard != "main" {
			stack.Labels = map[string]string{shardKey: shard}
		}
		f.Create(stack)
		f.names = append(f.names, name)
	}
	return f
}

// commit publishes a new version of the program.
func (f *fleet) commit(value int) *meta.Artifact {
	f.Helper()
	content := systemtest.Packed(systemtest.Returning(f.Name, value))
	artifact := artifacts.Put("main@sha1:"+strings.Repeat(string(rune('0'+value)), 40), content)
	f.Offer(artifact)
	return artifact
}

// awaitDeployed waits until the Stacks are ready with the version.
func (f *fleet) awaitDeployed(artifact *meta.Artifact, names ...string) {
	f.Helper()
	for _, name := range names {
		f.AwaitStack(name, statuscheck.Ready(artifact.Digest))
	}
}

// updates returns how often the CLI was called to update the stack.
func (f *fleet) updates(name string) (count int) {
	f.Helper()
	content, err := os.ReadFile(filepath.Join(commands, "calls"))
	f.Succeed(err)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, " up ") && strings.Contains(line, " --stack "+name+" ") {
			count++
		}
	}
	return count
}

func (f *fleet) expectUpdates(count int, names ...string) {
	f.Helper()
	for _, name := range names {
		f.Expect(f.updates(name)).To(Equal(count), name)
	}
}

// versions returns the resource versions of the Stacks, their Workspaces and their Updates.
func (f *fleet) versions(names ...string) map[string]string {
	f.Helper()
	versions := map[string]string{}
	for _, name := range names {
		stack, workspace := &pulumiv1.Stack{}, &autov1alpha1.Workspace{}
		f.Get(name, stack)
		f.Get(name, workspace)
		versions[name] = stack.ResourceVersion + " " + workspace.ResourceVersion
	}
	for _, update := range f.Updates() {
		if _, chosen := versions[update.Spec.WorkspaceName]; chosen {
			versions[update.Name] = update.ResourceVersion
		}
	}
	return versions
}

// move assigns the Stack to another controller.
func (f *fleet) move(name, shard string) {
	f.Helper()
	f.ChangeStack(name, func(stack *pulumiv1.Stack) {
		delete(stack.Labels, shardKey)
		if shard != "" {
			metav1.SetMetaDataLabel(&stack.ObjectMeta, shardKey, shard)
		}
	})
}

// awaitOwned waits until the Workspace and all Updates of the Stack have the label of the shard.
func (f *fleet) awaitOwned(name, shard string) {
	f.Helper()
	f.Eventually(func(g Gomega) {
		workspace := &autov1alpha1.Workspace{}
		g.Expect(system.Client.Get(f.Context(), f.Key(name), workspace)).To(Succeed())
		g.Expect(workspace.Labels[shardKey]).To(Equal(shard))
		var updates autov1alpha1.UpdateList
		g.Expect(system.Client.List(f.Context(), &updates, client.InNamespace(f.Name))).To(Succeed())
		for i := range updates.Items {
			if updates.Items[i].Spec.WorkspaceName == name {
				g.Expect(updates.Items[i].Labels[shardKey]).To(Equal(shard), updates.Items[i].Name)
			}
		}
	}).Should(Succeed())
}

// The parts of the test share the fleet, and run one after the other.
func TestShards(t *testing.T) {
	f := newFleet(t)
	first := f.commit(1)
	f.awaitDeployed(first, f.names...)
	f.expectUpdates(1, f.names...)

	t.Run("StackRolloutOfOneShardGivesTurnsToStacksOfAll", func(t *testing.T) { f.on(t).rollOut() })
	t.Run("StacksOfAControllerThatIsGoneWaitAndTheOthersGoOn", func(t *testing.T) { f.on(t).loseOne() })
	t.Run("StackThatMovesWhileItsUpdateRunsIsUpdatedOnce", func(t *testing.T) { f.on(t).moveBusy() })
	t.Run("UpdateWithoutTheLabelsOfItsWorkspaceWaitsForThem", func(t *testing.T) { f.on(t).updateByHand() })
	t.Run("StackOfAControllerThatIsGoneMoves", func(t *testing.T) { f.on(t).moveFromLost() })
	t.Run("OperationOfAControllerThatIsGoneIsFollowedByTheNextWhereThatReachesItsAgent", func(t *testing.T) { f.on(t).moveRunning() })
}

// on returns the fleet for a part of the test.
func (f *fleet) on(t *testing.T) *fleet {
	t.Helper()
	return &fleet{Fixture: systemtest.New(t, system, f.Name, f.Patience), names: f.names}
}

// inWaves are Stacks of three shards with a StackRollout of one of them.
var inWaves = []string{"waves-main", "waves-one", "waves-two"}

// rollOut expects that a StackRollout of one shard lets the Stacks of all shards have its source.
func (f *fleet) rollOut() {
	rollout := f.rolloutOfTwo()
	f.join(inWaves...)
	for _, name := range inWaves {
		f.AwaitStack(name, statuscheck.NotReady(pulumiv1.RolloutNotFoundReason))
	}
	f.Create(rollout)
	for _, name := range inWaves {
		f.AwaitStack(name, func(stack *pulumiv1.Stack) bool { return conditions.IsReady(stack) })
	}
	f.expectUpdates(1, inWaves...)
	f.Eventually(f.doneInWaves).Should(Equal("3/3"))
}

// rolloutOfTwo returns a StackRollout of shard two, which lets the Stack of the main controller have its source before the others.
func (f *fleet) rolloutOfTwo() *autov1alpha1.StackRollout {
	rollout := &autov1alpha1.StackRollout{ObjectMeta: f.Meta("waves"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.ExternalArtifactKind, Name: f.Name}, Waves: []autov1alpha1.RolloutWave{
			{Name: "first", Stacks: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "first"}}}, {Name: "rest"},
		},
	}}
	rollout.Labels = map[string]string{shardKey: "two"}
	return rollout
}

// join creates Stacks of that StackRollout. Their names end with those of their shards.
func (f *fleet) join(names ...string) {
	f.Helper()
	for _, name := range names {
		stack := system.NewStack(f.Name, name, sourcev1.ExternalArtifactKind)
		stack.Spec.Stack, stack.Spec.FluxSource.SourceRef.Name = name, f.Name
		stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "waves"}
		stack.Labels = map[string]string{"tier": "first"}
		if _, shard, _ := strings.Cut(name, "-"); shard != "main" {
			stack.Labels = map[string]string{shardKey: shard}
		}
		f.Create(stack)
	}
}

// The wave that runs goes on, and the next one begins when the shard of the StackRollout has a controller again.
func TestWavesGoOnAfterTheControllerOfTheirRolloutWasKilled(t *testing.T) {
	f := &fleet{Fixture: systemtest.New(t, system, "writer", systemtest.Patience)}
	names := []string{"writer-main", "writer-one", "writer-two"}
	f.Enter(map[string]string{localsystem.PassphraseKey: "passphrase"}, &sourcev1.ExternalArtifact{ObjectMeta: f.Meta(f.Name)}, f.rolloutOfTwo())
	f.join(names...)
	f.awaitDeployed(f.commit(1), names...)
	f.Eventually(f.doneInWaves).Should(Equal("3/3"))

	release := f.hold("writer-main")
	second := f.commit(2)
	f.awaitHeld("writer-main")
	f.Succeed(controllers["two"].Stop(0))
	release()
	f.awaitDeployed(second, "writer-main")
	f.Consistently(func() int { return f.updates("writer-one") }).WithTimeout(2*time.Second).Should(Equal(1), "nobody opened the next wave")

	f.Succeed(startShard(f.Context(), "two"))
	f.awaitDeployed(second, names...)
	f.expectUpdates(2, names...)
	f.Eventually(f.doneInWaves).Should(Equal("3/3"))
}

// doneInWaves returns how many Stacks of the StackRollout have its target.
func (f *fleet) doneInWaves() string {
	rollout := &autov1alpha1.StackRollout{}
	f.Get("waves", rollout)
	return rollout.Status.Done
}

func (f *fleet) loseOne() {
	f.Succeed(controllers["one"].Stop(0))
	waiting := f.versions("one-a", "one-b")
	second := f.commit(2)
	f.awaitDeployed(second, "main-a", "main-b", "two-a", "two-b", "waves-main", "waves-two")
	f.expectUpdates(2, "main-a", "main-b", "two-a", "two-b", "waves-main", "waves-two")
	f.expectUpdates(1, "one-a", "one-b", "waves-one")
	f.Expect(f.versions("one-a", "one-b")).To(Equal(waiting))
	f.Eventually(f.doneInWaves).Should(Equal("2/3"), "the Stack of the controller that is gone keeps its turn")

	f.Succeed(startShard(f.Context(), "one"))
	f.awaitDeployed(second, f.names...)
	f.expectUpdates(2, f.names...)
	f.awaitDeployed(second, inWaves...)
	f.expectUpdates(2, inWaves...)
	f.Eventually(f.doneInWaves).Should(Equal("3/3"))
	for _, name := range inWaves {
		f.Succeed(system.Client.Delete(f.Context(), &pulumiv1.Stack{ObjectMeta: f.Meta(name)}))
		f.AwaitAbsent(name, &pulumiv1.Stack{})
	}
}

// moveBusy moves a Stack to a controller that cannot reach the agent of the operation, so the old controller follows the operation to its
// end.
func (f *fleet) moveBusy() {
	release := f.hold("one-a")
	third := f.commit(3)
	f.awaitDeployed(third, "one-b", "two-a", "main-a")
	f.awaitHeld("one-a")
	f.move("one-a", "two")
	// The new controller shows the operation, and leaves it to the controller that has the agent.
	f.AwaitStack("one-a", func(stack *pulumiv1.Stack) bool { return stack.Status.CurrentUpdate != nil })
	current := f.Stack("one-a").Status.CurrentUpdate.Name
	f.Eventually(func() int { return followed("two", "one-a") }).Should(BeNumerically(">", 1))
	f.expectUpdates(3, "one-a")
	release()

	stack := f.AwaitStack("one-a", statuscheck.Ready(third.Digest))
	f.Expect(stack.Status.LastUpdate.Name).To(Equal(current))
	f.awaitOwned("one-a", "two")
	f.expectUpdates(3, f.names...)

	fourth := f.commit(4)
	f.awaitDeployed(fourth, f.names...)
	f.expectUpdates(4, f.names...)
	f.Expect(f.agentOf("one-a")).To(ContainSubstring("data-two"))
}

// updateByHand creates an Update that the main controller sees, for a Workspace of another controller.
func (f *fleet) updateByHand() {
	update := &autov1alpha1.Update{ObjectMeta: f.Meta("by-hand"), Spec: autov1alpha1.UpdateSpec{
		WorkspaceName: "two-a", StackName: "two-a", Type: autov1alpha1.UpdateTypePreview,
	}}
	f.Create(update)
	f.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(f.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(conditions.GetReason(update, autov1alpha1.UpdateProgressing)).To(Equal(autov1alpha1.UpdateWorkspaceNotFoundReason))
		g.Expect(conditions.GetMessage(update, autov1alpha1.UpdateProgressing)).To(ContainSubstring("give the update the labels of its workspace"))
	}).Should(Succeed())
	before := update.DeepCopy()
	metav1.SetMetaDataLabel(&update.ObjectMeta, shardKey, "two")
	f.Expect(system.Client.Patch(f.Context(), update, client.MergeFrom(before))).To(Succeed())
	f.Eventually(func(g Gomega) {
		g.Expect(system.Client.Get(f.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
		g.Expect(update.Status.State).To(Equal(autov1alpha1.UpdateStateSucceeded), update.Status.Message)
	}).Should(Succeed())
}

// moveFromLost moves an idle Stack from a controller that does not run to the main one.
func (f *fleet) moveFromLost() {
	f.Succeed(controllers["one"].Stop(0))
	f.move("one-b", "")
	f.awaitOwned("one-b", "")
	fifth := f.commit(5)
	f.awaitDeployed(fifth, "one-a", "one-b", "main-a", "main-b", "two-a", "two-b")
	f.expectUpdates(5, f.names...)
	f.Succeed(startShard(f.Context(), "one"))
	// The restarted controller still has the directory of a Workspace that no longer belongs to it.
	f.Expect(f.agentOf("one-b")).To(ContainSubstring(filepath.Join(system.Dir, "data") + "/"))
	sixth := f.commit(6)
	f.awaitDeployed(sixth, f.names...)
	f.expectUpdates(6, f.names...)
}

// moveRunning moves a Stack to a controller that can reach the agent, as every controller can reach a pod. The old controller ends
// meanwhile.
func (f *fleet) moveRunning() {
	f.Succeed(startShard(f.Context(), "three", "--storage-path="+filepath.Join(system.Dir, "data")))
	release := f.hold("main-a")
	seventh := f.commit(7)
	f.awaitHeld("main-a")
	f.Succeed(system.KillController())
	f.move("main-a", "three")
	f.awaitOwned("main-a", "three")
	f.Eventually(func() int { return followed("three", "main-a") }).Should(BeNumerically(">", 0))
	release()
	f.awaitDeployed(seventh, "main-a")
	f.Succeed(system.StartController(f.Context()))
	f.awaitDeployed(seventh, f.names...)
	f.expectUpdates(7, f.names...)
}

// hold keeps the next updates of the stack from running until release is called.
func (f *fleet) hold(name string) (release func()) {
	f.Helper()
	held := filepath.Join(commands, "held-"+name)
	f.Succeed(os.WriteFile(held, nil, 0o600))
	release = func() { _ = os.Remove(held) }
	f.Cleanup(release)
	return release
}

// awaitHeld waits until an update is held.
func (f *fleet) awaitHeld(name string) {
	f.Helper()
	f.Eventually(filepath.Join(commands, "held-"+name+".now")).Should(BeAnExistingFile())
}

func (f *fleet) agentOf(name string) string {
	f.Helper()
	workspace := &autov1alpha1.Workspace{}
	f.Get(name, workspace)
	return workspace.Status.Address
}

// Stack reads the Stack.
func (f *fleet) Stack(name string) *pulumiv1.Stack {
	f.Helper()
	stack := &pulumiv1.Stack{}
	f.Get(name, stack)
	return stack
}

// followed returns how often the controller of the shard decided to follow a running operation of the Stack.
func followed(shard, name string) (count int) {
	content, err := os.ReadFile(system.ShardLog(shard))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, `"controllerKind":"Stack"`) && strings.Contains(line, `"name":"`+name+`"`) && strings.Contains(line, `"action":"follow"`) {
			count++
		}
	}
	return count
}

// shardKey is the label by which Flux's controllers are sharded.
const shardKey = "sharding.fluxcd.io/key"

var (
	system    *localsystem.System
	artifacts *systemtest.Artifacts
	// commands is the directory of the CLI, which logs its calls in the file "calls", and waits while the file "held-STACK" exists.
	commands string
	// controllers are the controllers of the shards. The main controller, for all objects without the label, is that of the fixture.
	controllers = map[string]*supervise.Process{}
)

func TestMain(m *testing.M) {
	suite.LongPackage("three controllers share the Stacks of an API server")
	os.Exit(suite.EachPass(func() int { return run(m) }))
}

func run(m *testing.M) int {
	var err error
	if commands, err = os.MkdirTemp("", "shards-"); err == nil {
		defer os.RemoveAll(commands)
		err = writeCLI(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	artifacts = systemtest.ServeArtifacts()
	defer artifacts.Close()
	suite := systemtest.Suite{
		Options: localsystem.Options{
			Pulumi: filepath.Join(commands, "pulumi"),
			ControllerArgs: []string{
				"--feature-gates=ExternalArtifact=true", "--watch-label-selector=!" + shardKey, "--requeue-dependency=1s",
			},
		},
		SetUp: func(ctx context.Context, on *localsystem.System) error {
			system = on
			for _, name := range []string{"one", "two"} {
				if err := startShard(ctx, name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	return suite.Run(m)
}

func startShard(ctx context.Context, name string, flags ...string) (err error) {
	controllers[name], err = system.StartShard(ctx, name, shardKey+"="+name, flags...)
	return err
}

// writeCLI writes a script that wraps the CLI.
func writeCLI(ctx context.Context) error {
	cli, err := tools.Path(ctx, "pulumi", nil)
	if err != nil {
		return err
	}
	script := fmt.Sprintf(`#!/bin/sh
echo " $* " >> %[1]s/calls
case " $* " in *" up "*)
  for argument in "$@"; do
    if [ "$before" = --stack ]; then held=%[1]s/held-$argument; fi
    before=$argument
  done
  while [ -e "$held" ]; do touch "$held.now"; sleep 0.05; done;;
esac
exec %[2]s "$@"
`, commands, cli)
	return os.WriteFile(filepath.Join(commands, "pulumi"), []byte(script), 0o755)
}
