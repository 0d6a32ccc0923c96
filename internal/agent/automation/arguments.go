package automation

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

const (
	// execKind tells the update's record that a program drives the CLI: the value is that of the Automation API.
	execKind = "auto.local"
	// userAgent names us in the update's record.
	userAgent = "stack-controller"
	// maxLogLevel is the most that pulumi logs.
	maxLogLevel = 11
)

// arguments returns the command line of the operation, which is the one that the Automation API has for it. A test compares
// them for every option.
func (o *operation) arguments() ([]string, error) {
	want := o.request.GetOptions()
	args := &flagList{}
	switch kind := o.request.GetKind(); kind {
	case proto.OperationKind_OPERATION_KIND_UP:
		args.add("up", "--yes", "--skip-preview")
		args.each("--replace", want.GetReplace())
		args.when(want.GetExpectNoChanges(), "--expect-no-changes")
		args.when(want.GetRefresh(), "--refresh")
		args.when(want.GetContinueOnError(), "--continue-on-error")
	case proto.OperationKind_OPERATION_KIND_PREVIEW:
		args.add("preview")
		args.each("--replace", want.GetReplace())
		args.when(want.GetExpectNoChanges(), "--expect-no-changes")
		args.when(want.GetRefresh(), "--refresh")
	case proto.OperationKind_OPERATION_KIND_REFRESH:
		args.add("refresh", "--yes", "--skip-preview")
		args.when(want.GetExpectNoChanges(), "--expect-no-changes")
		args.when(want.GetRunProgram(), "--run-program=true")
	case proto.OperationKind_OPERATION_KIND_DESTROY:
		args.add("destroy", "--yes", "--skip-preview")
		args.when(want.GetRefresh(), "--refresh")
		args.when(want.GetContinueOnError(), "--continue-on-error")
		args.when(want.GetRunProgram(), "--run-program=true")
	default:
		return nil, fmt.Errorf("there is no operation %s", kind)
	}
	o.addCommon(args)
	return args.list, nil
}

// addCommon adds what all operations have.
func (o *operation) addCommon(args *flagList) {
	want := o.request.GetOptions()
	args.add("--stack", o.stack.name, "--exec-kind="+execKind, "--exec-agent="+userAgent, "--color=never")
	args.each("--target", want.GetTarget())
	args.when(want.GetTargetDependents(), "--target-dependents")
	args.when(want.GetParallel() > 0, "--parallel="+strconv.Itoa(int(want.GetParallel())))
	args.when(o.useConfigFile, "--config-file="+o.stack.configFile())
	// To stderr, where the log is redacted, instead of to files.
	args.when(want.GetLogLevel() > 0, "--logtostderr", "-v="+strconv.Itoa(int(min(want.GetLogLevel(), maxLogLevel))))
	// As it is: the Automation API puts it into the quotes and escapes of Go, which end up in the update's record.
	args.when(want.GetMessage() != "", "--message="+want.GetMessage())
}

// flagList is a command line that is being put together.
type flagList struct {
	list []string
}

func (f *flagList) add(args ...string) {
	f.list = append(f.list, args...)
}

// when adds the arguments if the condition holds.
func (f *flagList) when(holds bool, args ...string) {
	if holds {
		f.add(args...)
	}
}

// each adds the flag with each of the values.
func (f *flagList) each(flag string, values []string) {
	for _, value := range values {
		f.add(flag + "=" + value)
	}
}

// cancelGrace is how long pulumi may take to stop.
func (o *operation) cancelGrace() time.Duration {
	if grace := o.request.GetCancelGrace(); grace != nil && grace.AsDuration() > 0 {
		return grace.AsDuration()
	}
	return defaultGrace
}
