package automation

import (
	"context"
	"fmt"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/auto"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/debug"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optdestroy"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optpreview"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optrefresh"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optup"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	colorNever = "never"
	// userAgent names us in the update's record.
	userAgent = "stack-controller"
)

// call makes the call of the Automation API that the operation is. The message is not among the options, see command.
func (o *operation) call(ctx context.Context, stack auto.Stack) error {
	var err error
	switch kind := o.request.GetKind(); kind {
	case proto.OperationKind_OPERATION_KIND_UP:
		_, err = stack.Up(ctx, o.upOptions()...)
	case proto.OperationKind_OPERATION_KIND_PREVIEW:
		_, err = stack.Preview(ctx, o.previewOptions()...)
	case proto.OperationKind_OPERATION_KIND_REFRESH:
		_, err = stack.Refresh(ctx, o.refreshOptions()...)
	case proto.OperationKind_OPERATION_KIND_DESTROY:
		_, err = stack.Destroy(ctx, o.destroyOptions()...)
	default:
		err = fmt.Errorf("there is no operation %s", kind)
	}
	return err
}

func (o *operation) upOptions() []optup.Option {
	want := o.request.GetOptions()
	options := []optup.Option{
		optup.Color(colorNever), optup.UserAgent(userAgent), optup.DebugLogging(o.debugLogging()),
		optup.Parallel(int(want.GetParallel())), optup.Replace(want.GetReplace()), optup.Target(want.GetTarget()),
		optup.ConfigFile(o.configFileFlag()),
	}
	if want.GetExpectNoChanges() {
		options = append(options, optup.ExpectNoChanges())
	}
	if want.GetTargetDependents() {
		options = append(options, optup.TargetDependents())
	}
	if want.GetRefresh() {
		options = append(options, optup.Refresh())
	}
	if want.GetContinueOnError() {
		options = append(options, optup.ContinueOnError())
	}
	return options
}

func (o *operation) previewOptions() []optpreview.Option {
	want := o.request.GetOptions()
	options := []optpreview.Option{
		optpreview.Color(colorNever), optpreview.UserAgent(userAgent), optpreview.DebugLogging(o.debugLogging()),
		optpreview.Parallel(int(want.GetParallel())), optpreview.Replace(want.GetReplace()), optpreview.Target(want.GetTarget()),
		optpreview.ConfigFile(o.configFileFlag()),
	}
	if want.GetExpectNoChanges() {
		options = append(options, optpreview.ExpectNoChanges())
	}
	if want.GetTargetDependents() {
		options = append(options, optpreview.TargetDependents())
	}
	if want.GetRefresh() {
		options = append(options, optpreview.Refresh())
	}
	return options
}

func (o *operation) refreshOptions() []optrefresh.Option {
	want := o.request.GetOptions()
	options := []optrefresh.Option{
		optrefresh.Color(colorNever), optrefresh.UserAgent(userAgent), optrefresh.DebugLogging(o.debugLogging()),
		optrefresh.Parallel(int(want.GetParallel())), optrefresh.Target(want.GetTarget()), optrefresh.ConfigFile(o.configFileFlag()),
	}
	if want.GetExpectNoChanges() {
		options = append(options, optrefresh.ExpectNoChanges())
	}
	if want.GetTargetDependents() {
		options = append(options, optrefresh.TargetDependents())
	}
	if want.GetRunProgram() {
		options = append(options, optrefresh.RunProgram(true))
	}
	return options
}

func (o *operation) destroyOptions() []optdestroy.Option {
	want := o.request.GetOptions()
	options := []optdestroy.Option{
		optdestroy.Color(colorNever), optdestroy.UserAgent(userAgent), optdestroy.DebugLogging(o.debugLogging()),
		optdestroy.Parallel(int(want.GetParallel())), optdestroy.Target(want.GetTarget()), optdestroy.ConfigFile(o.configFileFlag()),
	}
	if want.GetTargetDependents() {
		options = append(options, optdestroy.TargetDependents())
	}
	if want.GetRefresh() {
		options = append(options, optdestroy.Refresh())
	}
	if want.GetContinueOnError() {
		options = append(options, optdestroy.ContinueOnError())
	}
	if want.GetRunProgram() {
		options = append(options, optdestroy.RunProgram(true))
	}
	return options
}

// debugLogging makes pulumi log to stderr, where the log is redacted, instead of to files.
func (o *operation) debugLogging() debug.LoggingOptions {
	level := uint(min(o.request.GetOptions().GetLogLevel(), 11))
	if level == 0 {
		return debug.LoggingOptions{}
	}
	return debug.LoggingOptions{LogLevel: &level, LogToStdErr: true}
}

// configFileFlag is the configuration that the CLI gets; empty for the one that it finds itself.
func (o *operation) configFileFlag() string {
	if o.useConfigFile {
		return o.stack.configFile()
	}
	return ""
}

// cancelGrace is how long pulumi may take to stop.
func (o *operation) cancelGrace() time.Duration {
	if grace := o.request.GetCancelGrace(); grace != nil && grace.AsDuration() > 0 {
		return grace.AsDuration()
	}
	return defaultGrace
}
