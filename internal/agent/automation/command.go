package automation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/blang/semver"
	"github.com/pulumi/pulumi/sdk/v3/go/auto"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// command is the PulumiCommand of one update: it starts the one process that does the work, and answers the others.
type command struct {
	operation *operation
	// ctx is the one that asks the process to end; the Automation API gets one that does not, because it would kill the CLI
	// 10 s later.
	ctx context.Context

	summary summary
	// ran says that the process ran to an end; result is how, err why it could not.
	ran    bool
	result result
	err    error
}

var _ auto.PulumiCommand = (*command)(nil)

// Version implements auto.PulumiCommand.
func (c *command) Version() semver.Version {
	return c.operation.runner.version
}

// Run implements auto.PulumiCommand.
func (c *command) Run(ctx context.Context, dir string, stdin io.Reader, _, _ []io.Writer, env []string, args ...string) (string, string, int, error) {
	switch {
	case len(args) > 1 && args[0] == "stack":
		switch args[1] {
		case "select":
			// Whether the stack exists shows when it is used.
			return "", "", 0, nil
		case "output":
			// The outputs are in the events.
			return "{}", "", 0, nil
		case "history":
			return "[]", "", 0, nil
		}
	case len(args) > 0 && slices.Contains([]string{"up", "preview", "refresh", "destroy"}, args[0]):
		return c.runEngine(ctx, dir, stdin, env, args)
	}
	return "", "", -1, fmt.Errorf("the Automation API wants to run an unexpected command: pulumi %s", strings.Join(args, " "))
}

// runEngine runs the process that does the work.
func (c *command) runEngine(ctx context.Context, dir string, stdin io.Reader, env, args []string) (string, string, int, error) {
	log, err := newEventLog(c.receive)
	if err != nil {
		c.err = err
		return "", "", -1, err
	}
	args, forwardTo := redirectEvents(args, log.address)
	if message := c.operation.request.GetOptions().GetMessage(); message != "" {
		// The Automation API would pass the message in the quotes and escapes of Go.
		args = append(args, "--message="+message)
	}
	stdout, stderr, closeLog := c.operation.logStreams(c.findPermalink)
	inv := &invocation{
		args: args, dir: dir, env: c.operation.env, extra: env, stdin: stdin, stdout: stdout, stderr: stderr,
		grace: c.operation.cancelGrace(),
	}
	if c.operation.request.GetKind() != proto.OperationKind_OPERATION_KIND_PREVIEW {
		inv.started, inv.ended = c.operation.stack.started, c.operation.stack.ended
	}
	c.result, c.err = c.operation.runner.execute(c.ctx, inv)
	closeLog()
	log.close()
	c.ran = c.err == nil
	if forwardTo != "" {
		if err := forward(ctx, forwardTo, log.summary); err != nil {
			// The Automation API will complain about a missing summary; we have it.
			c.operation.log.V(1).Info("events were not forwarded", "error", err.Error())
		}
	}
	if c.err == nil && c.result.code != 0 {
		return "", "", c.result.code, errors.New("pulumi failed")
	}
	return "", "", c.result.code, c.err
}

// redirectEvents makes the CLI report to our event log, and returns the address that the Automation API had in mind.
func redirectEvents(args []string, address string) (redirected []string, forwardTo string) {
	for i := 0; i < len(args); i++ {
		if args[i] == eventLogFlag && i+1 < len(args) {
			forwardTo = args[i+1]
			i++
			continue
		}
		redirected = append(redirected, args[i])
	}
	return append(redirected, eventLogFlag, address), forwardTo
}

// receive takes an event of the engine.
func (c *command) receive(event engineEvent) {
	if !c.summary.add(event) {
		return
	}
	changes, current := c.summary.snapshot()
	text := bounded(c.operation.redactor.String(progressText(changes, current)), maxMessage)
	c.operation.report.update(false, func(op *proto.Operation) {
		op.ResourceChanges = changes
		op.Message = text
	})
}

// permalinkMarks are what the CLI prints before the address of the update in Pulumi Cloud.
var permalinkMarks = []string{"View Live: ", "View in Browser (Ctrl+O): ", "View in Browser: ", "Permalink: "}

func (c *command) findPermalink(line string) {
	for _, mark := range permalinkMarks {
		if _, link, ok := strings.Cut(line, mark); ok && strings.HasPrefix(link, "http") {
			c.operation.report.update(true, func(op *proto.Operation) { op.Permalink = bounded(strings.Fields(link)[0], 2048) })
		}
	}
}
