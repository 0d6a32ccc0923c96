package operation

import (
	"context"
	"io"
	"maps"
	"regexp"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
)

// Before version 3.61, pulumi kept the state of a stack in a self-managed backend in .pulumi/stacks/NAME.json, without its project. A backend
// without .pulumi/meta.yaml and with such files is used in this layout. Pulumi refuses it from 3.257 on unless a variable is set, and always
// after 3.274.1. With .pulumi/meta.yaml, pulumi does not see these files: a stack that is only there counts as missing.

// oldLayoutSwitches turn off pulumi's warning about files in the old layout. The second one is its older name.
var oldLayoutSwitches = []string{"PULUMI_DIY_BACKEND_NO_LEGACY_WARNING", "PULUMI_SELF_MANAGED_STATE_NO_LEGACY_WARNING"}

// refusedLayout matches pulumi's refusals of a backend in the old layout, and of a name with a project, which that layout does not have.
var refusedLayout = regexp.MustCompile(`PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 to disable this error|` +
	`Legacy DIY state is no longer supported, please use Pulumi|` +
	`a stack name may only contain [^\n]*: invalid character '/'`)

const (
	// upgradeState says how to upgrade a backend. Before 3.112, pulumi does not know the flag; without the variable, or with a later version,
	// it refuses the command as well.
	upgradeState = "Suspend all Stacks of this backend, back it up, and run once, with pulumi 3.112 to 3.274.1: " +
		"PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR=1 pulumi state upgrade --yes. Then request an update"
	oldLayout = "the backend has the layout of Pulumi before 3.61. " + upgradeState + ". To upgrade later, use an image with such a version, set " +
		"PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR to \"1\" in envRefs, and use the name of the stack without its organization and project"
)

// checkLayout returns an error if the backend has a file of the stack in the old layout. The stack would be created beside that file, and
// the update would create each resource a second time. The CLI warns about such files whenever it opens a backend; the command that it runs
// for that reads nothing else. The file has no project, so it may be of another one: the user can turn the warning off.
func (o *operation) checkLayout(ctx context.Context) error {
	if !o.selfManaged() {
		return nil
	}
	env := maps.Clone(o.env)
	for _, name := range oldLayoutSwitches {
		if _, set := o.user[name]; !set {
			delete(env, name)
		}
	}
	found := false
	// The list is as long as there are such files, so it is not kept.
	warning := &cli.LineWriter{Line: func(line string) { found = found || line == "  - "+o.stack.Short }}
	res, err := o.helper(ctx, commandTimeout, cli.Invocation{Args: []string{"whoami"}, Env: env, Stdout: io.Discard, Stderr: warning})
	switch {
	case err != nil:
		return err
	case res.Code != 0:
		return classifyAs(res, agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, "cannot create the stack")
	case found:
		return failed(agentpb.FailureReason_FAILURE_REASON_STATE_UPGRADE_REQUIRED, "the backend has stack %q only in the layout of Pulumi before 3.61, "+
			"in .pulumi/stacks/%[1]s.json, so it is not created again, with all its resources. %[2]s. If the file is of another project, set %[3]s to "+
			"\"true\" in envRefs", o.stack.Short, upgradeState, oldLayoutSwitches[0])
	}
	return nil
}
