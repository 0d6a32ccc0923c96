package automation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// installTimeout bounds `pulumi install`: it may download an SDK and compile it.
const installTimeout = 30 * time.Minute

// install makes the dependencies of the program present, when it has any and they are not.
//
// Whether they are is remembered by a digest over everything that `pulumi install` reads. The file of that name lists the
// directories that held dependencies afterwards: when one of them is missing, they are installed again. So a new revision of
// the source costs an installation only when its dependencies changed. Only the last installation is remembered: it replaced
// what an earlier one had put into the same directories.
func (o *operation) install(ctx context.Context) error {
	if !o.runsProgram() {
		return nil
	}
	inputs, err := findInstallInputs(o.project)
	if err != nil {
		return projectInvalid("cannot read the dependencies of the program: %s", err)
	}
	if inputs.nothing() {
		return nil
	}
	marker := filepath.Join(o.runner.stateDir("installed"), inputs.digest(o.runner.Version(), o.env["PULUMI_HOME"]))
	if !inputs.unknown && o.installed(marker) {
		return nil
	}
	// From here on what was installed before may be half replaced.
	if err := os.RemoveAll(filepath.Dir(marker)); err != nil {
		return fmt.Errorf("forget the last installation: %w", err)
	}
	o.report.update(true, func(op *proto.Operation) { op.Message = "installing dependencies" })
	res, err := o.helper(ctx, installTimeout, invocation{args: []string{"install"}, dir: o.dir})
	if err != nil {
		return installFailed(ctx, err)
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		if f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_FAILED {
			f.reason = proto.FailureReason_FAILURE_REASON_INSTALL_FAILED
		}
		f.message = "pulumi install: " + f.message
		return f
	}
	return o.noteInstalled(marker)
}

// installFailed gives an installation that took too long its reason; what ends the operation as a whole keeps its own.
func installFailed(ctx context.Context, err error) error {
	var ended *interrupted
	if context.Cause(ctx) != nil || errors.As(err, &ended) {
		return err
	}
	return failed(proto.FailureReason_FAILURE_REASON_INSTALL_FAILED, "%s", err)
}

// runsProgram tells whether the operation executes the program. The others get what they need from the state.
func (o *operation) runsProgram() bool {
	switch o.request.GetKind() {
	case proto.OperationKind_OPERATION_KIND_UP, proto.OperationKind_OPERATION_KIND_PREVIEW:
		return o.project.document != nil
	}
	return o.project.document != nil && o.request.GetOptions().GetRunProgram()
}

func (o *operation) installed(marker string) bool {
	content, err := os.ReadFile(marker)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		if info, err := os.Stat(filepath.Join(o.dir, strings.TrimSpace(line))); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

func (o *operation) noteInstalled(marker string) error {
	var directories strings.Builder
	for _, dir := range dependencyDirs(o.project) {
		if info, err := os.Stat(filepath.Join(o.dir, dir)); err == nil && info.IsDir() {
			fmt.Fprintln(&directories, dir)
		}
	}
	if err := os.MkdirAll(filepath.Dir(marker), 0o700); err != nil {
		return fmt.Errorf("note the installation: %w", err)
	}
	return writeFile(marker, []byte(directories.String()))
}
