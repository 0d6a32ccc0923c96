package server

import (
	"bytes"
	"context"
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

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

func TestAnOperationRunsOnceHoweverOftenItIsStarted(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	g.Expect(together(20, func(int) error {
		_, err := a.StartOperation(t.Context(), request("a"))
		return err
	})).To(HaveEach(Succeed()))
	a.finish("a", &proto.Operation{State: succeeded})
	again, err := a.StartOperation(t.Context(), request("a"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.GetState()).To(Equal(succeeded))
	g.Expect(a.runner.calls).To(HaveLen(1))
}

func TestAnOperationThatWasAcceptedIsOnRecord(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	a := startAgent(t, dir)
	release := make(chan struct{})
	a.runner.run = func(context.Context, call) *proto.Operation {
		<-release
		return &proto.Operation{State: failed}
	}
	// What somebody put there before is not about this operation.
	record(t, dir, "a", map[string]string{resultFile: `{"id":"a","state":"OPERATION_STATE_SUCCEEDED"}`})
	_, err := a.StartOperation(t.Context(), request("a"))
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(filepath.Join(dir, "operations/a", stateFile))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(parseRecord("a", content)).To(HaveField("State", queued))
	g.Expect(filepath.Join(dir, "operations/a", resultFile)).NotTo(BeAnExistingFile())
	close(release)
	a.wait("a")
}

func TestOneOperationRunsAtATime(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	_, err := a.StartOperation(t.Context(), request("b"))
	g.Expect(err).To(MatchError(client.ErrBusy))
	g.Expect(err).To(MatchError(ContainSubstring("operation a is not done")))
	a.finish("a", &proto.Operation{State: succeeded})
	// Who saw the first end finds the agent free.
	_, err = a.StartOperation(t.Context(), request("b"))
	g.Expect(err).NotTo(HaveOccurred())
	a.finish("b", &proto.Operation{State: failed})
}

func TestOfManyStartedTogetherOneRuns(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	errs := together(20, func(i int) error {
		_, err := a.StartOperation(t.Context(), request(fmt.Sprint("op-", i)))
		return err
	})
	started := slices.Index(errs, nil)
	g.Expect(errs).To(ContainElement(BeNil()))
	g.Expect(slices.Delete(errs, started, started+1)).To(HaveEach(MatchError(client.ErrBusy)))
	a.finish(fmt.Sprint("op-", started), &proto.Operation{State: succeeded})
}

func TestTheStateOfAnOperationNeverGoesBack(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	started.progress(&proto.Operation{State: preparing, Message: "late"})
	g.Expect(a.GetOperation(t.Context(), "a")).To(And(
		HaveField("State", running), HaveField("Message", "late")))
	started.progress(&proto.Operation{State: succeeded, Message: "too early"})
	g.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("State", running))
	a.finish("a", &proto.Operation{State: succeeded})
}

func TestProgressReachesAWatcher(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	seen := make(chan *proto.Operation, 100)
	go func() { _, _ = a.WatchOperation(t.Context(), "a", func(o *proto.Operation) { seen <- o }) }()
	g.Eventually(seen).WithTimeout(patience).Should(Receive(HaveField("State", running)))
	started.progress(&proto.Operation{State: running, Message: "creating", ResourceChanges: map[string]int64{"create": 2}})
	g.Eventually(seen).WithTimeout(patience).Should(Receive(And(
		HaveField("Message", "creating"), HaveField("ResourceChanges", Equal(map[string]int64{"create": 2})))))
	a.finish("a", &proto.Operation{State: succeeded, ResourceChanges: map[string]int64{"create": 3}})
	g.Eventually(seen).WithTimeout(patience).Should(Receive(And(
		HaveField("State", succeeded), HaveField("ResourceChanges", Equal(map[string]int64{"create": 3})))))
}

func TestEveryWatcherSeesTheEnd(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	go func() {
		for i := range 1000 {
			started.progress(&proto.Operation{State: running, Message: fmt.Sprint("step ", i)})
		}
		a.runner.end <- &proto.Operation{State: succeeded}
	}()
	g.Expect(together(100, func(int) error {
		final, err := a.WatchOperation(t.Context(), "a", func(*proto.Operation) {})
		if err == nil && final.GetState() != succeeded {
			return fmt.Errorf("ended as %s", final.GetState())
		}
		return err
	})).To(HaveEach(Succeed()))
	// A watch of what is over is as good as one from the start.
	g.Expect(a.wait("a").GetState()).To(Equal(succeeded))
}

func TestAWatcherThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	stuck, release := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = a.WatchOperation(t.Context(), "a", func(*proto.Operation) {
			select {
			case <-stuck:
			default:
				close(stuck)
			}
			<-release
		})
	}()
	defer close(release)
	g.Eventually(stuck).WithTimeout(patience).Should(BeClosed())
	// More than any buffer on the way would take.
	for range 20_000 {
		started.progress(&proto.Operation{State: running, Message: strings.Repeat("x", 4<<10)})
	}
	g.Expect(a.finish("a", &proto.Operation{State: succeeded}).GetState()).To(Equal(succeeded))
}

func TestCancelEndsARunningOperation(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	for range 3 {
		_, err := a.CancelOperation(t.Context(), "a")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(a.wait("a")).To(HaveField("State", cancelled))
	g.Expect(a.CancelOperation(t.Context(), "a")).To(HaveField("State", cancelled))
	_, err := a.CancelOperation(t.Context(), "b")
	g.Expect(err).To(MatchError(client.ErrNotFound))
}

func TestAnOperationEndsAtItsTimeout(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	limited := request("a")
	limited.Timeout = durationpb.New(50 * time.Millisecond)
	_, err := a.StartOperation(t.Context(), limited)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.wait("a")).To(And(HaveField("State", failed), HaveField("Failure", proto.FailureReason_FAILURE_REASON_TIMEOUT)))
}

func TestForgetRemovesAFinalOperation(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	g.Expect(a.ForgetOperation(t.Context(), "a")).To(MatchError(client.ErrBusy))
	a.finish("a", &proto.Operation{State: succeeded})
	g.Expect(filepath.Join(a.dir, "operations", "a")).To(BeADirectory())
	for range 2 {
		g.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	}
	g.Expect(filepath.Join(a.dir, "operations", "a")).NotTo(BeAnExistingFile())
	_, err := a.GetOperation(t.Context(), "a")
	g.Expect(err).To(MatchError(client.ErrNotFound))
	_, err = a.WatchOperation(t.Context(), "a", func(*proto.Operation) {})
	g.Expect(err).To(MatchError(client.ErrNotFound))
}

func TestOutputsAreInTheResultOnly(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	final := a.finish("a", &proto.Operation{State: succeeded, Outputs: map[string]*proto.Output{
		"url": {Value: []byte(`"http://x"`)}, "token": {Value: []byte(`"s3cret"`), Secret: true},
	}})
	g.Expect(final.GetOutputs()).To(BeEmpty())
	result, err := a.GetOperation(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.GetOutputs()).To(HaveKeyWithValue("token", And(HaveField("Secret", true), HaveField("Value", []byte(`"s3cret"`)))))
	info, err := a.GetInfo(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.GetPulumiVersion()).To(Equal("v3.250.0"))
	g.Expect(info.GetOperations()).To(ConsistOf(And(HaveField("Id", "a"), HaveField("Outputs", BeEmpty()))))
}

func TestASecretOfTheRequestIsNeitherLoggedNorWritten(t *testing.T) {
	g := NewWithT(t)
	const canary = "c4n4ry-value"
	a := startAgent(t, t.TempDir())
	secret := request("a")
	secret.Env = []*proto.EnvironmentVariable{{Name: "TOKEN", Secret: true, Value: &proto.EnvironmentVariable_Text{Text: canary}}}
	secret.Config = []*proto.ConfigItem{{Key: "k", Secret: true, Value: &proto.ConfigItem_Text{Text: canary}}}
	a.runner.run = func(context.Context, call) *proto.Operation { panic(canary) }
	_, err := a.StartOperation(t.Context(), secret)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.wait("a").GetState()).To(Equal(isInterrupted))
	secret.Id = "not valid"
	_, err = a.StartOperation(t.Context(), secret)
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
	g := NewWithT(t)
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.runner.run = func(context.Context, call) *proto.Operation { return &proto.Operation{State: succeeded} }
	for i := range maxFinishedOperations + 5 {
		id := fmt.Sprint("op-", i)
		_, err := a.StartOperation(t.Context(), request(id))
		g.Expect(err).NotTo(HaveOccurred())
		a.wait(id)
	}
	stored := func() []string {
		entries, err := os.ReadDir(filepath.Join(dir, "operations"))
		g.Expect(err).NotTo(HaveOccurred())
		var names []string
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return names
	}
	g.Eventually(stored).WithTimeout(patience).Should(And(HaveLen(maxFinishedOperations), Not(ContainElement("op-4")), ContainElement("op-5")))
	_, err := a.GetOperation(t.Context(), "op-0")
	g.Expect(err).To(MatchError(client.ErrNotFound))
}

func TestAResultThatCannotBeWrittenIsStillReported(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	// A directory in place of the file: no rename can replace it.
	g.Expect(os.MkdirAll(filepath.Join(a.dir, "operations/a", resultFile, "x"), 0o700)).To(Succeed())
	a.finish("a", &proto.Operation{State: succeeded, Outputs: map[string]*proto.Output{"o": {Value: []byte("1")}}})
	g.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", HaveKey("o")))
	g.Expect(a.log.String()).To(ContainSubstring("cannot record the result"))
}

func TestWhatTheRunnerReportsIsMadeFitToSend(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	started := a.start("a")
	started.progress(&proto.Operation{State: running, Message: "broken \xff text", ResourceChanges: map[string]int64{"\xff": 1, "same": 2}})
	g.Expect(a.GetOperation(t.Context(), "a")).To(And(
		HaveField("Message", "broken \uFFFD text"), HaveField("ResourceChanges", Equal(map[string]int64{"same": 2}))))
	final := a.finish("a", &proto.Operation{State: succeeded, Message: strings.Repeat("ä", 8<<10), Outputs: map[string]*proto.Output{
		"\xff": {Value: []byte("1")}, "good": {Value: []byte("2")},
	}})
	g.Expect(len(final.GetMessage())).To(BeNumerically("<=", maxOperationMessage))
	g.Expect(final.GetMessage()).To(HaveSuffix("ä…"))
	g.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", And(HaveLen(1), HaveKey("good"))))
}

func TestOutputsThatAreTooLargeAreLeftOut(t *testing.T) {
	g := NewWithT(t)
	a := startAgent(t, t.TempDir())
	a.start("a")
	large := make([]byte, maxOutputsSize)
	final := a.finish("a", &proto.Operation{State: succeeded, Outputs: map[string]*proto.Output{"large": {Value: large}}})
	g.Expect(final.GetMessage()).To(ContainSubstring("the outputs are left out"))
	g.Expect(a.GetOperation(t.Context(), "a")).To(HaveField("Outputs", BeEmpty()))
	// The largest that fit arrive.
	a.start("b")
	a.finish("b", &proto.Operation{State: succeeded, Outputs: map[string]*proto.Output{"l": {Value: large[:maxOutputsSize-1]}}})
	g.Expect(a.GetOperation(t.Context(), "b")).To(HaveField("Outputs", HaveKey("l")))
}

func TestAStoppingAgentRecordsHowTheOperationEnded(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.start("a")
	ended := make(chan *proto.Operation, 1)
	watching := make(chan struct{}, 100)
	go func() {
		final, _ := a.WatchOperation(t.Context(), "a", func(*proto.Operation) { watching <- struct{}{} })
		ended <- final
	}()
	g.Eventually(watching).WithTimeout(patience).Should(Receive())
	g.Expect(a.stop()).To(Succeed())
	g.Eventually(ended).WithTimeout(patience).Should(Receive(HaveField("State", isInterrupted)))

	next := startAgent(t, dir)
	g.Expect(next.GetOperation(t.Context(), "a")).To(And(HaveField("State", isInterrupted), HaveField("Message", "the agent is shutting down")))
}

func TestRequestsThatCanNeverWorkAreRefused(t *testing.T) {
	a := startAgent(t, t.TempDir())
	tests := []struct {
		name    string
		change  func(*proto.StartOperationRequest)
		message string
	}{
		{"no id", func(r *proto.StartOperationRequest) { r.Id = "" }, "id"},
		{"id with a path", func(r *proto.StartOperationRequest) { r.Id = "../../etc" }, "id"},
		{"id of dots", func(r *proto.StartOperationRequest) { r.Id = ".." }, "id"},
		{"long id", func(r *proto.StartOperationRequest) { r.Id = strings.Repeat("a", 65) }, "id"},
		{"no kind", func(r *proto.StartOperationRequest) { r.Kind = 0 }, "kind"},
		{"unknown kind", func(r *proto.StartOperationRequest) { r.Kind = 99 }, "kind"},
		{"no stack", func(r *proto.StartOperationRequest) { r.Stack = "" }, "stack"},
		{"negative timeout", func(r *proto.StartOperationRequest) { r.Timeout = durationpb.New(-1) }, "timeout"},
		{"negative grace", func(r *proto.StartOperationRequest) { r.CancelGrace = durationpb.New(-1) }, "cancel_grace"},
		{"negative parallel", func(r *proto.StartOperationRequest) { r.Options = &proto.OperationOptions{Parallel: -1} }, "parallel"},
		{"no source", func(r *proto.StartOperationRequest) { r.Source = nil }, "source"},
		{"artifact without digest", func(r *proto.StartOperationRequest) {
			r.Source = &proto.StartOperationRequest_Artifact{Artifact: &proto.ArtifactSource{}}
		}, "digest"},
		{"project without name", func(r *proto.StartOperationRequest) { r.GetProject().Name = "" }, "name"},
		{"update without program", func(r *proto.StartOperationRequest) { r.Kind = proto.OperationKind_OPERATION_KIND_UP }, "program"},
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
