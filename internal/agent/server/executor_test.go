package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

func TestAnOperationRunsOnceHoweverOftenItIsStarted(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.Expect(together(20, func(int) error {
		_, err := a.StartOperation(t.Context(), request("a"))
		return err
	})).To(HaveEach(Succeed()))
	a.finish("a", &agentpb.Operation{State: succeeded})
	again, err := a.StartOperation(t.Context(), request("a"))
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(again.GetState()).To(Equal(succeeded))
	a.Expect(a.runner.calls).To(HaveLen(1))
}

func TestAnOperationThatWasAcceptedIsOnRecord(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	release := make(chan struct{})
	a.runner.run = func(context.Context, call) *agentpb.Operation {
		<-release
		return &agentpb.Operation{State: failed}
	}
	// A record that was there before does not count as a record of this operation.
	record(t, dir, "a", map[string]string{recordFile: `{"id":"a","state":"OPERATION_STATE_SUCCEEDED"}`})
	a.accept(request("a"))
	content, err := os.ReadFile(filepath.Join(dir, "operations/a", recordFile))
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(parseRecord("a", content)).To(HaveField("State", queued))
	close(release)
	a.wait("a")
}

func TestOneOperationRunsAtATime(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	_, err := a.StartOperation(t.Context(), request("b"))
	a.Expect(err).To(MatchError(client.ErrBusy))
	a.Expect(err).To(MatchError(ContainSubstring("operation a is not done")))
	a.finish("a", &agentpb.Operation{State: succeeded})
	// Once a client has seen the first operation end, the agent is free.
	a.accept(request("b"))
	a.finish("b", &agentpb.Operation{State: failed})
}

func TestOfManyStartedTogetherOneRuns(t *testing.T) {
	a := startAgent(t, t.TempDir())
	errs := together(20, func(i int) error {
		_, err := a.StartOperation(t.Context(), request(fmt.Sprint("op-", i)))
		return err
	})
	started := slices.Index(errs, nil)
	a.Expect(errs).To(ContainElement(BeNil()))
	a.Expect(slices.Delete(errs, started, started+1)).To(HaveEach(MatchError(client.ErrBusy)))
	a.finish(fmt.Sprint("op-", started), &agentpb.Operation{State: succeeded})
}

func TestTheStateOfAnOperationNeverGoesBack(t *testing.T) {
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	started.progress(&agentpb.Operation{State: preparing, Message: "late"})
	a.Expect(a.GetOperation(t.Context(), "a")).To(And(
		HaveField("State", running), HaveField("Message", "late")))
	started.progress(&agentpb.Operation{State: succeeded, Message: "too early"})
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("State", running))
	a.finish("a", &agentpb.Operation{State: succeeded})
}

func TestProgressReachesAWatcher(t *testing.T) {
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	seen := make(chan *agentpb.Operation, 100)
	go func() { _, _ = a.WatchOperation(t.Context(), "a", func(o *agentpb.Operation) { seen <- o }) }()
	a.Eventually(seen).WithTimeout(patience).Should(Receive(HaveField("State", running)))
	started.progress(&agentpb.Operation{State: running, Message: "creating", ResourceChanges: map[string]int64{"create": 2}})
	a.Eventually(seen).WithTimeout(patience).Should(Receive(And(
		HaveField("Message", "creating"), HaveField("ResourceChanges", Equal(map[string]int64{"create": 2})))))
	a.finish("a", &agentpb.Operation{State: succeeded, ResourceChanges: map[string]int64{"create": 3}})
	a.Eventually(seen).WithTimeout(patience).Should(Receive(And(
		HaveField("State", succeeded), HaveField("ResourceChanges", Equal(map[string]int64{"create": 3})))))
}

func TestEveryWatcherSeesTheEnd(t *testing.T) {
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	go func() {
		for i := range 1000 {
			started.progress(&agentpb.Operation{State: running, Message: fmt.Sprint("step ", i)})
		}
		a.runner.end <- &agentpb.Operation{State: succeeded}
	}()
	a.Expect(together(100, func(int) error {
		final, err := a.WatchOperation(t.Context(), "a", func(*agentpb.Operation) {})
		if err == nil && final.GetState() != succeeded {
			return fmt.Errorf("ended as %s", final.GetState())
		}
		return err
	})).To(HaveEach(Succeed()))
	// A watch of an operation that has ended returns the same as a watch from the start.
	a.Expect(a.wait("a").GetState()).To(Equal(succeeded))
}

func TestAWatcherThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	stuck, release := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = a.WatchOperation(t.Context(), "a", func(*agentpb.Operation) {
			select {
			case <-stuck:
			default:
				close(stuck)
			}
			<-release
		})
	}()
	defer close(release)
	a.Eventually(stuck).WithTimeout(patience).Should(BeClosed())
	// This is more than the buffers between the agent and the watcher can hold.
	for range 20_000 {
		started.progress(&agentpb.Operation{State: running, Message: strings.Repeat("x", 4<<10)})
	}
	a.Expect(a.finish("a", &agentpb.Operation{State: succeeded}).GetState()).To(Equal(succeeded))
}

func TestCancelEndsARunningOperation(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	for range 3 {
		a.Expect(a.CancelOperation(t.Context(), "a")).Error().NotTo(HaveOccurred())
	}
	a.Expect(a.wait("a")).To(HaveField("State", cancelled))
	a.Expect(a.CancelOperation(t.Context(), "a")).To(HaveField("State", cancelled))
	a.Expect(a.CancelOperation(t.Context(), "b")).Error().To(MatchError(client.ErrNotFound))
}

func TestAnOperationEndsAtItsTimeout(t *testing.T) {
	a := startAgent(t, t.TempDir())
	limited := request("a")
	limited.Timeout = durationpb.New(50 * time.Millisecond)
	a.accept(limited)
	a.Expect(a.wait("a")).To(And(HaveField("State", failed), HaveField("Failure", agentpb.FailureReason_FAILURE_REASON_TIMEOUT)))
}

func TestForgetRemovesAFinalOperation(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	a.Expect(a.ForgetOperation(t.Context(), "a")).To(MatchError(client.ErrBusy))
	a.finish("a", &agentpb.Operation{State: succeeded})
	a.Expect(filepath.Join(a.dir, "operations", "a")).To(BeADirectory())
	for range 2 {
		a.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	}
	a.Expect(filepath.Join(a.dir, "operations", "a")).NotTo(BeAnExistingFile())
	a.Expect(a.GetOperation(t.Context(), "a")).Error().To(MatchError(client.ErrNotFound))
	a.Expect(a.WatchOperation(t.Context(), "a", func(*agentpb.Operation) {})).Error().To(MatchError(client.ErrNotFound))
}

func TestOutputsAreInTheResultOnly(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	final := a.finish("a", &agentpb.Operation{State: succeeded, Outputs: map[string]*agentpb.Output{
		"url": {Value: []byte(`"http://x"`)}, "token": {Value: []byte(`"s3cret"`), Secret: true},
	}})
	a.Expect(final.GetOutputs()).To(BeEmpty())
	result, err := a.GetOperation(t.Context(), "a")
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(result.GetOutputs()).To(HaveKeyWithValue("token", And(HaveField("Secret", true), HaveField("Value", []byte(`"s3cret"`)))))
	info, err := a.GetInfo(t.Context())
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(info.GetPulumiVersion()).To(Equal("v3.250.0"))
	a.Expect(info.GetOperations()).To(ConsistOf(And(HaveField("Id", "a"), HaveField("Outputs", BeEmpty()))))
}

func TestASecretOfTheRequestIsNeitherLoggedNorWritten(t *testing.T) {
	g := NewWithT(t)
	const canary = "c4n4ry-value"
	a := startAgent(t, t.TempDir())
	secret := request("a")
	secret.Env = []*agentpb.EnvironmentVariable{{Name: "TOKEN", Secret: true, Value: &agentpb.EnvironmentVariable_Text{Text: canary}}}
	secret.Config = []*agentpb.ConfigItem{{Key: "k", Secret: true, Value: &agentpb.ConfigItem_Text{Text: canary}}}
	a.runner.run = func(context.Context, call) *agentpb.Operation { panic(canary) }
	a.accept(secret)
	g.Expect(a.wait("a").GetState()).To(Equal(isInterrupted))
	secret.Id = "not valid"
	_, err := a.StartOperation(t.Context(), secret)
	g.Expect(err).To(MatchError(client.ErrInvalid))
	g.Expect(err.Error()).NotTo(ContainSubstring(canary))
	g.Expect(a.log.String()).To(And(ContainSubstring("panicked"), Not(ContainSubstring(canary))))
	err = filepath.WalkDir(a.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		g.Expect(bytes.Contains(content, []byte(canary))).To(BeFalse(), path)
		return err
	})
	g.Expect(err).NotTo(HaveOccurred())
}

func TestTheLastFinishedOperationsAreKept(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.runner.run = func(context.Context, call) *agentpb.Operation { return &agentpb.Operation{State: succeeded} }
	for i := range maxFinishedOperations + 5 {
		id := fmt.Sprint("op-", i)
		a.accept(request(id))
		a.wait(id)
	}
	stored := func() []string {
		entries, err := os.ReadDir(filepath.Join(dir, "operations"))
		a.Expect(err).NotTo(HaveOccurred())
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names
	}
	a.Eventually(stored).WithTimeout(patience).Should(And(HaveLen(maxFinishedOperations), Not(ContainElement("op-4")), ContainElement("op-5")))
	a.Expect(a.GetOperation(t.Context(), "op-0")).Error().To(MatchError(client.ErrNotFound))
}

func TestAResultThatCannotBeWrittenIsStillReported(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	// There is a directory instead of the file, which a rename cannot replace.
	path := filepath.Join(a.dir, "operations/a", recordFile)
	a.Expect(errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700))).To(Succeed())
	a.finish("a", &agentpb.Operation{State: succeeded, Outputs: map[string]*agentpb.Output{"o": {Value: []byte("1")}}})
	a.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", HaveKey("o")))
	a.Expect(a.log.String()).To(ContainSubstring("cannot record the result"))
}

func TestAStoppingAgentRecordsHowTheOperationEnded(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.start("a")
	ended := make(chan *agentpb.Operation, 1)
	watching := make(chan struct{}, 100)
	go func() {
		final, _ := a.WatchOperation(t.Context(), "a", func(*agentpb.Operation) { watching <- struct{}{} })
		ended <- final
	}()
	a.Eventually(watching).WithTimeout(patience).Should(Receive())
	a.Expect(a.stop()).To(Succeed())
	a.Eventually(ended).WithTimeout(patience).Should(Receive(HaveField("State", isInterrupted)))

	next := startAgent(t, dir)
	a.Expect(next.GetOperation(t.Context(), "a")).To(And(HaveField("State", isInterrupted), HaveField("Message", "the agent is shutting down")))
}

func TestRequestsThatCanNeverWorkAreRefused(t *testing.T) {
	a := startAgent(t, t.TempDir())
	tests := []struct {
		name    string
		change  func(*agentpb.StartOperationRequest)
		message string
	}{
		{"no id", func(r *agentpb.StartOperationRequest) { r.Id = "" }, "id"},
		{"id with a path", func(r *agentpb.StartOperationRequest) { r.Id = "../../etc" }, "id"},
		{"id of dots", func(r *agentpb.StartOperationRequest) { r.Id = ".." }, "id"},
		{"long id", func(r *agentpb.StartOperationRequest) { r.Id = strings.Repeat("a", 65) }, "id"},
		{"no kind", func(r *agentpb.StartOperationRequest) { r.Kind = 0 }, "kind"},
		{"unknown kind", func(r *agentpb.StartOperationRequest) { r.Kind = 99 }, "kind"},
		{"no stack", func(r *agentpb.StartOperationRequest) { r.Stack = "" }, "stack"},
		{"negative timeout", func(r *agentpb.StartOperationRequest) { r.Timeout = durationpb.New(-1) }, "timeout"},
		{"negative grace", func(r *agentpb.StartOperationRequest) { r.CancelGrace = durationpb.New(-1) }, "cancel_grace"},
		{"negative parallel", func(r *agentpb.StartOperationRequest) { r.Options = &agentpb.OperationOptions{Parallel: -1} }, "parallel"},
		{"no source", func(r *agentpb.StartOperationRequest) { r.Source = nil }, "source"},
		{"artifact without digest", func(r *agentpb.StartOperationRequest) {
			r.Source = &agentpb.StartOperationRequest_Artifact{Artifact: &agentpb.ArtifactSource{}}
		}, "digest"},
		{"project without name", func(r *agentpb.StartOperationRequest) { r.GetProject().Name = "" }, "name"},
		{"update without program", func(r *agentpb.StartOperationRequest) { r.Kind = agentpb.OperationKind_OPERATION_KIND_UP }, "program"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			changed := request("a")
			tt.change(changed)
			_, err := a.StartOperation(t.Context(), changed)
			g.Expect(err).To(MatchError(client.ErrInvalid))
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
		})
	}
	NewWithT(t).Expect(a.runner.calls).To(BeEmpty())
}
