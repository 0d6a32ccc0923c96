package automation_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/automation"
	"github.com/stack-controller/stack-controller/internal/agent/proto"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	up      = proto.OperationKind_OPERATION_KIND_UP
	preview = proto.OperationKind_OPERATION_KIND_PREVIEW
	refresh = proto.OperationKind_OPERATION_KIND_REFRESH
	destroy = proto.OperationKind_OPERATION_KIND_DESTROY

	succeeded   = proto.OperationState_OPERATION_STATE_SUCCEEDED
	failed      = proto.OperationState_OPERATION_STATE_FAILED
	cancelled   = proto.OperationState_OPERATION_STATE_CANCELLED
	interrupted = proto.OperationState_OPERATION_STATE_INTERRUPTED
)

// passphrase is that of every stack in these tests; it must not show anywhere.
const passphrase = "canary-passphrase-7f3a"

// wrapper is the CLI of the tests: it notes the command line that the kernel has of it, then becomes the real CLI.
const wrapper = `#!/bin/sh
tr '\0' ' ' < /proc/$$/cmdline >> %[1]q
echo >> %[1]q
exec %[2]q "$@"
`

// fixture is a Runner with the real CLI, a project, and a backend on the disk.
type fixture struct {
	*WithT
	t                    testing.TB
	home, state, project string
	commands             string
	options              automation.Options
	runner               *automation.Runner
	logged               *lockedBuilder
}

func newFixture(t testing.TB, change ...func(*automation.Options)) *fixture {
	t.Helper()
	// pulumi waits more than it works.
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	dir := t.TempDir()
	f := &fixture{
		WithT: NewWithT(t), t: t, logged: &lockedBuilder{},
		home: filepath.Join(dir, "home"), state: filepath.Join(dir, "state"), project: filepath.Join(dir, "project"),
		commands: filepath.Join(dir, "commands"),
	}
	cli := filepath.Join(dir, "bin", "pulumi")
	for _, dir := range []string{f.home, f.state, f.project, filepath.Dir(cli)} {
		f.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	f.Expect(os.WriteFile(cli, fmt.Appendf(nil, wrapper, f.commands, tool(t, "pulumi")), 0o755)).To(Succeed())
	f.Expect(os.Symlink(tool(t, "pulumi-language-yaml"), filepath.Join(filepath.Dir(cli), "pulumi-language-yaml"))).To(Succeed())
	f.options = automation.Options{Pulumi: cli, Home: f.home, Log: f.logger()}
	for _, change := range change {
		change(&f.options)
	}
	f.restart()
	return f
}

// restart replaces the Runner, as a restart of the agent does.
func (f *fixture) restart() {
	f.t.Helper()
	runner, err := automation.New(f.t.Context(), f.options)
	f.Expect(err).NotTo(HaveOccurred())
	f.runner = runner
	f.Expect(os.RemoveAll(f.commands)).To(Succeed())
}

func (f *fixture) logger() logr.Logger {
	return funcr.New(func(prefix, args string) { fmt.Fprintln(f.logged, prefix, args) }, funcr.Options{Verbosity: 9})
}

// write writes a file of the project.
func (f *fixture) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.project, name)
	f.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	f.Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
}

// request is a request for stack dev, created when it is missing, with the backend and the passphrase of the fixture.
func (f *fixture) request(kind proto.OperationKind, change ...func(*proto.StartOperationRequest)) *proto.StartOperationRequest {
	request := &proto.StartOperationRequest{
		Id: "test", Kind: kind, Stack: "dev", CreateStack: true,
		Source:  &proto.StartOperationRequest_Local{Local: &proto.LocalSource{}},
		Options: &proto.OperationOptions{},
		Env: []*proto.EnvironmentVariable{
			variable("PULUMI_BACKEND_URL", "file://"+f.state, false),
			variable("PULUMI_CONFIG_PASSPHRASE", passphrase, true),
		},
	}
	for _, change := range change {
		change(request)
	}
	return request
}

// run runs an operation of the kind to its end.
func (f *fixture) run(kind proto.OperationKind, change ...func(*proto.StartOperationRequest)) *proto.Operation {
	f.t.Helper()
	return f.runContext(f.t.Context(), kind, change...)
}

func (f *fixture) runContext(ctx context.Context, kind proto.OperationKind, change ...func(*proto.StartOperationRequest)) *proto.Operation {
	f.t.Helper()
	operation := f.runner.Run(ctx, f.request(kind, change...), f.project, nil)
	f.Expect(operation.GetState().Final()).To(BeTrue())
	f.Expect(len(operation.GetMessage())).To(BeNumerically("<=", 4<<10))
	return operation
}

// processes returns the command lines of the CLI since the last call, without the program's name.
func (f *fixture) processes() []string {
	f.t.Helper()
	content, err := os.ReadFile(f.commands)
	if !os.IsNotExist(err) {
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(os.Remove(f.commands)).To(Succeed())
	}
	var commands []string
	for line := range strings.Lines(string(content)) {
		_, command, _ := strings.Cut(line, "--non-interactive ")
		commands = append(commands, strings.TrimSpace(command))
	}
	return commands
}

func variable(name, value string, secret bool) *proto.EnvironmentVariable {
	return &proto.EnvironmentVariable{Name: name, Secret: secret, Value: &proto.EnvironmentVariable_Text{Text: value}}
}

func withEnv(name, value string, secret bool) func(*proto.StartOperationRequest) {
	return func(request *proto.StartOperationRequest) {
		request.Env = append(request.Env, variable(name, value, secret))
	}
}

func withoutEnv(name string) func(*proto.StartOperationRequest) {
	return func(request *proto.StartOperationRequest) {
		var env []*proto.EnvironmentVariable
		for _, one := range request.GetEnv() {
			if one.GetName() != name {
				env = append(env, one)
			}
		}
		request.Env = env
	}
}

func withConfig(items ...*proto.ConfigItem) func(*proto.StartOperationRequest) {
	return func(request *proto.StartOperationRequest) { request.Config = append(request.Config, items...) }
}

func withGrace(grace time.Duration) func(*proto.StartOperationRequest) {
	return func(request *proto.StartOperationRequest) { request.CancelGrace = durationpb.New(grace) }
}

func text(key, value string) *proto.ConfigItem {
	return &proto.ConfigItem{Key: key, Value: &proto.ConfigItem_Text{Text: value}}
}

func secret(key, value string) *proto.ConfigItem {
	return &proto.ConfigItem{Key: key, Secret: true, Value: &proto.ConfigItem_Text{Text: value}}
}

func object(key, value string) *proto.ConfigItem {
	return &proto.ConfigItem{Key: key, Value: &proto.ConfigItem_Json{Json: value}}
}

// tool returns the path of a real program, which is built once for the machine.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := tools.Path(context.Background(), name, func(progress string) { t.Log(progress) })
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// lockedBuilder is a strings.Builder for concurrent use.
type lockedBuilder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
