package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

const (
	// maxLogLine is the longest line of a log that is shown, in bytes.
	maxLogLine = 1 << 20
	// logGrace is how long the log of an Update that has ended may take to arrive.
	logGrace = 5 * time.Second
	// operationEnded is the last message that an agent logs about an operation.
	operationEnded = "operation ended"
)

// logOptions are the flags of "logs".
type logOptions struct {
	update                  string
	follow, whole, withTime bool
}

func (s *session) logs() *cobra.Command {
	options := logOptions{}
	cmd := &cobra.Command{
		Use: "stack NAME", Short: "Show what Pulumi prints in the last or running update of a Stack",
		Long: "Show the output of Pulumi: of the running update of a Stack, until it ends, or otherwise of the last one. It comes from\n" +
			"the log of the workspace pod, or with the process runtime from a file on the machine of the controller.",
		Example: fmt.Sprintf("  %s logs stack network", invocation(s.Program)),
	}
	s.onStack(cmd, func(ctx context.Context, c *cluster, stack *pulumiv1.Stack) error {
		return s.showLogs(ctx, c, stack, options)
	})
	flags := cmd.Flags()
	flags.StringVar(&options.update, "update", "", "Show this Update of the Stack.")
	flags.BoolVarP(&options.follow, "follow", "f", true, "Go on while the update runs.")
	flags.BoolVar(&options.whole, "agent", false, "Show what the agent logs about the update, too.")
	flags.BoolVar(&options.withTime, "timestamps", false, "Show when each line was printed.")
	_ = cmd.RegisterFlagCompletionFunc("update", s.completeFlag(updates())) // fails for a flag that does not exist
	return group("logs", "Show what Pulumi prints", cmd)
}

func (s *session) showLogs(ctx context.Context, c *cluster, stack *pulumiv1.Stack, options logOptions) error {
	update, err := c.updateOf(ctx, stack, options.update)
	if err != nil {
		return err
	}
	workspace := &autov1alpha1.Workspace{}
	if err := c.read(ctx, c.key(cmp.Or(update.Spec.WorkspaceName, stack.Name)), workspace); err != nil {
		return err
	}
	if update.Status.StartTime == nil {
		return failed(exitNotReady, "update %s has not started: %s", update.Name, updateMessage(update))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow := options.follow && !update.IsComplete()
	log, err := c.openLog(ctx, workspace, update.Status.StartTime.Time, follow)
	if err != nil {
		return err
	}
	defer log.Close()
	reader := &logReader{session: s, update: update, options: options}
	if follow {
		go c.endWith(ctx, cancel, update)
	}
	err = reader.copy(log)
	if ctx.Err() == nil && err != nil {
		return fmt.Errorf("read the log of %s: %w", workspace.Name, err)
	}
	if reader.lines == 0 {
		return fmt.Errorf("the log has nothing of update %s (or no longer): its pod was replaced, its log was rotated, or it did not "+
			"get to Pulumi. The Update says: %s", update.Name, short(update.Status.Message))
	}
	return nil
}

// updateOf returns the named Update of the Stack; without a name, the running one, or else the last one.
func (c *cluster) updateOf(ctx context.Context, stack *pulumiv1.Stack, wanted string) (*autov1alpha1.Update, error) {
	if wanted == "" && stack.Status.CurrentUpdate != nil {
		wanted = stack.Status.CurrentUpdate.Name
	}
	if wanted = cmp.Or(wanted, nameOfLast(stack)); wanted == "" {
		return nil, fmt.Errorf("the Stack %q had no update yet", stack.Name)
	}
	update := &autov1alpha1.Update{}
	if err := c.read(ctx, c.key(wanted), update); err != nil {
		return nil, err
	}
	if of := cmp.Or(update.Labels[pulumiv1.StackNameLabel], update.Spec.WorkspaceName); of != stack.Name {
		return nil, fmt.Errorf("the Update %q is one of %q, not of the Stack %q", wanted, of, stack.Name)
	}
	return update, nil
}

// endWith ends the reading of the log some time after the Update has ended, in case the log does not contain the end of the operation.
func (c *cluster) endWith(ctx context.Context, end context.CancelFunc, update *autov1alpha1.Update) {
	defer end()
	latest := &autov1alpha1.Update{}
	_ = wait.PollUntilContextCancel(ctx, 2*pollInterval, false, func(ctx context.Context) (bool, error) {
		err := c.read(ctx, client.ObjectKeyFromObject(update), latest)
		return err == nil && latest.IsComplete() || apierrors.IsNotFound(err), nil
	})
	select {
	case <-ctx.Done():
	case <-time.After(logGrace):
	}
}

// logReader shows the lines of a log that belong to an Update.
type logReader struct {
	*session
	update  *autov1alpha1.Update
	options logOptions
	// lines is how many lines were shown.
	lines int
}

// logLine is a line of the agent's log. A line that Pulumi printed has a stream.
type logLine struct {
	Time      time.Time `json:"time"`
	Message   string    `json:"msg"`
	Error     string    `json:"error"`
	Operation string    `json:"operation"`
	Stream    string    `json:"stream"`
}

// copy shows the log until the log or the operation ends.
func (r *logReader) copy(log io.Reader) error {
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, maxLogLine)
	for scanner.Scan() {
		var line logLine
		if json.Unmarshal(scanner.Bytes(), &line) != nil || line.Operation != string(r.update.UID) {
			continue // not a line of the agent about this operation
		}
		if line.Stream != "" || r.options.whole {
			r.show(line)
		}
		if line.Stream == "" && line.Message == operationEnded {
			return nil
		}
	}
	if err := scanner.Err(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (r *logReader) show(line logLine) {
	text := strings.TrimRight(plaintext.Strip(line.Message), "\n")
	if line.Error != "" {
		text += ": " + print.Clean(line.Error)
	}
	if line.Stream == "" {
		text = r.out.Paint(print.Faint, text)
	}
	if r.options.withTime {
		text = r.out.Paint(print.Faint, line.Time.Format(time.RFC3339)) + " " + text
	}
	r.out.Line("%s", text)
	r.lines++
}
