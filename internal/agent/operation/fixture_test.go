package operation_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	up      = agentpb.OperationKind_OPERATION_KIND_UP
	preview = agentpb.OperationKind_OPERATION_KIND_PREVIEW
	refresh = agentpb.OperationKind_OPERATION_KIND_REFRESH
	destroy = agentpb.OperationKind_OPERATION_KIND_DESTROY

	succeeded   = agentpb.OperationState_OPERATION_STATE_SUCCEEDED
	failed      = agentpb.OperationState_OPERATION_STATE_FAILED
	cancelled   = agentpb.OperationState_OPERATION_STATE_CANCELLED
	interrupted = agentpb.OperationState_OPERATION_STATE_INTERRUPTED
)

// passphrase is the passphrase of every stack in these tests; it must not show anywhere.
const passphrase = "canary-passphrase-7f3a"

// wrapper is the CLI of the tests: it records its command line as the kernel has it, and then becomes the real CLI. It answers `version`
// itself, because the version is always the same, so that no test has to wait for the real CLI.
const wrapper = `#!/bin/sh
tr '\0' ' ' < /proc/$$/cmdline >> %[1]q
echo >> %[1]q
[ "$2" = version ] && exec echo %[3]q
exec %[2]q "$@"
`

// versions are the versions of the CLIs, as they report them.
var versions = map[string]func() string{
	"pulumi": sync.OnceValue(func() string { return versionOf("pulumi") }), "pulumi-oldest": sync.OnceValue(func() string { return versionOf("pulumi-oldest") }),
}

func versionOf(name string) string {
	path, err := tools.Path(context.Background(), name, func(string) {})
	if err != nil {
		return err.Error()
	}
	output, _ := exec.Command(path, "version").Output()
	return strings.TrimSpace(string(output))
}

// fixture is a Runner with the real CLI, a project, and a backend on the disk.
type fixture struct {
	*WithT
	t                    *testing.T
	home, state, project string
	commands             string
	// results is where plans are saved, and plan the one that is carried out.
	results, plan string
	options       runner.Options
	runner        *runner.Runner
	logged        *lockedBuilder
}

func newFixture(t *testing.T, change ...func(*runner.Options)) *fixture {
	t.Helper()
	t.Parallel() // pulumi waits more than it works
	dir := t.TempDir()
	f := &fixture{
		WithT: NewWithT(t), t: t, logged: &lockedBuilder{},
		home: filepath.Join(dir, "home"), state: filepath.Join(dir, "state"), project: filepath.Join(dir, "project"),
		commands: filepath.Join(dir, "commands"), results: filepath.Join(dir, "results"),
	}
	cli := filepath.Join(dir, "bin", "pulumi")
	for _, dir := range []string{f.home, f.state, f.project, f.results, filepath.Dir(cli)} {
		f.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	}
	f.options = runner.Options{Pulumi: cli, Home: f.home, Log: f.logger(), Environ: []string{"PATH=" + os.Getenv("PATH")}}
	f.restoreCLI()
	f.Expect(os.Symlink(tool(t, languageHostOf(t)), filepath.Join(filepath.Dir(cli), "pulumi-language-yaml"))).To(Succeed())
	for _, change := range change {
		change(&f.options)
	}
	f.restart()
	return f
}

// template is what operations on stack dev leave in the backend and with the agent.
type template struct {
	once   sync.Once
	state  fstest.MapFS
	config []byte
}

// created and deployed have the templates of each CLI: a stack without resources, and one that simpleProgram was deployed to.
var (
	created  = map[string]*template{"pulumi": {}, "pulumi-oldest": {}}
	deployed = map[string]*template{"pulumi": {}, "pulumi-oldest": {}}
)

// newCreated returns a fixture whose stack exists. To create a stack takes two processes more.
func newCreated(t *testing.T, change ...func(*runner.Options)) *fixture {
	t.Helper()
	f := newFixture(t, change...)
	f.use(created[cliOf(t)], func() { f.pulumi("stack", "init", "dev") }, f.project)
	return f
}

// newDeployed returns a fixture whose agent has deployed simpleProgram.
func newDeployed(t *testing.T, change ...func(*runner.Options)) *fixture {
	t.Helper()
	f := newFixture(t, change...)
	f.use(deployed[cliOf(t)], func() { f.succeed(up) }, filepath.Join(f.home, ".automation"))
	return f
}

// use copies the template into the fixture, with simpleProgram. The first call makes the template, and finds the configuration below the
// directory.
func (f *fixture) use(made *template, operate func(), configured string) {
	f.t.Helper()
	f.write("Pulumi.yaml", simpleProgram)
	made.once.Do(func() {
		operate()
		made.state, made.config = f.readFiles(f.state), []byte(f.readAll(configured, "Pulumi.dev.yaml"))
		f.Expect(os.RemoveAll(f.state)).To(Succeed())
	})
	f.Expect(made.state).NotTo(BeEmpty(), "the first test could not make the template")
	f.Expect(os.RemoveAll(filepath.Join(f.project, "Pulumi.dev.yaml"))).To(Succeed())
	f.Expect(os.CopyFS(f.state, made.state)).To(Succeed())
	stack, err := state.Open(filepath.Join(f.home, ".automation", "stacks"), "dev", "file://"+f.state, "demo", nil)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(os.WriteFile(stack.ConfigFile(), made.config, 0o600)).To(Succeed())
	f.processes()
}

// readFiles returns the files below the directory.
func (f *fixture) readFiles(dir string) fstest.MapFS {
	f.t.Helper()
	files := fstest.MapFS{}
	f.Expect(fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = &fstest.MapFile{Data: content}
		return err
	})).To(Succeed())
	return files
}

// writeCLI makes the content the CLI. A process that another test starts while the file is written would have it open for writing for a
// moment, and the CLI could not be run. So no process is started meanwhile.
func (f *fixture) writeCLI(content []byte) {
	f.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f.Expect(os.WriteFile(f.options.Pulumi, content, 0o755)).To(Succeed())
}

// replaceCLI makes the CLI a script; %q in it is the journal.
func (f *fixture) replaceCLI(script string) {
	f.t.Helper()
	f.writeCLI(fmt.Appendf(nil, "#!/bin/sh\n"+script, f.journal()))
}

// restoreCLI takes back what replaceCLI did.
func (f *fixture) restoreCLI() {
	f.t.Helper()
	content := fmt.Appendf(nil, wrapper, f.commands, tool(f.t, "pulumi"), versions[cliOf(f.t)]())
	f.writeCLI(content)
}

// restart replaces the Runner, as a restart of the agent does.
func (f *fixture) restart() {
	f.t.Helper()
	var err error
	f.runner, err = runner.New(f.t.Context(), f.options)
	f.Expect(err).NotTo(HaveOccurred())
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
func (f *fixture) request(kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) *agentpb.StartOperationRequest {
	request := &agentpb.StartOperationRequest{
		Id: "test", Kind: kind, Stack: "dev", CreateStack: true,
		Source:  &agentpb.StartOperationRequest_Local{Local: &agentpb.LocalSource{}},
		Options: &agentpb.OperationOptions{},
		Env: []*agentpb.EnvironmentVariable{
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
func (f *fixture) run(kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) *agentpb.Operation {
	f.t.Helper()
	return f.runContext(f.t.Context(), kind, change...)
}

// succeed runs an operation that has to succeed.
func (f *fixture) succeed(kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) *agentpb.Operation {
	f.t.Helper()
	operation := f.run(kind, change...)
	f.Expect(operation.GetState()).To(Equal(succeeded), operation.GetMessage())
	return operation
}

// fail runs an operation that has to fail for the reason.
func (f *fixture) fail(reason agentpb.FailureReason, kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) *agentpb.Operation {
	f.t.Helper()
	operation := f.run(kind, change...)
	f.Expect(operation.GetState()).To(Equal(failed), operation.GetMessage())
	f.Expect(operation.GetFailure()).To(Equal(reason), operation.GetMessage())
	return operation
}

// begin runs an operation in the background.
func (f *fixture) begin(ctx context.Context, kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) (ended <-chan *agentpb.Operation) {
	f.t.Helper()
	result := make(chan *agentpb.Operation, 1)
	request, runner := f.request(kind, change...), f.runner
	go func() { result <- runner.Run(ctx, request, f.paths(), nil) }()
	return result
}

// beginUntil is begin, and waits until the journal has the line.
func (f *fixture) beginUntil(
	line string, kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest),
) (cancel context.CancelCauseFunc, ended <-chan *agentpb.Operation) {
	f.t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(f.t.Context()))
	f.t.Cleanup(func() { cancel(nil) })
	ended = f.begin(ctx, kind, change...)
	f.Eventually(f.journal()).WithTimeout(long).Should(BeAnExistingFile())
	f.Eventually(f.noted).WithTimeout(long).Should(ContainSubstring(line))
	return cancel, ended
}

// await waits for the end of an operation in the background.
func (f *fixture) await(ended <-chan *agentpb.Operation) (operation *agentpb.Operation) {
	f.t.Helper()
	f.Eventually(ended).WithTimeout(long).Should(Receive(&operation))
	return operation
}

func (f *fixture) runContext(ctx context.Context, kind agentpb.OperationKind, change ...func(*agentpb.StartOperationRequest)) *agentpb.Operation {
	f.t.Helper()
	operation := f.runner.Run(ctx, f.request(kind, change...), f.paths(), nil)
	f.Expect(operation.GetState().Final()).To(BeTrue())
	f.Expect(len(operation.GetMessage())).To(BeNumerically("<=", 4<<10))
	return operation
}

func (f *fixture) paths() runner.Paths {
	return runner.Paths{Project: f.project, Plan: f.plan, Results: f.results}
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

func variable(name, value string, secret bool) *agentpb.EnvironmentVariable {
	return &agentpb.EnvironmentVariable{Name: name, Secret: secret, Value: &agentpb.EnvironmentVariable_Text{Text: value}}
}

func withEnv(name, value string, secret bool) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) {
		request.Env = append(request.Env, variable(name, value, secret))
	}
}

func withoutEnv(name string) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) {
		var env []*agentpb.EnvironmentVariable
		for _, one := range request.GetEnv() {
			if one.GetName() != name {
				env = append(env, one)
			}
		}
		request.Env = env
	}
}

func withConfig(items ...*agentpb.ConfigItem) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) { request.Config = append(request.Config, items...) }
}

func withGrace(grace time.Duration) func(*agentpb.StartOperationRequest) {
	return func(request *agentpb.StartOperationRequest) { request.CancelGrace = durationpb.New(grace) }
}

func text(key, value string) *agentpb.ConfigItem {
	return &agentpb.ConfigItem{Key: key, Value: &agentpb.ConfigItem_Text{Text: value}}
}

func secret(key, value string) *agentpb.ConfigItem {
	return &agentpb.ConfigItem{Key: key, Secret: true, Value: &agentpb.ConfigItem_Text{Text: value}}
}

func object(key, value string) *agentpb.ConfigItem {
	return &agentpb.ConfigItem{Key: key, Value: &agentpb.ConfigItem_Json{Json: value}}
}

// tool returns the path of a real program, which is built once for the machine.
func tool(t *testing.T, name string) string {
	t.Helper()
	if name == "pulumi" {
		name = cliOf(t)
	}
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
