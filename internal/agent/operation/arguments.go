package operation

import (
	"context"
	"fmt"
	"slices"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
)

const (
	// execKind marks, in the record of the update, that a program drives the CLI. The value is that of the Automation API.
	execKind = "auto.local"
	// userAgent names this agent in the record of the update.
	userAgent = "stack-controller"
	// maxLogLevel is the highest verbosity of pulumi's log.
	maxLogLevel = 11
)

// commands are the command line of each kind of operation, with the flags that it always has.
var commands = map[agentpb.OperationKind][]string{
	agentpb.OperationKind_OPERATION_KIND_UP:      {"up", "--yes", "--skip-preview"},
	agentpb.OperationKind_OPERATION_KIND_PREVIEW: {"preview"},
	agentpb.OperationKind_OPERATION_KIND_REFRESH: {"refresh", "--yes", "--skip-preview"},
	agentpb.OperationKind_OPERATION_KIND_DESTROY: {"destroy", "--yes", "--skip-preview"},

	agentpb.OperationKind_OPERATION_KIND_REFRESH_PREVIEW: {"refresh", "--preview-only"},
	agentpb.OperationKind_OPERATION_KIND_DESTROY_PREVIEW: {"destroy", "--preview-only"},
}

// plannedUp includes the preview that the other commands skip: without the preview, pulumi changes some resources before it finds that
// others are not in the plan.
var plannedUp = []string{"up", "--yes"}

// changesNothing reports whether operations of the kind only show what would change. Their commands need no --yes.
func changesNothing(kind agentpb.OperationKind) bool {
	return !slices.Contains(commands[kind], "--yes")
}

// arguments returns the command line of the operation, which is the one that the Automation API has for it. A test compares
// them for every option.
func (o *operation) arguments() ([]string, error) {
	command := commands[o.kind()]
	if command == nil {
		return nil, fmt.Errorf("there is no operation %s", o.kind())
	}
	if o.usesPlanFile() {
		command = plannedUp
	}
	want, args := o.request.GetOptions(), slices.Clone(command)
	for _, flag := range []struct {
		flag  string
		set   bool
		kinds []string
	}{
		{"--expect-no-changes", want.GetExpectNoChanges(), []string{"up", "preview", "refresh"}},
		{"--refresh", want.GetRefresh(), []string{"up", "preview", "destroy"}},
		{"--continue-on-error", want.GetContinueOnError(), []string{"up", "destroy"}},
		{"--run-program=true", want.GetRunProgram(), []string{"refresh", "destroy"}},
	} {
		if flag.set && slices.Contains(flag.kinds, command[0]) {
			args = append(args, flag.flag)
		}
	}
	if command[0] == "up" || command[0] == "preview" {
		args = append(args, each("--replace=", want.GetReplace())...)
	}
	return append(append(args, o.planArguments()...), o.commonArguments()...), nil
}

// commonArguments returns the arguments that all operations have.
func (o *operation) commonArguments() []string {
	want := o.request.GetOptions()
	args := []string{"--stack", o.stack.Name, "--exec-kind=" + execKind, "--exec-agent=" + userAgent, "--color=never"}
	args = append(args, each("--target=", want.GetTarget())...)
	if want.GetTargetDependents() {
		args = append(args, "--target-dependents")
	}
	args = append(args, each("--exclude=", want.GetExclude())...)
	if want.GetExcludeDependents() {
		args = append(args, "--exclude-dependents")
	}
	if want.GetParallel() > 0 {
		args = append(args, fmt.Sprintf("--parallel=%d", want.GetParallel()))
	}
	if o.configFile != "" {
		args = append(args, "--config-file="+o.configFile)
	}
	if want.GetLogLevel() > 0 {
		// To stderr, where the log is redacted, instead of to files.
		args = append(args, "--logtostderr", fmt.Sprintf("-v=%d", min(want.GetLogLevel(), maxLogLevel)))
	}
	if want.GetMessage() != "" {
		// The message is passed as it is. The Automation API quotes and escapes it as in Go, which ends up in the record of the update.
		args = append(args, "--message="+want.GetMessage())
	}
	return args
}

// each returns the flag with each of the values.
func each(flag string, values []string) (args []string) {
	for _, value := range values {
		args = append(args, flag+value)
	}
	return args
}

// checkFlags refuses an operation that needs a flag which the CLI does not have.
func (o *operation) checkFlags(context.Context) error {
	args, err := o.arguments()
	if err != nil {
		return err
	}
	problem := cli.UnknownFlag(o.runner.cli.Version, args)
	if problem == "" && o.expectsNoDrift() {
		problem = cli.UnknownFlag(o.runner.cli.Version, o.driftArguments())
	}
	if problem != "" {
		return configInvalid("%s", problem)
	}
	return nil
}
