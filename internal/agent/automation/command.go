package automation

import (
	"context"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// command is one run of the CLI that does the work of an operation, or looks whether it may be done.
type command struct {
	operation *operation
	summary   summary
	// silent keeps the progress of the process to itself.
	silent bool
}

// run does the operation: it starts the process and waits for its end, which ctx asks for when it ends. An error means that it could not
// be run.
func (c *command) run(ctx context.Context) (result, error) {
	args, err := c.operation.arguments()
	if err != nil {
		return result{}, err
	}
	return c.execute(ctx, args, c.operation.request.GetKind() != proto.OperationKind_OPERATION_KIND_PREVIEW)
}

// execute is run with another command line. A process that changes the stack may leave something behind when it is killed.
func (c *command) execute(ctx context.Context, args []string, changes bool) (result, error) {
	c.summary.redactor = c.operation.redactor
	log, err := newEventLog(c.receive)
	if err != nil {
		return result{}, err
	}
	stdout, stderr, closeLog := c.operation.logStreams(c.findPermalink)
	inv := &invocation{
		args: append(args, eventLogFlag, log.address), dir: c.operation.dir, env: c.operation.env,
		stdout: stdout, stderr: stderr, grace: c.operation.cancelGrace(),
	}
	if changes {
		inv.started, inv.ended = c.operation.stack.started, c.operation.stack.ended
	}
	res, err := c.operation.runner.execute(ctx, inv)
	closeLog()
	log.close()
	return res, err
}

// receive takes an event of the engine.
func (c *command) receive(event engineEvent) {
	if event.Diagnostic != nil {
		// Before it is cut: of a secret that is cut in two, no part would be recognised.
		event.Diagnostic.Message = c.operation.redactor.String(stripEscapes(event.Diagnostic.Message))
	}
	if !c.summary.add(event) || c.silent {
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
