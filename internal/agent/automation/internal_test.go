package automation

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/common/encoding"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
	"github.com/pulumi/pulumi/sdk/v3/go/common/workspace"
	"google.golang.org/protobuf/proto"

	agentproto "github.com/stack-controller/stack-controller/internal/agent/proto"
)

// merge sets one value in a configuration file of project demo and returns the new file.
func merge(source string, item configItem) (string, error) {
	file, err := parseStackFile([]byte(source))
	if err != nil {
		return "", err
	}
	key, err := parseConfigKey(item.key, item.path, "demo")
	if err != nil {
		return "", err
	}
	value, err := plainNode(item, key)
	if err != nil {
		return "", err
	}
	if err := file.set(key, "demo", value); err != nil {
		return "", err
	}
	content, err := file.encode()
	return string(content), err
}

func TestMergeKeepsWhatItDoesNotTouch(t *testing.T) {
	const source = `# why
secretsprovider: awskms://key
config:
  aws:region: eu # here
  plain: &anchor {a: 1.50}
  demo:other: *anchor
  demo:config:old: x
environment: [base]
`
	for _, test := range []struct {
		name string
		item configItem
		want []string
		gone []string
	}{
		{"a new value", configItem{key: "new", value: "1"}, []string{"demo:new: \"1\"", "# why", "secretsprovider: awskms://key", "aws:region: eu # here", "{a: 1.50}", "environment: [base]"}, nil},
		{"a value in another namespace", configItem{key: "aws:region", value: "us"}, []string{"aws:region: us"}, []string{"eu"}},
		{"a value without a namespace", configItem{key: "plain", value: "x"}, []string{"demo:plain: x", "demo:other: {a: 1.50}"}, []string{"  plain:"}},
		{"a path into a value without a namespace", configItem{key: "demo:plain.b", path: true, value: "true"}, []string{"demo:plain: {a: 1.50, b: true}"}, []string{"  plain:"}},
		{"the old spelling of a key", configItem{key: "old", value: "z"}, []string{"demo:old: z"}, []string{"demo:config:old"}},
		{"a number with many digits", configItem{key: "n", json: true, value: `{"pi": 3.141592653589793238462643383279, "i": 123456789012345678901234567890, "e": 1e5}`},
			[]string{"pi: 3.141592653589793238462643383279", "i: 123456789012345678901234567890", "e: 1e5"}, nil},
		{"text that reads as something else", configItem{key: "t", json: true, value: `["yes", "1", "null", "2020-01-01", "a: b", "\u0000\u2028"]`},
			[]string{`"yes"`, `"1"`, `"null"`, `"2020-01-01"`, `'a: b'`, `"\0\L"`}, nil},
		{"a path through a plain value", configItem{key: "aws:region.name", path: true, value: "007"}, []string{`name: "007"`}, nil},
		{"an array", configItem{key: "list[1].a", path: true, value: "7"}, []string{"demo:list:\n    - null\n    - a: 7\n"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			merged, err := merge(source, test.item)
			g.Expect(err).NotTo(HaveOccurred())
			for _, want := range test.want {
				g.Expect(merged).To(ContainSubstring(want))
			}
			for _, gone := range test.gone {
				g.Expect(merged).NotTo(ContainSubstring(gone))
			}
		})
	}
}

func TestCommentInPlaceOfAValueHidesNothing(t *testing.T) {
	g := NewWithT(t)
	merged, err := merge("environment: [base] # kept\nconfig: # nothing yet\n", configItem{key: "new", value: "1"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(merged).To(Equal("environment: [base] # kept\nconfig:\n  demo:new: \"1\"\n"))
}

func TestPathsThatDoNotFitAreRefused(t *testing.T) {
	for _, key := range []string{"list.name", "map[0]", "map.a.b", "list[7]", "", ".", "[0]", "secret.key.deep", "empty.secure"} {
		t.Run(key, func(t *testing.T) {
			_, err := merge("config:\n  list: [1]\n  map: {a: x}\n  secret: {key: {secure: abc}}\n  empty: {}\n", configItem{key: key, path: true, value: "x"})
			NewWithT(t).Expect(err).To(HaveOccurred())
		})
	}
}

func TestAliasesCannotExplode(t *testing.T) {
	source := "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		previous := "*a" + string(rune('0'+i-1))
		source += "a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat(previous+", ", 8) + previous + "]\n"
	}
	_, err := parseStackFile([]byte(source))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("expand to too much")))
}

func TestEnvironmentsAreAddedToThoseOfTheSource(t *testing.T) {
	for source, want := range map[string]string{
		"":                             "environment:\n  - base\n  - prod\n",
		"environment: [base]\n":        "environment: [base, prod]\n",
		"environment:\n  values: {}\n": "environment:\n  values: {}\n  imports:\n    - base\n    - prod\n",
	} {
		g := NewWithT(t)
		file, err := parseStackFile([]byte(source))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(file.addEnvironments([]string{"base", "prod"})).To(Succeed())
		content, err := file.encode()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(Equal(want))
	}
}

func TestLocksAreRead(t *testing.T) {
	g := NewWithT(t)
	holders := parseLocks("error: the stack is currently locked by 2 lock(s). Either wait …\n" +
		"  file:///s/.pulumi/locks/a.json: created by me@corp@pod-0 (pid 42) at 2026-11-21T02:26:40Z\n" +
		"  file:///s/.pulumi/locks/b.json: created by you@pod-1 (pid 43) at yesterday\n")
	g.Expect(holders).To(HaveLen(2))
	g.Expect([]any{holders[0].GetUser(), holders[0].GetHost(), holders[0].GetPid(), holders[0].GetSince().GetSeconds()}).To(Equal([]any{"me@corp", "pod-0", int64(42), int64(1795228000)}))
	g.Expect([]any{holders[1].GetUser(), holders[1].GetHost(), holders[1].GetPid(), holders[1].GetSince()}).To(HaveExactElements("you", "pod-1", int64(43), BeNil()))
	g.Expect(parseLocks("created by you@pod-1 (pid 43) at 2026-11-21T02:26:40Z")).To(BeEmpty())
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
			f := classify(result{code: 1, stderr: test.printed}, &summary{})
			g.Expect(f.reason).To(Equal(agentproto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT))
			if !test.known {
				g.Expect(holderOf(f)).To(BeNil())
				return
			}
			holder := holderOf(f)
			g.Expect([]any{holder.GetUser(), holder.GetHost(), holder.GetPid()}).To(Equal([]any{"alice", "laptop", int64(42)}))
			g.Expect(holder.GetSince().GetSeconds()).To(BeEquivalentTo(1795228000))
		})
	}
}

func TestFailuresOfOtherBackendsAreClassified(t *testing.T) {
	for printed, want := range map[string]agentproto.FailureReason{
		"error: [409] Conflict: Another update is currently in progress.\n":                                       agentproto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT,
		"error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions\n":                  agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: read \".pulumi/meta.yaml\": blob (code=Unknown): operation error S3: GetObject, AccessDenied: no": agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: Unauthorized: No credentials provided or are invalid.\n":                                          agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: [403] Forbidden\n": agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: unable to open bucket azblob://state: azureblob: Options.AccountName is required\n":                               agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: read \".pulumi/meta.yaml\": blob (code=PermissionDenied): GET http://a\n---\nERROR CODE: AuthenticationFailed\n":  agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: missing google credentials: unable to parse credentials from $GOOGLE_CREDENTIALS: unexpected end of JSON input\n": agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: failed to ping PostgreSQL: pq: password authentication failed for user \"pulumi\"\n":                              agentproto.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
		"error: no stack named 'dev' found\n":                        agentproto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND,
		"error: something else\n  with details\nwarning: not this\n": agentproto.FailureReason_FAILURE_REASON_UPDATE_FAILED,
	} {
		g := NewWithT(t)
		f := classify(result{code: 1, stderr: "warning: noise\n" + printed}, &summary{})
		g.Expect(f.reason).To(Equal(want), printed)
		g.Expect(f.message).NotTo(ContainSubstring("noise"))
		g.Expect(f.message).NotTo(ContainSubstring("not this"))
	}
}

func TestWordsOfAProgramAreNotTakenForThoseOfTheCLI(t *testing.T) {
	f := classify(result{code: 1, stderr: "error: AccessDenied\n"}, &summary{started: true, errors: []string{"AccessDenied by the cloud; incorrect passphrase"}})
	NewWithT(t).Expect(f.reason).To(Equal(agentproto.FailureReason_FAILURE_REASON_UPDATE_FAILED))
}

func TestWhatAProgramPrintedIsToldWhereNothingElseSaysWhyItFailed(t *testing.T) {
	g := NewWithT(t)
	const warning = "warning: using pulumi-language-yaml from $PATH\n"
	sum := &summary{}
	g.Expect(errorText(warning, sum)).To(HavePrefix("warning: "))
	for i := range 1000 {
		sum.addPrinted(fmt.Sprintf("line %d\n\n", i))
	}
	g.Expect(errorText(warning, sum)).To(HaveSuffix("line 999"))
	g.Expect(len(errorText(warning, sum))).To(BeNumerically("<=", maxPrinted))
	g.Expect(errorText("error: the CLI knows why\n", sum)).To(Equal("the CLI knows why"))
	sum.addError("", "the engine knows why")
	g.Expect(errorText(warning, sum)).To(Equal("the engine knows why"))
}

func TestCrashOfTheCLIIsToldWithoutItsTrace(t *testing.T) {
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
	t.Setenv("AGENT_SECRET", "x")
	t.Setenv("PULUMI_OPTION_TARGET", "x")
	request := &agentproto.StartOperationRequest{CommitMetadata: map[string]string{"PULUMI_GIT_HEAD": "abc", "LD_PRELOAD": "x"}}
	user := environment{"PULUMI_OPTION_STACK": "prod", "PULUMI_STACK": "prod", "PULUMI_HOME": "/x", "PULUMI_BACKEND_URL": "file:///s", "AWS_REGION": "eu"}
	for _, inherit := range []bool{false, true} {
		r := &Runner{pulumi: "/opt/pulumi/bin/pulumi", options: Options{Home: "/agent", InheritEnvironment: inherit}}
		env, ignored := r.operationEnvironment(request, user)
		g.Expect(ignored).To(Equal([]string{"LD_PRELOAD", "PULUMI_HOME", "PULUMI_OPTION_STACK", "PULUMI_STACK"}))
		g.Expect(env).To(And(HaveKeyWithValue("AWS_REGION", "eu"), HaveKeyWithValue("PULUMI_BACKEND_URL", "file:///s"), HaveKeyWithValue("PULUMI_GIT_HEAD", "abc")))
		g.Expect(env).NotTo(Or(HaveKey("PULUMI_OPTION_STACK"), HaveKey("PULUMI_OPTION_TARGET"), HaveKey("PULUMI_STACK"), HaveKey("LD_PRELOAD")))
		g.Expect(env["PATH"]).To(HavePrefix("/opt/pulumi/bin:"))
		g.Expect(env["USER"]).NotTo(BeEmpty())
		if inherit {
			g.Expect(env).To(HaveKeyWithValue("AGENT_SECRET", "x"))
		} else {
			g.Expect(env).NotTo(HaveKey("AGENT_SECRET"))
			g.Expect(env).To(And(HaveKeyWithValue("HOME", "/agent"), HaveKeyWithValue("PULUMI_HOME", "/agent/.pulumi")))
		}
	}
}

func TestMessagesAreBoundedAndReadable(t *testing.T) {
	g := NewWithT(t)
	g.Expect(oneLine(" first line:\n  second.\n\n third \n fourth,\nfifth ")).To(Equal("first line: second. third; fourth, fifth"))
	g.Expect(stripEscapes("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07\a\r")).To(Equal("red link"))
	cut := bounded(strings.Repeat("é", 5000), maxMessage)
	g.Expect(len(cut)).To(BeNumerically("<=", maxMessage))
	g.Expect(proto.Marshal(&agentproto.Operation{Message: cut})).NotTo(BeEmpty())
}

func TestTailKeepsTheEndInBoundedMemory(t *testing.T) {
	g := NewWithT(t)
	tail := newTail(100)
	for range 10_000 {
		_, err := tail.Write([]byte("a line of text\n"))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(tail.String()).To(Equal(strings.Repeat("a line of text\n", 6)))
	g.Expect(cap(tail.bytes)).To(BeNumerically("<", 1000))
}

func FuzzParseLocks(f *testing.F) {
	f.Add("the stack is currently locked by 1 lock(s).\n  file:///a: created by u@h (pid 1) at 2026-11-21T02:26:40Z")
	f.Fuzz(func(t *testing.T, text string) {
		for _, holder := range parseLocks(text) {
			if holder.GetHost() == "" || holder.GetPid() < 0 {
				t.Fatalf("unusable holder %v", holder)
			}
		}
	})
}

func FuzzPackageUses(f *testing.F) {
	f.Add("resources: {a: {type: 'aws:s3:Bucket', options: {version: 1.2.3}}}\nvariables: {b: {fn::aws:getRegion: {}}, c: {fn::invoke: {function: 'gcp:x:y'}}}")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, source string) {
		project, err := parseProject("/", "Pulumi.yaml", []byte("name: a\nruntime: yaml\n"+source))
		if err != nil {
			return
		}
		for _, use := range packageUses(project.document) {
			if use == "" || strings.HasPrefix(use, ":") {
				t.Fatalf("unusable package %q", use)
			}
		}
	})
}

// FuzzMerge checks that what is merged is what the CLI reads.
func FuzzMerge(f *testing.F) {
	f.Add("", "b", false, "\x00yes")
	f.Add("config: {a: 1}", "b", false, "text")
	f.Add("config:\n  demo:list: [1, {x: y}]\n", "list[1].x", true, "true")
	f.Add("a: &x {b: c}\nconfig: {d: *x}\n", `["a.b"].c`, true, "0123")
	f.Fuzz(func(t *testing.T, source, key string, path bool, value string) {
		item := configItem{key: key, path: path, value: value}
		merged, err := merge(source, item)
		if err != nil {
			return
		}
		stack, err := workspace.LoadProjectStackBytes(nil, &workspace.Project{Name: tokens.PackageName("demo")}, []byte(merged), "Pulumi.dev.yaml", encoding.YAML)
		if err != nil {
			// The source may be something that the CLI does not accept; what we write ourselves is not.
			if source == "" {
				t.Fatalf("the CLI cannot read %q: %v", merged, err)
			}
			return
		}
		if path {
			return
		}
		parsed, err := parseConfigKey(key, false, "demo")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := stack.Config[parsed.Key]; !ok || got != config.NewValue(value) {
			t.Fatalf("set %q to %q, the CLI reads %v in %q", key, value, got, merged)
		}
	})
}
