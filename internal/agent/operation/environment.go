package operation

import (
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
)

// switches are set for every process.
var switches = cli.Environment{
	"PULUMI_AUTOMATION_API":    "true",
	"PULUMI_SKIP_UPDATE_CHECK": "true",
	// Without this variable there is no flag for the event log.
	"PULUMI_DEBUG_COMMANDS": "true",
	// Reuses the key of the state. Otherwise each run without an encryption salt makes a new key and encrypts the state again.
	"PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER": "true",
	// Saves every process from listing the directory of all stacks when it starts. See checkLayout.
	"PULUMI_DIY_BACKEND_NO_LEGACY_WARNING": "true",
	// Every process writes a log file and looks at all existing ones, so these are kept few and small.
	"PULUMI_LOG_ROTATION_MAX_AGE_DAYS": "1",
	"PULUMI_LOG_ROTATION_MAX_TOTAL_MB": "16",
}

// nodeCache is the variable with the directory of Node.js for compiled code.
const nodeCache = "NODE_COMPILE_CACHE"

// reserved are the variables that neither a user nor an image can set. With them pulumi would do something else than the operation says
// (another stack, other flags), would not find what is installed, or would not communicate with the agent. All PULUMI_OPTION_* are
// reserved, because each of them sets a flag of the CLI. PULUMI_BACKEND_URL is not reserved: it says where the state is.
var reserved = []string{
	"PULUMI_STACK", "PULUMI_HOME", "PULUMI_AUTOMATION_API", "PULUMI_DEBUG_COMMANDS", "PULUMI_SKIP_UPDATE_CHECK",
	"PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER", "PULUMI_NO_INTERACTIVE", "PULUMI_CONFIG", "PULUMI_CONFIG_SECRET_KEYS",
	"PULUMI_PREVIEW_ONLY", "PULUMI_RUN_PROGRAM", cli.InvocationVariable,
}

// reservedPrefixes extend reserved.
var reservedPrefixes = []string{"PULUMI_OPTION_", "STACK_CONTROLLER_"}

// commitPrefixes are the variables that may come as commit metadata.
var commitPrefixes = []string{"PULUMI_VCS_", "PULUMI_GIT_", "PULUMI_CI_", "PULUMI_PR_", "PULUMI_COMMIT_"}

// messageVariables override the --message flag where there is no .git directory.
var messageVariables = []string{"PULUMI_GIT_COMMIT_MESSAGE", "PULUMI_COMMIT_MESSAGE"}

func isReserved(name string) bool {
	return slices.Contains(reserved, name) || hasAnyPrefix(name, reservedPrefixes)
}

func hasAnyPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// inherited returns the variables of Options.Environ.
func (r *Runner) inherited() cli.Environment {
	env := cli.Environment{}
	for _, entry := range r.options.Environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env[name] = value
		}
	}
	return env
}

// baseEnvironment is the environment of a process that belongs to no operation.
func (r *Runner) baseEnvironment() cli.Environment {
	env := r.inherited()
	maps.DeleteFunc(env, func(name, _ string) bool { return isReserved(name) })
	env["HOME"] = r.home()
	env["TMPDIR"] = r.tempDir()
	// The CLI finds its language plugins beside itself.
	env["PATH"] = strings.TrimSuffix(filepath.Dir(r.cli.Path)+string(os.PathListSeparator)+env["PATH"], string(os.PathListSeparator))
	if env["USER"] == "" {
		// The lock of a self-managed backend names the user, and the CLI fails when the user ID has no name.
		env["USER"] = userName()
	}
	if _, set := env[nodeCache]; !set {
		// Node.js keeps there what it has compiled, and starts a program a tenth faster the next time. Versions before 22 ignore it.
		env[nodeCache] = r.dir("node")
	}
	maps.Copy(env, switches)
	env["PULUMI_HOME"] = r.pulumiHome()
	return env
}

// operationEnvironment adds the variables of the request to the base. ignored are the names of variables that were left out.
func (r *Runner) operationEnvironment(request *agentpb.StartOperationRequest, user cli.Environment) (env cli.Environment, ignored []string) {
	env = r.baseEnvironment()
	r.dropRemoved(env, user)
	for name, value := range request.GetCommitMetadata() {
		if hasAnyPrefix(name, commitPrefixes) {
			env[name] = value
		} else {
			ignored = append(ignored, name)
		}
	}
	for name, value := range user {
		if isReserved(name) {
			ignored = append(ignored, name)
			continue
		}
		env[name] = value
	}
	if token, set := env[accessTokenVariable]; set {
		// A file of a Secret often ends with a newline, and no token has one: the CLI would fail with "invalid header field value".
		env[accessTokenVariable] = strings.TrimSpace(token)
	}
	if request.GetOptions().GetMessage() != "" {
		for _, name := range messageVariables {
			delete(env, name)
		}
	}
	slices.Sort(ignored)
	return env, ignored
}

// always are variables that every process has, see baseEnvironment.
var always = append(slices.Collect(maps.Keys(switches)), "HOME", "PATH", "PULUMI_HOME", "TMPDIR", "USER", nodeCache)

// dropRemoved removes the variables that an earlier operation had and this one does not have any longer. A container keeps the keys that a Secret
// had when it started, and so does what it starts; the requests have those that the Secret has now. What earlier agents knew does not count: a
// container that starts has the keys of that moment, and by then the variable may come from elsewhere, such as the image.
func (r *Runner) dropRemoved(env, user cli.Environment) {
	if !r.options.ExclusiveHost {
		return // the variables of a process do not come from Secrets
	}
	for name := range env {
		_, has := user[name]
		if _, had := r.requested.Load(name); has {
			r.requested.Store(name, nil)
		} else if had && !slices.Contains(always, name) {
			delete(env, name)
		}
	}
}

func userName() string {
	if current, err := user.Current(); err == nil && current.Username != "" {
		return current.Username
	}
	return "pulumi"
}

// resolveEnvironment returns the variables of the request with their values. Paths of files are relative to dir. secrets are the values to
// hide, even when there is an error.
func resolveEnvironment(variables []*agentpb.EnvironmentVariable, dir string) (env cli.Environment, secrets []string, err error) {
	env = cli.Environment{}
	for _, variable := range variables {
		name := variable.GetName()
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, secrets, fmt.Errorf("environment variable %q has no usable name", name)
		}
		var value string
		switch variable.GetValue().(type) {
		case *agentpb.EnvironmentVariable_FromEnv:
			found, ok := os.LookupEnv(variable.GetFromEnv())
			if !ok {
				return nil, secrets, fmt.Errorf("environment variable %s: the workspace has no variable %s", name, variable.GetFromEnv())
			}
			value = found
		case *agentpb.EnvironmentVariable_FromFile:
			if value, err = config.ReadValue(dir, variable.GetFromFile()); err != nil {
				return nil, secrets, fmt.Errorf("environment variable %s: cannot read %s: %w", name, variable.GetFromFile(), err)
			}
		default:
			value = variable.GetText()
		}
		if variable.GetSecret() {
			secrets = append(secrets, value)
		}
		if strings.Contains(value, "\x00") {
			return nil, secrets, fmt.Errorf("environment variable %s: the value contains a zero byte", name)
		}
		env[name] = value
	}
	return env, secrets, nil
}
