package operation

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/workspace"
	"google.golang.org/protobuf/proto"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

func TestAShortPassphraseDoesNotMakeAMessageUnreadable(t *testing.T) {
	o := &operation{redactor: redact.New("test"), dir: "/program"}
	NewWithT(t).Expect(o.readable("error: could not find latest version of \x1b[1mtest\x1b[0m in https://get.example.com/releases/latest\npassphrase: test")).To(
		Equal("error: could not find latest version of [secret] in https://get.example.com/releases/latest; passphrase: [secret]"))
}

func TestSecretOfShortLinesIsMaskedInWhatTheCLIPrinted(t *testing.T) {
	o := &operation{redactor: redact.New("ab:\n  cd\nef"), dir: "/program"}
	for printed, want := range map[string]string{
		"it is\nab:\n  cd\nef\n":       "it is; [secret]",
		"error: it is ab:\n  cd\nef\n": "it is [secret]",
	} {
		NewWithT(t).Expect(o.readable(classify(cli.Result{Code: 1, Stderr: printed}, &summary{}).message)).To(Equal(want))
	}
}

func TestConflictsOfEveryBackendAreRead(t *testing.T) {
	const stackLocked = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file " +
		"with `pulumi cancel`.\n  "
	for name, test := range map[string]struct {
		printed string
		known   bool
	}{
		"file": {stackLocked + "file:///state/.pulumi/locks/organization/demo/dev/a.json?no_tmp_dir=true: " +
			"created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z\n", true},
		"s3": {stackLocked + "s3://state/.pulumi/locks/organization/demo/dev/a.json?disableSSL=true&endpoint=http://minio:9000: " +
			"created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z\n", true},
		"s3, another time zone": {stackLocked + "s3://state/.pulumi/locks/organization/demo/dev/a.json: " +
			"created by alice@laptop (pid 42) at 2026-11-21T04:26:40+02:00\n", true},
		"postgres": {stackLocked + "postgres://****:****@db:5432/.pulumi/locks/organization/demo/dev/a.json?sslmode=disable: " +
			"created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z\n", true},
		"coloured": {"\x1b[31merror: \x1b[0m" + strings.TrimPrefix(stackLocked, "error: ") + "gs://state/.pulumi/locks/organization/demo/dev/a.json: " +
			"created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z\n", true},
		"a lock that cannot be read": {stackLocked + "file:///state/.pulumi/locks/a.json: created by alice", false},
		"Pulumi Cloud": {"error: [409] Conflict: Another update is currently in progress.\nTo learn more about possible reasons and resolution, visit " +
			"https://www.pulumi.com/docs/support/troubleshooting/common-issues/update-conflicts/\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := classify(cli.Result{Code: 1, Stderr: test.printed}, &summary{})
			g.Expect(f.reason).To(Equal(agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT))
			if !test.known {
				g.Expect(f.holders).To(BeEmpty())
				return
			}
			holder := f.holders[0]
			g.Expect([]any{holder.GetUser(), holder.GetHost(), holder.GetPid()}).To(Equal([]any{"alice", "laptop", int64(42)}))
			g.Expect(holder.GetSince().GetSeconds()).To(BeEquivalentTo(1795228000))
		})
	}
}

func TestFailuresOfOtherBackendsAreClassified(t *testing.T) {
	for printed, want := range map[string]agentpb.FailureReason{
		"error: [409] Conflict: Another update is currently in progress.\n":                                       agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT,
		"error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions\n":                  agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: read \".pulumi/meta.yaml\": blob (code=Unknown): operation error S3: GetObject, AccessDenied: no": agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: Unauthorized: No credentials provided or are invalid.\n":                                          agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: [403] Forbidden\n": agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: unable to open bucket azblob://state: azureblob: Options.AccountName is required\n":                               agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: read \".pulumi/meta.yaml\": blob (code=PermissionDenied): GET http://a\n---\nERROR CODE: AuthenticationFailed\n":  agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: missing google credentials: unable to parse credentials from $GOOGLE_CREDENTIALS: unexpected end of JSON input\n": agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: failed to ping PostgreSQL: pq: password authentication failed for user \"pulumi\"\n":                              agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: no stack named 'dev' found\n":                        agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND,
		"error: something else\n  with details\nwarning: not this\n": agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED,
	} {
		g := NewWithT(t)
		f := classify(cli.Result{Code: 1, Stderr: "warning: noise\n" + printed}, &summary{})
		g.Expect(f.reason).To(Equal(want), printed)
		g.Expect(f.message).NotTo(ContainSubstring("noise"))
		g.Expect(f.message).NotTo(ContainSubstring("not this"))
	}
}

func TestWordsOfAProgramAreNotTakenForThoseOfTheCLI(t *testing.T) {
	f := classify(cli.Result{Code: 1, Stderr: "error: AccessDenied\n"}, &summary{started: true, errors: []string{"AccessDenied by the cloud; incorrect passphrase"}})
	NewWithT(t).Expect(f.reason).To(Equal(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED))
}

func TestWhatAProgramPrintedIsReportedWhereNothingElseSaysWhyItFailed(t *testing.T) {
	g := NewWithT(t)
	const warning = "warning: using pulumi-language-yaml from $PATH\n"
	sum := &summary{redactor: redact.New()}
	g.Expect(errorText(warning, sum)).To(HavePrefix("warning: "))
	for i := range 1000 {
		sum.addDiagnostic(&diagnostic{Severity: printedSeverity, Message: fmt.Sprintf("line %d\n\n", i)})
	}
	g.Expect(errorText(warning, sum)).To(HaveSuffix("line 999"))
	g.Expect(len(errorText(warning, sum))).To(BeNumerically("<=", maxPrinted))
	g.Expect(errorText("error: the CLI knows why\n", sum)).To(Equal("the CLI knows why"))
	sum.addError("", "the engine knows why")
	g.Expect(errorText(warning, sum)).To(Equal("the engine knows why"))
}

func TestCrashOfTheCLIIsReportedWithoutItsTrace(t *testing.T) {
	const trace = "goroutine 1 [running]:\nmain.main()\n\t/src/main.go:65 +0x1d\n"
	for printed, want := range map[string]string{
		"=====\nThe Pulumi CLI encountered a fatal error. This is a bug!\nGo Version:       go1\nPanic:            runtime error: index out of range\n\n" + trace: "pulumi crashed: runtime error: index out of range",
		"panic: runtime error: invalid memory address\n[signal SIGSEGV: segmentation violation]\n\n" + trace:                                                      "pulumi crashed: runtime error: invalid memory address",
		"fatal error: concurrent map writes\n\n" + trace:          "pulumi crashed: concurrent map writes",
		"error: program failed\npanic: as a resource is called\n": "program failed\npanic: as a resource is called",
	} {
		NewWithT(t).Expect(errorText(printed, &summary{})).To(Equal(want))
	}
}

func TestUsersCannotSteerTheCLIByItsEnvironment(t *testing.T) {
	g := NewWithT(t)
	environ := []string{"PATH=/bin", "AGENT_SECRET=x", "PULUMI_OPTION_TARGET=x", "HOME=/root", "PULUMI_HOME=/pulumi"}
	request := &agentpb.StartOperationRequest{CommitMetadata: map[string]string{"PULUMI_GIT_HEAD": "abc", "LD_PRELOAD": "x"}}
	user := cli.Environment{"PULUMI_OPTION_STACK": "prod", "PULUMI_STACK": "prod", "PULUMI_HOME": "/x", "PULUMI_BACKEND_URL": "file:///s", "AWS_REGION": "eu"}
	for _, environ := range [][]string{environ[:1], environ} {
		r := &Runner{cli: &cli.CLI{Path: "/opt/pulumi/bin/pulumi"}, options: Options{Home: "/agent", Environ: environ}}
		env, ignored := r.operationEnvironment(request, user)
		g.Expect(ignored).To(Equal([]string{"LD_PRELOAD", "PULUMI_HOME", "PULUMI_OPTION_STACK", "PULUMI_STACK"}))
		g.Expect(env).To(And(HaveKeyWithValue("AWS_REGION", "eu"), HaveKeyWithValue("PULUMI_BACKEND_URL", "file:///s"), HaveKeyWithValue("PULUMI_GIT_HEAD", "abc")))
		g.Expect(env).NotTo(Or(HaveKey("PULUMI_OPTION_STACK"), HaveKey("PULUMI_OPTION_TARGET"), HaveKey("PULUMI_STACK"), HaveKey("LD_PRELOAD")))
		g.Expect(env["PATH"]).To(HavePrefix("/opt/pulumi/bin:"))
		g.Expect(env["USER"]).NotTo(BeEmpty())
		if len(environ) > 1 {
			g.Expect(env).To(HaveKeyWithValue("AGENT_SECRET", "x"))
			g.Expect(env).To(And(HaveKeyWithValue("HOME", "/root"), HaveKeyWithValue("PULUMI_HOME", "/pulumi")))
		} else {
			g.Expect(env).NotTo(HaveKey("AGENT_SECRET"))
			g.Expect(env).To(And(HaveKeyWithValue("HOME", "/agent"), HaveKeyWithValue("PULUMI_HOME", "/agent/.pulumi")))
		}
	}
}

func TestVariablesThatWereRemovedFromASecretAreGone(t *testing.T) {
	g := NewWithT(t)
	request := &agentpb.StartOperationRequest{}
	options := Options{Home: t.TempDir(), Environ: []string{"AWS_SESSION_TOKEN=old", "IMAGE=x", "PATH=/bin"}, ExclusiveHost: true}
	start := func() *Runner { return &Runner{cli: &cli.CLI{Path: "/opt/pulumi/bin/pulumi"}, options: options} }
	r := start()
	kept := filepath.Join(options.Home, ".automation")
	g.Expect(os.Mkdir(kept, 0o700)).To(Succeed())
	user := cli.Environment{"AWS_SESSION_TOKEN": "new", "AWS_ACCESS_KEY_ID": "a", "PATH": "/usr/bin"}
	env, _ := r.operationEnvironment(request, user)
	g.Expect(env).To(HaveKeyWithValue("AWS_SESSION_TOKEN", "new"))
	env, _ = r.operationEnvironment(request, cli.Environment{"AWS_ACCESS_KEY_ID": "b"})
	g.Expect(env).NotTo(HaveKey("AWS_SESSION_TOKEN"))
	g.Expect(env).To(And(HaveKeyWithValue("AWS_ACCESS_KEY_ID", "b"), HaveKeyWithValue("IMAGE", "x"), HaveKeyWithValue("PATH", "/opt/pulumi/bin:/bin")))
	env, _ = r.operationEnvironment(request, user)
	g.Expect(env).To(HaveKeyWithValue("AWS_SESSION_TOKEN", "new"))
	g.Expect(os.ReadDir(kept)).To(BeEmpty(), "nothing outlives the agent")

	options.Environ = []string{"AWS_SESSION_TOKEN=of the pod template", "PATH=/bin"}
	env, _ = start().operationEnvironment(request, cli.Environment{"AWS_ACCESS_KEY_ID": "b"})
	g.Expect(env).To(HaveKeyWithValue("AWS_SESSION_TOKEN", "of the pod template"), "the next container has what it was started with")

	options.ExclusiveHost = false
	r = start()
	_, _ = r.operationEnvironment(request, user)
	env, _ = r.operationEnvironment(request, nil)
	g.Expect(env).To(HaveKeyWithValue("AWS_SESSION_TOKEN", "of the pod template"), "a process inherits what its controller has")
}

// The compiled code stays below the agent's home, unless somebody chose another place, or none.
func TestCompiledCodeOfNodeStaysInTheWorkspace(t *testing.T) {
	g := NewWithT(t)
	for chosen, wanted := range map[string]string{"": "/agent/.automation/node", "NODE_COMPILE_CACHE=": "", "NODE_COMPILE_CACHE=/cache": "/cache"} {
		r := &Runner{cli: &cli.CLI{Path: "/opt/pulumi/bin/pulumi"}, options: Options{Home: "/agent", Environ: []string{chosen}}}
		g.Expect(r.baseEnvironment()).To(HaveKeyWithValue("NODE_COMPILE_CACHE", wanted))
	}
}

func TestMessagesAreBoundedAndReadable(t *testing.T) {
	g := NewWithT(t)
	g.Expect(oneLine(" first line:\n  second.\n\n third \n fourth,\nfifth ")).To(Equal("first line: second. third; fourth, fifth"))
	g.Expect(plaintext.Strip("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07\a\r")).To(Equal("red link"))
	cut := plaintext.Cut(strings.Repeat("é", 5000), maxMessage)
	g.Expect(len(cut)).To(BeNumerically("<=", maxMessage))
	g.Expect(proto.Marshal(&agentpb.Operation{Message: cut})).NotTo(BeEmpty())
}

func TestAccessTokenHasNoNewline(t *testing.T) {
	g := NewWithT(t)
	env, _ := (&Runner{cli: &cli.CLI{Path: "pulumi"}}).operationEnvironment(&agentpb.StartOperationRequest{}, cli.Environment{
		"PULUMI_ACCESS_TOKEN": "pul-1\n", "PULUMI_CONFIG_PASSPHRASE": "kept\n",
	})
	g.Expect(env).To(And(HaveKeyWithValue("PULUMI_ACCESS_TOKEN", "pul-1"), HaveKeyWithValue("PULUMI_CONFIG_PASSPHRASE", "kept\n")))
}

// The fields of Pulumi.yaml that decide where the CLI looks for something are read by the agent, too. A new field has to be sorted.
func TestEachFieldOfAProjectIsReadOrLeftToTheCLI(t *testing.T) {
	g := NewWithT(t)
	// forCLI are the fields that change nothing of what the agent does before or after the CLI.
	forCLI := []string{"author", "website", "license", "template", "options", "requiredPulumiVersion"}
	names := func(of reflect.Type) (names []string) {
		for field := range of.Fields() {
			if name, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); name != "" {
				names = append(names, name)
			}
		}
		return names
	}
	g.Expect(names(reflect.TypeFor[workspace.Project]())).To(ConsistOf(append(names(reflect.TypeFor[projectFile]()), forCLI...)))
}

func TestOlderNameOfTheDirectoryOfTheConfiguration(t *testing.T) {
	for content, want := range map[string]string{
		"config: deploy\n":                         "deploy/Pulumi.dev.yaml",
		"stackConfigDir: deploy\n":                 "deploy/Pulumi.dev.yaml",
		"config: {a: {type: string}}\n":            "Pulumi.dev.yaml",
		"config: {a: x}\nstackConfigDir: deploy\n": "deploy/Pulumi.dev.yaml",
		"config:\n": "Pulumi.dev.yaml",
	} {
		g := NewWithT(t)
		p, err := parseProject("Pulumi.yaml", []byte("name: demo\nruntime: nodejs\n"+content))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.stackFile("dev")).To(Equal(want), content)
	}
}

func TestAStubProjectSaysWhatItWasAskedFor(t *testing.T) {
	for _, name := range []string{"demo", "odd\nname: \"x\"", "1.0"} {
		g := NewWithT(t)
		stub, err := (&project{Name: name, runtime: "yaml"}).stub()
		g.Expect(err).NotTo(HaveOccurred())
		read, err := parseProject("Pulumi.yaml", stub)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.projectFile).To(Equal(projectFile{Name: name, Runtime: "yaml"}))
	}
}
