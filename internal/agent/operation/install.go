package operation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/file"
)

// installTimeout bounds `pulumi install`: it may download an SDK and compile it.
const installTimeout = 30 * time.Minute

// install installs the dependencies of the program, if it has any and they are not installed yet.
//
// A digest over what `pulumi install` reads records what is installed. Running `pulumi install` for each commit would be simpler, but it
// takes 0.2 s when there is nothing to do, of the 0.5 s of an update, and a Python program would ask its package index for each commit, and
// could not be updated while the index is away. Only the last installation is recorded, because it replaced what an earlier one had put into the
// same directories. installed.go has the digest and the record.
func (o *operation) install(ctx context.Context) error {
	if !o.project.needsInstall() {
		return nil
	}
	if runs, err := o.usesProgram(ctx); err != nil || !runs {
		return err
	}
	digest, err := o.installDigest()
	if err != nil {
		return projectInvalid("cannot read the dependencies of the program: %s", file.WithoutPath(err))
	}
	if digest != "" && o.installed(digest) {
		return nil
	}
	// From here on, what was installed before may be replaced in part.
	if err := os.RemoveAll(o.runner.dir("installed")); err != nil {
		return fmt.Errorf("forget the last installation: %w", err)
	}
	before := o.directories()
	o.report.update(func(op *agentpb.Operation) { op.Message = "installing dependencies" })
	res, err := o.helper(ctx, installTimeout, cli.Invocation{Args: o.project.installArguments(), Dir: o.dir})
	_, ended := errors.AsType[interrupted](err)
	switch {
	case err != nil && (ended || context.Cause(ctx) != nil):
		return err
	case err != nil: // It took too long.
		return failed(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, "%s", err)
	case res.Code != 0:
		f := classifyAs(res, agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, "pulumi install")
		if text := installerText(res); text != "" && !strings.Contains(f.message, text) {
			f.message += ": " + text
		}
		return f
	case digest == "":
		return nil
	}
	return o.noteInstalled(digest, before)
}

// runsProgram reports whether the operation executes the program. Other operations get what they need from the state.
func (o *operation) runsProgram() bool {
	kind := o.kind()
	always := kind == agentpb.OperationKind_OPERATION_KIND_UP || kind == agentpb.OperationKind_OPERATION_KIND_PREVIEW
	return o.project.hasProgram() && (always || o.request.GetOptions().GetRunProgram())
}

// usesProgram reports whether the operation needs what is installed for the program: because it runs the program, or because that has the dynamic
// providers of resources.
func (o *operation) usesProgram(ctx context.Context) (bool, error) {
	if o.runsProgram() || !o.project.hasProgram() {
		return o.runsProgram(), nil
	}
	switch o.project.runtime {
	case "nodejs", "bun", "python":
		facts, err := o.knownState(ctx)
		return err == nil && facts.Dynamic, err
	}
	return false, nil
}

// hasOwnPlugins reports whether the project has a plugin by its path.
func (p *project) hasOwnPlugins() bool {
	kinds, _ := p.Plugins.(map[string]any)
	for _, kind := range kinds {
		plugins, _ := kind.([]any)
		for _, plugin := range plugins {
			if named, _ := plugin.(map[string]any); named["path"] != nil {
				return true
			}
		}
	}
	return false
}

// needsInstall reports whether `pulumi install` has something to do. A Pulumi YAML program has no dependencies except packages. The operation
// itself installs plugins that are named only in the program. A program that was compiled before has its dependencies in it, and an image for it
// need not have the tools to compile it.
func (p *project) needsInstall() bool {
	if binary, _ := p.runtimeOptions["binary"].(string); binary != "" && p.Packages == nil {
		return false
	}
	return p.runtime != "yaml" || p.Packages != nil || p.runtimeOptions["compiler"] != nil
}

// installArguments leaves plugins to the operation if the project says where some of them are: `pulumi install` does not look there, and
// fails because it cannot download them.
func (p *project) installArguments() []string {
	if p.Plugins != nil {
		return []string{"install", "--no-plugins"}
	}
	return []string{"install"}
}
