package operation

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/blang/semver"
	. "github.com/onsi/gomega"
	"github.com/pulumi/pulumi/sdk/v3/go/auto"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/debug"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optdestroy"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optpreview"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optrefresh"
	"github.com/pulumi/pulumi/sdk/v3/go/auto/optup"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/state"
)

// The Automation API is the reference for how the CLI is called. It is not part of the agent, because it would double the agent's memory.

const (
	up      = agentpb.OperationKind_OPERATION_KIND_UP
	preview = agentpb.OperationKind_OPERATION_KIND_PREVIEW
	refresh = agentpb.OperationKind_OPERATION_KIND_REFRESH
	destroy = agentpb.OperationKind_OPERATION_KIND_DESTROY
)

// everyOption has each option of a request by itself, and all of them together.
var everyOption = map[string]*agentpb.OperationOptions{
	"none":              {},
	"parallel":          {Parallel: 7},
	"message":           {Message: "say \"hello\"\nin two lines"},
	"expect no changes": {ExpectNoChanges: true},
	"replace":           {Replace: []string{"urn:pulumi:dev::demo::a::x", "urn:pulumi:dev::demo::a::y=z"}},
	"target":            {Target: []string{"urn:pulumi:dev::demo::a::x", "**y"}},
	"target dependents": {Target: []string{"a"}, TargetDependents: true},
	"exclude":           {Exclude: []string{"urn:pulumi:dev::demo::a::x", "**y"}, ExcludeDependents: true},
	"refresh":           {Refresh: true},
	"continue on error": {ContinueOnError: true},
	"remove":            {Remove: true},
	"run program":       {RunProgram: true},
	"log level":         {LogLevel: 3},
	"highest log level": {LogLevel: 99},
	"all": {
		Parallel: 1, Message: "m", ExpectNoChanges: true, Replace: []string{"r"}, Target: []string{"t"}, TargetDependents: true,
		Exclude: []string{"e"}, ExcludeDependents: true, Refresh: true, ContinueOnError: true, RunProgram: true, LogLevel: 11,
	},
}

func TestCLIGetsWhatTheAutomationAPIWouldPass(t *testing.T) {
	for name, options := range everyOption {
		for _, kind := range []agentpb.OperationKind{up, preview, refresh, destroy} {
			for _, configFile := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/configFile=%t", kind, name, configFile), func(t *testing.T) {
					g := NewWithT(t)
					o := &operation{
						request: &agentpb.StartOperationRequest{Kind: kind, Options: options},
						stack:   &state.Stack{Name: "org/demo/dev", Short: "dev", Dir: "/home/stacks/x"},
					}
					if configFile {
						o.configFile = o.stack.ConfigFile()
					}
					ours, err := o.arguments()
					g.Expect(err).NotTo(HaveOccurred())
					theirs := o.argumentsOfTheAutomationAPI(t)
					g.Expect(ours[0]).To(Equal(theirs[0]))
					g.Expect(joinStack(ours)).To(ConsistOf(joinStack(theirs)))
				})
			}
		}
	}
}

func TestUnknownKindOfOperationIsNotRun(t *testing.T) {
	o := &operation{request: &agentpb.StartOperationRequest{Kind: 99}, stack: &state.Stack{}}
	_, err := o.arguments()
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("there is no operation 99")))
}

// joinStack joins the flag for the stack and its value into one argument.
func joinStack(args []string) []string {
	at := slices.Index(args, "--stack")
	return append(append(slices.Clone(args[:at]), "--stack="+args[at+1]), args[at+2:]...)
}

// argumentsOfTheAutomationAPI calls the API for the operation and returns the arguments that the API would pass to the CLI: without its
// event log, and with the message as it was given.
func (o *operation) argumentsOfTheAutomationAPI(t *testing.T) []string {
	t.Helper()
	g := NewWithT(t)
	recorder := &recordingCommand{}
	workspace, err := auto.NewLocalWorkspace(t.Context(), auto.WorkDir(t.TempDir()), auto.Pulumi(recorder))
	g.Expect(err).NotTo(HaveOccurred())
	target, err := auto.SelectStack(t.Context(), o.stack.Name, workspace)
	g.Expect(err).NotTo(HaveOccurred())
	// The calls fail, because the recorder runs nothing.
	switch o.request.GetKind() {
	case up:
		_, err = target.Up(t.Context(), o.upOptions()...)
	case preview:
		_, err = target.Preview(t.Context(), o.previewOptions()...)
	case refresh:
		_, err = target.Refresh(t.Context(), o.refreshOptions()...)
	case destroy:
		_, err = target.Destroy(t.Context(), o.destroyOptions()...)
	}
	g.Expect(err).To(MatchError(ContainSubstring(errRecorded.Error())))
	g.Expect(recorder.env).To(ConsistOf("PULUMI_DEBUG_COMMANDS=true"), "what the API sets is what we set")
	g.Expect(switches).To(HaveKeyWithValue("PULUMI_DEBUG_COMMANDS", "true"))
	args := recorder.args
	if at := slices.Index(args, "--event-log"); at >= 0 {
		args = slices.Delete(args, at, at+2)
	}
	if message := o.request.GetOptions().GetMessage(); message != "" {
		quoted := slices.Index(args, fmt.Sprintf("--message=%q", message))
		g.Expect(quoted).To(BeNumerically(">=", 0))
		args[quoted] = "--message=" + message
	}
	return args
}

var errRecorded = fmt.Errorf("recorded")

// recordingCommand is an auto.PulumiCommand that runs nothing.
type recordingCommand struct {
	args, env []string
}

func (r *recordingCommand) Version() semver.Version {
	return semver.MustParse("3.250.0")
}

func (r *recordingCommand) Run(_ context.Context, _ string, _ io.Reader, _, _ []io.Writer, env []string, args ...string) (string, string, int, error) {
	if strings.Join(args[:2], " ") == "stack select" {
		return "", "", 0, nil
	}
	r.args, r.env = args, env
	return "", "", -1, errRecorded
}

func (o *operation) upOptions() []optup.Option {
	want := o.request.GetOptions()
	options := []optup.Option{
		optup.Color("never"), optup.UserAgent(userAgent), optup.DebugLogging(o.debugLogging()), optup.Message(want.GetMessage()),
		optup.Parallel(int(want.GetParallel())), optup.Replace(want.GetReplace()), optup.Target(want.GetTarget()), optup.ConfigFile(o.configFile),
	}
	options = appendIf(options, want.GetExpectNoChanges(), optup.ExpectNoChanges())
	options = appendIf(options, want.GetTargetDependents(), optup.TargetDependents())
	options = append(options, optup.Exclude(want.GetExclude()))
	options = appendIf(options, want.GetExcludeDependents(), optup.ExcludeDependents())
	options = appendIf(options, want.GetRefresh(), optup.Refresh())
	return appendIf(options, want.GetContinueOnError(), optup.ContinueOnError())
}

func (o *operation) previewOptions() []optpreview.Option {
	want := o.request.GetOptions()
	options := []optpreview.Option{
		optpreview.Color("never"), optpreview.UserAgent(userAgent), optpreview.DebugLogging(o.debugLogging()), optpreview.Message(want.GetMessage()),
		optpreview.Parallel(int(want.GetParallel())), optpreview.Replace(want.GetReplace()), optpreview.Target(want.GetTarget()),
		optpreview.ConfigFile(o.configFile),
	}
	options = appendIf(options, want.GetExpectNoChanges(), optpreview.ExpectNoChanges())
	options = appendIf(options, want.GetTargetDependents(), optpreview.TargetDependents())
	options = append(options, optpreview.Exclude(want.GetExclude()))
	options = appendIf(options, want.GetExcludeDependents(), optpreview.ExcludeDependents())
	return appendIf(options, want.GetRefresh(), optpreview.Refresh())
}

func (o *operation) refreshOptions() []optrefresh.Option {
	want := o.request.GetOptions()
	options := []optrefresh.Option{
		optrefresh.Color("never"), optrefresh.UserAgent(userAgent), optrefresh.DebugLogging(o.debugLogging()), optrefresh.Message(want.GetMessage()),
		optrefresh.Parallel(int(want.GetParallel())), optrefresh.Target(want.GetTarget()), optrefresh.ConfigFile(o.configFile),
	}
	options = appendIf(options, want.GetExpectNoChanges(), optrefresh.ExpectNoChanges())
	options = appendIf(options, want.GetTargetDependents(), optrefresh.TargetDependents())
	options = append(options, optrefresh.Exclude(want.GetExclude()))
	options = appendIf(options, want.GetExcludeDependents(), optrefresh.ExcludeDependents())
	return appendIf(options, want.GetRunProgram(), optrefresh.RunProgram(true))
}

func (o *operation) destroyOptions() []optdestroy.Option {
	want := o.request.GetOptions()
	options := []optdestroy.Option{
		optdestroy.Color("never"), optdestroy.UserAgent(userAgent), optdestroy.DebugLogging(o.debugLogging()), optdestroy.Message(want.GetMessage()),
		optdestroy.Parallel(int(want.GetParallel())), optdestroy.Target(want.GetTarget()), optdestroy.ConfigFile(o.configFile),
	}
	options = appendIf(options, want.GetTargetDependents(), optdestroy.TargetDependents())
	options = append(options, optdestroy.Exclude(want.GetExclude()))
	options = appendIf(options, want.GetExcludeDependents(), optdestroy.ExcludeDependents())
	options = appendIf(options, want.GetRefresh(), optdestroy.Refresh())
	options = appendIf(options, want.GetContinueOnError(), optdestroy.ContinueOnError())
	return appendIf(options, want.GetRunProgram(), optdestroy.RunProgram(true))
}

func appendIf[T any](options []T, holds bool, option T) []T {
	if holds {
		return append(options, option)
	}
	return options
}

func (o *operation) debugLogging() debug.LoggingOptions {
	level := uint(min(o.request.GetOptions().GetLogLevel(), 11))
	if level == 0 {
		return debug.LoggingOptions{}
	}
	return debug.LoggingOptions{LogLevel: &level, LogToStdErr: true}
}
