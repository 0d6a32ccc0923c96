package operation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// recorded is how a process of the CLI ended.
type recorded struct {
	cli.Result
	kind   agentpb.OperationKind
	plan   *agentpb.PlanRequest
	events []string
}

// readRecorded reads a file that testdata/failures/record wrote.
func readRecorded(t *testing.T, path string) recorded {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code, rest, _ := strings.Cut(strings.TrimPrefix(string(content), "-- code --\n"), "\n-- stderr --\n")
	stderr, events, found := strings.Cut("\n"+rest, "\n-- events --\n")
	number, err := strconv.Atoi(code)
	if err != nil || !found {
		t.Fatalf("%s has not the sections of a record: %v", path, err)
	}
	kind := agentpb.OperationKind_OPERATION_KIND_UP
	if strings.Contains(path, "plan-") {
		kind = agentpb.OperationKind_OPERATION_KIND_PLANNED_UP
	}
	return recorded{kind: kind, Code: number, Stderr: strings.TrimPrefix(stderr, "\n") + "\n", events: strings.Split(strings.TrimSpace(events), "\n")}
}

// failure is what an operation in /srv/project makes of the end of the process.
func (r recorded) failure() (reason, message string) {
	o := &operation{redactor: redact.New(), dir: "/srv/project", request: &agentpb.StartOperationRequest{Kind: r.kind, Plan: r.plan}, stack: &state.Stack{}}
	sum := &summary{redactor: o.redactor, withPreview: o.usesPlanFile()}
	for _, event := range r.events {
		sum.add([]byte(event))
	}
	f := o.planFailure(classify(r.Result, sum), r.Result, sum)
	return strings.TrimPrefix(f.reason.String(), "FAILURE_REASON_"), o.readable(f.message)
}

// Directories of testdata/failures, by the version of the CLI.
const (
	oldest, newest = "3.100", "3.276"
	both           = oldest + " " + newest
	// lastWithOldLayout can use a backend in the old layout when a variable is set.
	lastWithOldLayout = "3.274"
)

// failures are recorded failures of the CLI with the reason, and the message that says what a user needs to know and nothing else.
var failures = []struct{ versions, name, reason, message string }{
	{oldest, "login-bucket-refused", "UNAUTHENTICATED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): Forbidden: Forbidden; status code: 403, request id: , host id:`},
	{newest, "login-bucket-refused", "UNAUTHENTICATED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=PermissionDenied): operation error S3: GetObject, https response error StatusCode: 403, RequestID: , HostID: , api error Forbidden: Forbidden`},
	{oldest, "login-bucket-without-credentials", "UNAUTHENTICATED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): NoCredentialProviders: no valid providers in chain. Deprecated. For verbose messaging see aws.Config.CredentialsChainVerboseErrors`},
	{newest, "login-bucket-without-credentials", "UNAUTHENTICATED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): operation error S3: GetObject, get identity: get credentials: failed to refresh cached credentials, no EC2 IMDS role found, operation error ec2imds: GetMetadata, access disabled to EC2 IMDS via client option, or "AWS_EC2_METADATA_DISABLED" environment variable`},
	{oldest, "login-directory-missing", "UPDATE_FAILED", "unable to open bucket file:///srv/does/not/exist: stat /srv/does/not/exist: no such file or directory"},
	{newest, "login-directory-missing", "UPDATE_FAILED", `unable to open state directory "file:///srv/does/not/exist": stat /srv/does/not/exist: no such file or directory`},
	{oldest, "login-refused", "UNAUTHENTICATED", "invalid access token"},
	{newest, "login-refused", "UNAUTHENTICATED", "Unauthorized: No credentials provided or are invalid."},
	{both, "login-without-token", "UNAUTHENTICATED", "PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions"},
	{oldest, "network-bucket-unreachable", "UPDATE_FAILED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): RequestError: send request failed; caused by: Get "http://127.0.0.1:1/state/.pulumi/meta.yaml": dial tcp 127.0.0.1:1: connect: connection refused`},
	{newest, "network-bucket-unreachable", "UPDATE_FAILED", `read ".pulumi/meta.yaml": blob (key ".pulumi/meta.yaml") (code=Unknown): operation error S3: GetObject, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , HostID: , request send failed, Get "http://127.0.0.1:1/state/.pulumi/meta.yaml?x-id=GetObject": dial tcp 127.0.0.1:1: connect: connection refused`},
	{oldest, "network-cloud-unreachable", "UPDATE_FAILED", `getting user info from http://127.0.0.1:1: performing HTTP request: Get "http://127.0.0.1:1/api/user": dial tcp 127.0.0.1:1: connect: connection refused`},
	{newest, "network-cloud-unreachable", "UPDATE_FAILED", `performing HTTP request: Get "http://127.0.0.1:1/api/user": dial tcp 127.0.0.1:1: connect: connection refused`},
	{both, "state-broken", "UPDATE_FAILED", "failed to load checkpoint: place 1: unexpected end of JSON input"},
	{both + " " + lastWithOldLayout, "state-in-the-old-layout", "STATE_UPGRADE_REQUIRED", oldLayout},
	{oldest, "state-locked", "UPDATE_CONFLICT", "the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`. file:///srv/state?metadata=skip/.pulumi/locks/organization/demo/dev/11111111-2222-3333-4444-555555555555.json: created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z"},
	{newest, "state-locked", "UPDATE_CONFLICT", "the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock file with `pulumi cancel`. file:///srv/state/.pulumi/locks/organization/demo/dev/11111111-2222-3333-4444-555555555555.json?metadata=skip&no_tmp_dir=true: created by alice@laptop (pid 42) at 2026-11-21T02:26:40Z"},
	{both, "state-missing", "STACK_NOT_FOUND", "no stack named 'dev' found"},
	{both, "state-of-a-newer-version", "UPDATE_FAILED", "failed to load checkpoint: unsupported checkpoint version 99"},
	{both, "state-without-passphrase", "SECRETS_PROVIDER", "getting stack configuration: get stack secrets manager: passphrase must be set with PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE environment variables"},
	{both, "state-wrong-passphrase", "SECRETS_PROVIDER", "getting stack configuration: get stack secrets manager: incorrect passphrase"},
	{both, "project-broken", "PROJECT_INVALID", "could not unmarshal 'Pulumi.yaml': invalid YAML file: yaml: line 4: did not find expected node content"},
	{oldest, "project-missing", "UPDATE_FAILED", "if you're using the --stack flag, pass the fully qualified name (organization/project/stack)"},
	{newest, "project-missing", "PROJECT_INVALID", "no Pulumi.yaml project file found (searching upwards from /srv/project). If you have not created a project yet, use `pulumi new` to do so: no project file found"},
	{newest, "project-of-a-newer-version", "PROJECT_INVALID", `Pulumi CLI version 3.276.0 does not satisfy the version range ">=4.0.0"`},
	{both, "language-missing", "PROJECT_INVALID", "failed to load language plugin cobol: no language plugin 'pulumi-language-cobol' found in the workspace or on your $PATH"},
	{both, "language-program-fails", "UPDATE_FAILED", "an unhandled error occurred: outputs.json: unexpected end of JSON input"},
	{both, "language-unknown-name", "UPDATE_FAILED", `resource, variable, or config value "nothing" not found; on Pulumi.yaml line 6`},
	{both, "config-missing", "CONFIG_INVALID", "validating stack config: Stack 'dev' is missing configuration value 'size'"},
	{both, "plugin-not-found", "INSTALL_FAILED", "error resolving type of resource a: internal error loading package \"nowhere\": Could not automatically download and install resource plugin 'pulumi-resource-nowhere' at version v1.2.3, install the plugin using `pulumi plugin install resource nowhere v1.2.3 --server http://127.0.0.1:8080/404`: error downloading provider nowhere to file: failed to download plugin: nowhere-1.2.3: 404 HTTP error fetching plugin from http://127.0.0.1:8080/404/pulumi-resource-nowhere-v1.2.3-linux-amd64.tar.gz; on Pulumi.yaml line 5"},
	{both, "plugin-unreachable", "INSTALL_FAILED", "error resolving type of resource a: internal error loading package \"nowhere\": Could not automatically download and install resource plugin 'pulumi-resource-nowhere' at version v1.2.3, install the plugin using `pulumi plugin install resource nowhere v1.2.3 --server http://127.0.0.1:1`: error downloading provider nowhere to file: failed to download plugin: nowhere-1.2.3: failed all 5 attempts, the last one: Get \"http://127.0.0.1:1/pulumi-resource-nowhere-v1.2.3-linux-amd64.tar.gz\": dial tcp 127.0.0.1:1: connect: connection refused; on Pulumi.yaml line 5"},
	{newest, "plugin-unreachable-at-installation", "INSTALL_FAILED", `installing packages: failed to download plugin: nowhere-1.2.3: failed all 5 attempts, the last one: Get "http://127.0.0.1:1/pulumi-resource-nowhere-v1.2.3-linux-amd64.tar.gz": dial tcp 127.0.0.1:1: connect: connection refused; context canceled`},
	{both, "install-fails", "UPDATE_FAILED", "installing dependencies: no package is called missing"},
	{both, "provider-protected", "UPDATE_FAILED", "test:index:Sleep first: resource \"urn:pulumi:dev::demo::test:index:Sleep::first\" cannot be deleted; because it is protected. To unprotect the resource, either remove the `protect` flag from the resource in your Pulumi program and run `pulumi up`, or use the command: `pulumi state unprotect 'urn:pulumi:dev::demo::test:index:Sleep::first'`"},
	{both, "provider-refuses", "UPDATE_FAILED", "test:index:Sleep second: creating it: QuotaExceeded: no quota is left; Request ID: 42"},
	{both, "provider-refuses-two", "UPDATE_FAILED", "test:index:Sleep second: no right; test:index:Sleep first: no quota"},
	{both, "plan-violated", "PLAN_VIOLATED", "pulumi refused what is not in the plan: urn:pulumi:dev::demo::test:index:Sleep::first (content); nothing was changed. If the program creates resources depending on values that are known only then, or the plan of the same program is violated each time, use `enforce: Inputs`"},
	{newest, "policy-pack-broken", "UPDATE_FAILED", `policy pack "/srv/broken" failed to start: could not read plugin [/srv/broken]: exit status 3`},
	{newest, "policy-violated", "POLICY_VIOLATION", "policies do not allow this: test:index:Sleep first: policy no-bad of testpack: no resource may have bad content; steps that were done before or beside that: 1"},
	{newest, "policy-violated-in-a-preview", "POLICY_VIOLATION", "policies do not allow this: test:index:Sleep first: policy no-bad of testpack: no resource may have bad content"},
}

func TestFailuresAreThoseOfTheNewestCLI(t *testing.T) {
	version, err := tools.Version("pulumi")
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(version).To(HavePrefix("v"+newest+"."), "record the failures again: testdata/failures/record")
}

func TestMessageIsTheSentenceThatAUserNeeds(t *testing.T) {
	tested := map[string]bool{}
	for _, test := range failures {
		for version := range strings.FieldsSeq(test.versions) {
			path := filepath.Join("testdata", "failures", version, test.name+".txt")
			tested[path] = true
			reason, message := readRecorded(t, path).failure()
			g := NewWithT(t)
			g.Expect(message).To(Equal(test.message), path)
			g.Expect(reason).To(Equal(test.reason), path)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "failures", "*", "*.txt"))
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range files {
		g.Expect(tested).To(HaveKey(path))
	}
}

// These outputs are typed in: from the documentation and the source of the CLI, its language hosts, and the clients of Vault and Azure.
func TestMessageOfAFailureThatWasNotRecorded(t *testing.T) {
	said := func(severity, message string) string {
		encoded, _ := json.Marshal(map[string]any{"diagnosticEvent": map[string]string{"severity": severity, "message": message + "\n"}})
		return string(encoded)
	}
	const using = "warning: using pulumi-language-go from $PATH at /bin/pulumi-language-go\n"
	for name, test := range map[string]struct {
		printed string
		events  []string
		message string
	}{
		"Vault refuses, with blank lines in between": {
			printed: using + "error: secrets (code=Unknown): Error making API request.\n\nURL: PUT https://vault/v1/transit/encrypt/pulumi\nCode: 403. Errors:\n\n* permission denied\n\nnoise\n",
			message: "secrets (code=Unknown): Error making API request. URL: PUT https://vault/v1/transit/encrypt/pulumi; Code: 403. Errors: * permission denied",
		},
		"Azure refuses, with rulers": {
			printed: "error: read \".pulumi/meta.yaml\": blob (code=PermissionDenied): GET https://acme.blob.core.windows.net/state\n" +
				strings.Repeat("-", 80) + "\nRESPONSE 403: 403 Forbidden\nERROR CODE: AuthenticationFailed\n" + strings.Repeat("-", 80) + "\n",
			message: "read \".pulumi/meta.yaml\": blob (code=PermissionDenied): GET https://acme.blob.core.windows.net/state; RESPONSE 403: 403 Forbidden; ERROR CODE: AuthenticationFailed",
		},
		"the error comes after a blank line": {
			printed: "error: the following plugins are missing:\n\n  aws v6.0.0\n\nnoise\n",
			message: "the following plugins are missing: aws v6.0.0",
		},
		"a CLI that still warns of the old layout": {
			printed: "warning: \n" + strings.Repeat("=", 80) + "\nLegacy DIY state is deprecated, please upgrade\n\nIt is due to be removed\n" + strings.Repeat("=", 80) + "\nerror: no stack named 'dev' found\n",
			message: "no stack named 'dev' found",
		},
		"a Go program only exits": {
			printed: using,
			events: []string{said("info#err", "downloading modules"), said("info#err", "main.go:7: no subnet is left"),
				said("error", "an unhandled error occurred: program exited with non-zero exit code: 1")},
			message: "an unhandled error occurred: program exited with non-zero exit code: 1; downloading modules; main.go:7: no subnet is left",
		},
		"a Go program does not compile": {
			printed: using,
			events: []string{said("info#err", "# nginx"), said("info#err", `./more.go:3:16: cannot use "eighty" (untyped string constant) as int value in variable declaration`),
				said("error", "error in compiling Go: unable to run `go build`: exit status 1")},
			message: "error in compiling Go: unable to run `go build`: exit status 1; # nginx; " +
				`./more.go:3:16: cannot use "eighty" (untyped string constant) as int value in variable declaration`,
		},
		"a Python program raises": {
			printed: using,
			events:  []string{said("info#err", "noise"), said("error", "Program failed with an unhandled exception:\nTraceback (most recent call last):\n  File \"main.py\", line 3, in <module>\nKeyError: 'zone'")},
			message: "Program failed with an unhandled exception: Traceback (most recent call last): File \"main.py\", line 3, in <module>; KeyError: 'zone'",
		},
		"nothing but a line after the warning": {printed: using + "exec format error\n", message: "exec format error"},
		"nothing but a warning":                {printed: using, message: strings.TrimSpace(using)},
	} {
		t.Run(name, func(t *testing.T) {
			_, message := recorded{Code: 1, Stderr: test.printed, events: test.events}.failure()
			NewWithT(t).Expect(message).To(Equal(test.message))
		})
	}
}

// The exit code and the texts are those of pkg/engine and pkg/resource/deploy of Pulumi 3.276: a real failure has another code.
func TestResourcesThatAProviderDoesNotWaitForAreNamed(t *testing.T) {
	said := func(severity, urn, message string) string {
		encoded, _ := json.Marshal(map[string]any{"diagnosticEvent": map[string]string{"severity": severity, "urn": urn, "message": message}})
		return string(encoded)
	}
	const of = "urn:pulumi:dev::demo::aws:rds/instance:Instance::"
	events := []string{said("warning", of+"old", "db is deprecated"), said("info#err", "", "noise of the program"),
		said("warning", of+"first", "\x1b[33mresource is awaiting\x1b[0m\n"), said("warning", of+"second", "resource is awaiting\n"),
		said("warning", "", "update has awaiting resources\n")}
	g := NewWithT(t)
	reason, message := recorded{Result: cli.Result{Code: 10}, events: events}.failure()
	g.Expect(reason).To(Equal("AWAITING"))
	g.Expect(message).To(Equal("not ready yet: aws:rds/instance:Instance first, aws:rds/instance:Instance second. The provider does not wait for what " +
		"takes long; a later update takes up what depends on it"))
	_, message = recorded{Result: cli.Result{Code: 10}}.failure()
	g.Expect(message).To(HavePrefix("not ready yet: resources. "), "events may be lost")
	yaml := append(events, said("error", "", "an unhandled error occurred: waiting for RPCs: resource first [aws:rds/instance:Instance] failed to register\n"))
	reason, message = recorded{Result: cli.Result{Code: 1}, events: yaml}.failure()
	g.Expect(reason + " " + message).To(HavePrefix("AWAITING not ready yet: aws:rds/instance:Instance first, "))
	reason, message = recorded{Result: cli.Result{Code: 1}, events: append(yaml, said("error", of+"third", "no quota"))}.failure()
	g.Expect(reason + " " + message).To(And(HavePrefix("UPDATE_FAILED "), HaveSuffix("aws:rds/instance:Instance third: no quota")))
	reason, message = recorded{Result: cli.Result{Code: 1}, events: append(events, said("error", of+"third", "no quota"))}.failure()
	g.Expect(reason + " " + message).To(HavePrefix("UPDATE_FAILED aws:rds/instance:Instance third: no quota"))
}

// The text is that of pkg/resource/deploy/state_migration.go of Pulumi 3.276.
func TestRewrittenStateIsNoPlanAndSaysWhatHelps(t *testing.T) {
	const about = "urn:pulumi:dev::demo::acme:index:Network::main"
	for kind, doing := range map[agentpb.OperationKind]string{
		agentpb.OperationKind_OPERATION_KIND_PREVIEW:    "generating an update plan; run the update without a plan",
		agentpb.OperationKind_OPERATION_KIND_PLANNED_UP: "applying an update plan; run the update without the plan",
	} {
		message := "state migration for " + about + " cannot change state while " + doing
		encoded, _ := json.Marshal(map[string]any{"diagnosticEvent": map[string]string{"severity": "error", "urn": about, "message": message + "\n"}})
		for where, failure := range map[string]recorded{
			"an event":             {Result: cli.Result{Code: 1}, kind: kind, events: []string{string(encoded)}},
			"the output of Pulumi": {Result: cli.Result{Code: 1, Stderr: "error: " + message + "\n"}, kind: kind},
		} {
			t.Run(doing+" "+where, func(t *testing.T) {
				g := NewWithT(t)
				failure.plan = &agentpb.PlanRequest{}
				reason, message := failure.failure()
				g.Expect(reason).To(Equal("PLAN_VIOLATED"))
				g.Expect(message).To(And(ContainSubstring("rewrites the state of "+about+", which"), ContainSubstring("`enforce: Inputs`"), Not(ContainSubstring("without"))))
				failure.plan = &agentpb.PlanRequest{WithoutFile: true}
				_, message = failure.failure()
				g.Expect(message).To(ContainSubstring("cannot change state while"), "with enforce: Inputs, Pulumi knows of no plan")
			})
		}
	}
}

func TestConfigurationThatPulumiCloudManagesIsNotThatOfAStack(t *testing.T) {
	g := NewWithT(t)
	reason, message := recorded{Result: cli.Result{Code: 255, Stderr: "error: --config-file is not supported on stacks with an ESC-managed environment yet\n"}}.failure()
	g.Expect(reason).To(Equal("CONFIG_INVALID"))
	g.Expect(message).To(And(ContainSubstring("set the values in that environment"), Not(ContainSubstring("--config-file"))))
}
