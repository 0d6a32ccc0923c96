package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/client"
)

// record writes the files of an operation as an earlier agent, or a user program, may have left them.
func record(t *testing.T, dir, id string, files map[string]string) {
	t.Helper()
	operation := filepath.Join(dir, "operations", id)
	if err := os.MkdirAll(operation, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(operation, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestANewAgentKnowsWhatAnEarlierOneLeft(t *testing.T) {
	const unreadable = "the record of the operation is not readable; its outcome is not known"
	good := `{"id":"a","kind":"OPERATION_KIND_UP","state":"OPERATION_STATE_SUCCEEDED","outputs":{"o":{"value":"MQ=="}}}`
	in := func(state string) string { return fmt.Sprintf(`{"id":"a","state":"OPERATION_STATE_%s"}`, state) }
	tests := []struct {
		name    string
		record  string
		state   agentpb.OperationState
		message string
	}{
		{"succeeded", good, succeeded, ""},
		{"failed", in("FAILED"), failed, ""},
		{"queued", in("QUEUED"), isInterrupted, "the agent ended before pulumi ran; no resource was changed"},
		{"preparing", in("PREPARING"), isInterrupted, "the agent ended before pulumi ran; no resource was changed"},
		{"running", in("RUNNING"), isInterrupted, "the agent ended while pulumi ran, perhaps for lack of memory; the outcome is not known"},
		{"half", good[:30], isInterrupted, unreadable},
		{"garbage", "\x00\xff", isInterrupted, unreadable},
		{"empty", "", isInterrupted, unreadable},
		{"another operation", strings.Replace(good, `"a"`, `"b"`, 1), isInterrupted, unreadable},
		{"unknown state", `{"id":"a","state":99}`, isInterrupted, unreadable},
		{"too large", in("FAILED") + strings.Repeat(" ", maxRecordSize), isInterrupted, unreadable},
		{"field of a newer agent", `{"id":"a","state":"OPERATION_STATE_FAILED","new":1}`, failed, ""},
		{"long message", `{"id":"a","state":"OPERATION_STATE_FAILED","message":"` + strings.Repeat("m", 5000) + `"}`, failed, strings.Repeat("m", agentpb.MaxText-3) + "…"},
		{"more than the controller accepts", `{"id":"a","state":"OPERATION_STATE_FAILED","message":"` + strings.Repeat("m", agentpb.MaxOperationSize) + `"}`, isInterrupted, unreadable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			record(t, dir, "a", map[string]string{recordFile: tt.record})
			for restart := range 2 {
				a := startAgent(t, dir)
				known, err := a.GetOperation(t.Context(), "a")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(known.GetState()).To(Equal(tt.state), "start %d", restart)
				g.Expect(known.GetMessage()).To(Equal(tt.message))
				g.Expect(len(known.GetOutputs()) > 0).To(Equal(tt.state == succeeded))
				// Starting the operation again changes nothing.
				again, err := a.StartOperation(t.Context(), request("a"))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(again.GetState()).To(Equal(tt.state))
				g.Expect(a.runner.calls).To(BeEmpty())
				g.Expect(a.stop()).To(Succeed())
			}
		})
	}
}

func TestWhatIsNoRecordIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	g.Expect(os.WriteFile(outside, []byte(`{"id":"link","state":"OPERATION_STATE_SUCCEEDED"}`), 0o600)).To(Succeed())
	record(t, dir, "no-record", nil)
	record(t, dir, "..evil", map[string]string{recordFile: "{}"})
	for id, make := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink(outside, path) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"loop":      func(path string) error { return os.Symlink(recordFile, path) },
	} {
		record(t, dir, id, nil)
		g.Expect(make(filepath.Join(dir, "operations", id, recordFile))).To(Succeed())
	}
	g.Expect(os.Symlink(outside, filepath.Join(dir, "operations", "linked-dir"))).To(Succeed())
	// This writer could write to the pipe at any time.
	writer, err := os.OpenFile(filepath.Join(dir, "operations/pipe", recordFile), os.O_RDWR, 0)
	g.Expect(err).NotTo(HaveOccurred())
	defer writer.Close()
	a := startAgent(t, dir)
	info, err := a.GetInfo(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	var ids []string
	for _, operation := range info.GetOperations() {
		ids = append(ids, operation.GetId())
		g.Expect(operation.GetState()).To(Equal(isInterrupted))
	}
	g.Expect(ids).To(ConsistOf("link", "pipe", "directory", "loop"))
	g.Expect(outside).To(BeARegularFile())
	for _, id := range ids {
		g.Expect(a.ForgetOperation(t.Context(), id)).To(Succeed())
	}
	g.Expect(os.ReadFile(outside)).To(ContainSubstring("SUCCEEDED"))
	a.start("no-record")
	a.finish("no-record", &agentpb.Operation{State: failed})
}

func TestALostResultIsAnInterruption(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	a.finish("a", &agentpb.Operation{State: succeeded})
	path := filepath.Join(a.dir, "operations/a", recordFile)
	lost := And(HaveField("State", isInterrupted), HaveField("Message", "the operation succeeded, but its result was lost"))
	a.Expect(os.WriteFile(path, []byte(`{"id":"a","state":"OPERATION_STATE_RUNNING"}`), 0o600)).To(Succeed())
	a.Expect(a.GetOperation(t.Context(), "a")).To(lost)
	a.Expect(os.Remove(path)).To(Succeed())
	a.Expect(a.GetOperation(t.Context(), "a")).To(lost)
}

func TestRecordsAreForTheirOwnerOnly(t *testing.T) {
	a := startAgent(t, t.TempDir())
	a.start("a")
	a.finish("a", &agentpb.Operation{State: succeeded})
	for name, mode := range map[string]os.FileMode{
		"operations": 0o700, "operations/a": 0o700, "operations/a/" + recordFile: 0o600,
	} {
		info, err := os.Stat(filepath.Join(a.dir, name))
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(info.Mode().Perm()).To(Equal(mode), name)
	}
	entries, err := os.ReadDir(filepath.Join(a.dir, "operations/a"))
	a.Expect(err).NotTo(HaveOccurred())
	a.Expect(entries).To(HaveLen(1))
}

func TestAForgottenOperationStaysForgotten(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, dir)
	a.start("a")
	a.finish("a", &agentpb.Operation{State: succeeded})
	a.Expect(a.ForgetOperation(t.Context(), "a")).To(Succeed())
	a.Expect(a.stop()).To(Succeed())
	a.Expect(startAgent(t, dir).GetOperation(t.Context(), "a")).Error().To(MatchError(client.ErrNotFound))
}

func FuzzParseRecord(f *testing.F) {
	seed, _ := protojson.Marshal(&agentpb.Operation{
		Id: "a", Kind: agentpb.OperationKind_OPERATION_KIND_UP, State: succeeded, StartTime: timestamppb.Now(),
		ResourceChanges: map[string]int64{"create": 1}, Message: "done", Outputs: map[string]*agentpb.Output{"o": {Value: []byte("1"), Secret: true}},
		LockHolder: &agentpb.LockHolder{User: "u", Host: "h", Pid: 1}, Project: &agentpb.ProjectSource{Name: "p", Runtime: "r"},
	})
	f.Add("a", seed)
	f.Add("a", []byte(`{"id":"a","state":99}`))
	f.Add("a", []byte(`{"id":"a","message":"\ud800"}`))
	f.Add("b", []byte(`{"id":"a"}`))
	f.Add("", []byte(strings.Repeat(`{"outputs":`, 1000)))
	f.Fuzz(func(t *testing.T, id string, content []byte) {
		operation, err := parseRecord(id, content)
		if err != nil {
			return
		}
		if operation.GetId() != id || len(operation.GetMessage()) > agentpb.MaxOperationSize {
			t.Fatalf("accepted %v", operation)
		}
		again, err := protojson.Marshal(operation)
		if err != nil {
			t.Fatalf("accepted what cannot be written: %v", err)
		}
		if _, err := parseRecord(id, again); err != nil {
			t.Fatalf("wrote what is not accepted: %v", err)
		}
	})
}
