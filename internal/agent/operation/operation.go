package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/internal/plaintext"
)

// maxMessage bounds the message of an operation, in bytes.
const maxMessage = agentpb.MaxText

// operation is one run of Runner.Run.
type operation struct {
	runner   *Runner
	request  *agentpb.StartOperationRequest
	log      logr.Logger
	redactor *redact.Redactor
	report   *reporter
	inputs

	// configFile is the configuration that the CLI gets; empty for none.
	configFile string
	// secretsProvider is the secrets provider that a stack is created with; empty for the default of the backend.
	secretsProvider string
	// assumed is how the secret values are encrypted if that is not certain; empty if it is.
	assumed config.Settings
	// created is true once the operation has created the stack.
	created bool
	// exported is the state when the operation was prepared; nil until it is read.
	exported *state.Facts
	// pendingChecked is true once the operation has looked for what an earlier operation left half done.
	pendingChecked bool
	// ran is how long pulumi worked on the operation, without its preparation; nil when pulumi was not started for it.
	ran *durationpb.Duration
	// session is the login of the operation to Pulumi Cloud; nil when there is none.
	session *session
	// notes are further remarks about an operation that succeeded.
	notes []string
}

// inputs are what an operation works with. They do not change once they are found.
type inputs struct {
	project *project
	paths   Paths
	// user are the variables of the request.
	user cli.Environment
	// dir is where pulumi runs: the directory of the program, or of the stack if there is none.
	dir   string
	env   cli.Environment
	items []config.Item
	stack *state.Stack
}

// perform does the steps of the operation.
func (o *operation) perform(ctx context.Context) (map[string]*agentpb.Output, error) {
	o.report.update(func(op *agentpb.Operation) {
		op.State, op.Message = agentpb.OperationState_OPERATION_STATE_PREPARING, "preparing"
	})
	if err := o.resolve(); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		// First comes what needs no process: what was not approved must not even install anything.
		o.checkFlags, o.checkLogin, o.checkInputs, o.usePlugins,
		// Then what an earlier operation left, before anything is added to it. The backend may need a login for that.
		o.login, o.checkPending, o.install,
		// The configuration is encrypted with the key of the stack, so the stack comes first. A plan is compared with a state that only this creation
		// has changed.
		o.createExpectedStack, o.checkPlan, o.configure,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	// These need the configuration.
	plan, err := o.beginPlan(ctx)
	if err == nil {
		err = o.checkDrift(ctx)
	}
	if err != nil {
		return nil, err
	}
	o.report.update(func(op *agentpb.Operation) {
		op.State, op.Message = agentpb.OperationState_OPERATION_STATE_RUNNING, "starting pulumi"
	})
	start := time.Now()
	sum, err := o.runEngine(ctx, plan)
	o.ran = durationpb.New(time.Since(start))
	if err == nil && plan != nil {
		err = o.savePlan(ctx, plan)
	}
	if err != nil {
		return nil, err
	}
	if sum.dynamic {
		o.report.update(func(op *agentpb.Operation) { op.Project.NeedsProgram = true })
	}
	// The stack is as it should be, so the caller must not cut off what comes now.
	ctx = context.WithoutCancel(ctx)
	if o.kind() == agentpb.OperationKind_OPERATION_KIND_DESTROY {
		if err := o.proveDestroyed(ctx, sum); err != nil {
			return nil, err
		}
		return nil, o.removeStack(ctx)
	}
	return o.outputs(ctx, sum)
}

// kind returns what the operation does, regardless of whether it carries out a plan; see carriesOutPlan.
func (o *operation) kind() agentpb.OperationKind {
	return o.request.GetKind().Unplanned()
}

// resolve finds the inputs of the operation.
func (o *operation) resolve() (err error) {
	if source := o.request.GetProject(); source != nil {
		if source.GetName() == "" {
			return projectInvalid("the operation names no project")
		}
		o.project = &project{Name: source.GetName(), runtime: cmp.Or(source.GetRuntime(), noRuntime)}
		o.dir = o.runner.dir("stacks") // Nothing can be read here by its name.
	} else if o.project, err = loadProject(o.dir); err != nil {
		return err
	}
	o.report.update(func(op *agentpb.Operation) {
		op.Project = &agentpb.ProjectSource{
			Name: plaintext.Cut(o.project.Name, agentpb.MaxName), Runtime: plaintext.Cut(o.project.runtime, agentpb.MaxName),
			NeedsProgram: o.request.GetProject().GetNeedsProgram() || o.project.hasOwnPlugins(),
		}
	})
	var secrets []string
	o.user, secrets, err = resolveEnvironment(o.request.GetEnv(), o.dir)
	o.redactor.Add(secrets...)
	if err != nil {
		return configInvalid("%s", err)
	}
	var ignored []string
	o.env, ignored = o.runner.operationEnvironment(o.request, o.user)
	if len(ignored) > 0 {
		o.log.Info("environment variables are reserved and were left out", "names", ignored)
	}
	if path := o.env[config.PassphraseFileVariable]; path != "" && !filepath.IsAbs(path) {
		o.env[config.PassphraseFileVariable] = filepath.Join(o.dir, path)
	}
	o.hideCredentials()
	o.items, err = config.Resolve(o.request.GetConfig(), o.env, o.dir, o.redactor.Add)
	if err != nil {
		return configInvalid("%s", err)
	}
	return o.openStack()
}

// openStack finds the stack of the operation and makes its directory ready.
func (o *operation) openStack() error {
	stub, err := o.project.stub()
	if err != nil {
		return projectInvalid("%s is not valid: %s", o.project.file, err)
	}
	o.stack, err = state.Open(o.runner.dir("stacks"), o.request.GetStack(), o.backendURL(), o.project.Name, stub)
	if errors.Is(err, state.ErrName) {
		return configInvalid("%s", err)
	}
	if err != nil {
		return err
	}
	skipBackendMetadata(o.env)
	if earlier, known := o.runner.outputSecrets.Load(o.stack.Dir); known {
		o.hideOutputs(earlier.([][]byte))
	}
	if !o.project.hasProgram() {
		o.dir = o.stack.Dir
	}
	return errors.Join(o.isolateLogins(), o.removeConfigLink())
}

// accessTokenVariable has the credentials for Pulumi Cloud.
const accessTokenVariable = "PULUMI_ACCESS_TOKEN"

// hideCredentials hides values that are secret by their nature, whether they are marked as secret or not.
func (o *operation) hideCredentials() {
	o.redactor.Add(o.env[accessTokenVariable])
	o.redactor.Add(backendPasswords(o.backendURL())...)
	if phrase, set, err := config.Passphrase(o.env); set && err == nil {
		o.redactor.Add(phrase)
	}
}

// backendURL returns where the state is, if the operation says so; empty for the default of the CLI, which is Pulumi Cloud unless somebody
// logged in elsewhere.
func (o *operation) backendURL() string {
	if url := o.env[backendVariable]; url != "" {
		return url
	}
	return o.project.Backend.URL
}

// selfManaged reports whether the backend is certainly not Pulumi Cloud.
func (o *operation) selfManaged() bool {
	url := o.backendURL()
	return url != "" && !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://")
}

// successMessage sums up what was done.
func (o *operation) successMessage(took time.Duration) string {
	text, separator := fmt.Sprintf("done in %s", took.Round(100*time.Millisecond)), ": "
	changes := o.report.operation.GetResourceChanges()
	for _, op := range slices.Sorted(maps.Keys(changes)) {
		text += fmt.Sprintf("%s%s %d", separator, op, changes[op])
		separator = ", "
	}
	return strings.Join(append([]string{text}, o.notes...), "; ")
}
