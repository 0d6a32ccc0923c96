package operation

import (
	"regexp"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// exitReasons are the exit codes that say why the CLI failed. They exist from 3.227 on; for older versions only the text says why.
var exitReasons = map[int]agentpb.FailureReason{
	3: agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED,
	6: agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND,
	7: agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES,
	// Everything else is done by then: any real failure has another exit code.
	10: agentpb.FailureReason_FAILURE_REASON_AWAITING,
}

// cause recognises a failure by what the CLI printed.
type cause struct {
	reason  agentpb.FailureReason
	pattern *regexp.Regexp
	// early restricts the pattern to failures before the engine was at work: later, a program may have printed the same words.
	early bool
	// printed is true when a language plugin may have printed the text on behalf of the engine.
	printed bool
}

// causes are tried in their order. The controller gives each reason a name (updateReasons in internal/controller/update/status.go), and the
// Stack decides what follows: recordFailure in internal/controller/stack/result.go counts, retryDue in schedule.go waits, and decideToRetry in decide_trigger.go says whether it
// is Stalled meanwhile. Before a conflict
// is reported, releaseLock (engine.go) has looked whether the lock is abandoned.
var causes = []cause{
	{agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED, refusedLayout, true, false},
	{agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT, regexp.MustCompile(
		state.LockedText + `|\[409\] Conflict: Another update is currently in progress`), true, false},
	{agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, regexp.MustCompile(
		`no stack named '[^']*' found`), true, false},
	{agentpb.FailureReason_FAILURE_REASON_UNEXPECTED_CHANGES, regexp.MustCompile(
		`no changes were expected but changes`), false, false},
	{agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, regexp.MustCompile(
		`passphrase must be set|incorrect passphrase|secrets (?:manager|provider)|unable to read PULUMI_CONFIG_PASSPHRASE_FILE|` +
			`failed to (?:en|de)crypt|decrypting secret value|message authentication failed`), true, false},
	{agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED, regexp.MustCompile(
		`PULUMI_ACCESS_TOKEN must be set|invalid access token|No credentials provided or are invalid|\[401\] Unauthorized|\[403\] |` +
			// S3 and compatible services; the code is that of any bucket.
			`AccessDenied|\(code=PermissionDenied\)|[Ss]tatus ?[Cc]ode: 40[13]\b|NoCredentialProviders|failed to refresh cached credentials|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|` +
			// Google Cloud.
			`could not find default credentials|missing google credentials|private key should be a PEM|` +
			// Azure.
			`Options\.AccountName is required|azblob\.NewSharedKeyCredential|AuthenticationFailed|AuthorizationFailure|` +
			// PostgreSQL.
			`pq: password authentication failed|pq: no pg_hba\.conf entry`), true, false},
	{agentpb.FailureReason_FAILURE_REASON_PROJECT_INVALID, regexp.MustCompile(
		`no Pulumi\.yaml project file found|could not (?:load|read|unmarshal) '?[^\n]*Pulumi\.(?:yaml|yml|json)|failed to load (?:project|language plugin)|` +
			`could not validate '[^']*Pulumi\.|(?:load|no) language plugin|does not satisfy the version range|failed to discover plugin requirements`), false, false},
	// A Pulumi YAML program downloads its plugins while it runs.
	{agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, regexp.MustCompile(
		`Could not automatically download and install \w+ plugin|failed to download plugin`), false, true},
	{agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, regexp.MustCompile(
		`validating stack config|is missing configuration value|with configuration key '[^']*' must be|could not decrypt configuration|` +
			`does not support environments|Missing required configuration variable|loading stack config|invalid configuration key|` +
			`could not parse [^\n]* as a configuration key|[Uu]nable to (?:read|load) config`), false, false},
	{agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, managedByCloud, true, false},
}

// managedByCloud matches what the CLI says about a configuration file for a stack that has none.
var managedByCloud = regexp.MustCompile(`not supported on stacks with an ESC-managed environment`)

// classify says why the CLI failed, from its exit code, what it printed, and what the engine reported.
func classify(res cli.Result, sum *summary) *failure {
	printed := plaintext.Strip(res.Stderr)
	reported := strings.Join(sum.errors, "\n")
	if len(sum.policies) > 0 && len(explanations(printed, sum)) == 0 {
		return policyFailure(sum)
	}
	f := &failure{reason: agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, message: errorText(printed, sum)}
	reason, told := exitReasons[res.Code]
	switch {
	case reason == agentpb.FailureReason_FAILURE_REASON_AWAITING, onlyAwaits(sum):
		return failed(agentpb.FailureReason_FAILURE_REASON_AWAITING, "%s", awaitingText(sum))
	case told:
		f.reason = reason
		return f
	}
	for _, cause := range causes {
		if cause.early && sum.started {
			continue
		}
		matches := cause.pattern.MatchString
		if matches(printed) || matches(reported) || cause.printed && matches(sum.printedText()) {
			f.reason = cause.reason
			break
		}
	}
	switch f.reason {
	case agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT:
		f.holders = state.ParseLocks(printed)
	case agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED:
		f.message = oldLayout
	case agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID:
		if managedByCloud.MatchString(printed) {
			f.message = "Pulumi Cloud keeps the configuration of this stack in an ESC environment, which cannot be combined with values and environments " +
				"of the Stack: set the values in that environment, and remove them from the Stack"
		}
	}
	return f
}

// classifyAs returns why a command of the CLI failed. The message begins with the argument what. The reason is the argument otherwise,
// unless the CLI gives a more specific one.
func classifyAs(res cli.Result, otherwise agentpb.FailureReason, what string) *failure {
	f := classify(res, &summary{})
	if f.reason == agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED {
		f.reason = otherwise
	}
	f.message = what + ": " + f.message
	return f
}
