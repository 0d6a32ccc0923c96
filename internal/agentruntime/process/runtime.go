// Package process runs the agents of workspaces as child processes of the controller. Each agent listens on a unix socket in a directory of
// its own.
//
// Agents outlive the controller. An agent is the leader of its own session and writes to files only, so that the end of the controller does
// not affect it. The next controller finds the agent through the record in the directory, by process id and start time. A lock on the
// directory coordinates controllers that run at the same time: a controller holds it while it starts an agent or removes a directory. The
// record shows which agent runs, so that there is never a second agent in a directory.
//
// An agent without work ends by itself, and Wake starts it again. A workspace whose agent does not run costs only a directory. An agent
// that crashes is started again with a growing delay.
//
// The package needs Linux 5.3 or later (process file descriptors).
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	agentclient "github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/agentruntime"
	"github.com/stack-controller/stack-controller/internal/notify"
)

// IdentityWarning is the warning that a controller with this runtime has to log when it starts.
const IdentityWarning = "the process runtime runs Pulumi programs as child processes of the controller, with its operating system user, its files and its network: " +
	"use it only where everybody who can create a Stack may have the rights of the controller"

const (
	// defaultIdleTimeout is how long an agent waits for work before it ends.
	defaultIdleTimeout = 5 * time.Minute
	// crowdedIdleTimeout is the same while MaxAgents or more agents run.
	crowdedIdleTimeout = 2 * time.Second
	// defaultStopGrace is how long an agent may take to end: it lets pulumi finish what it has begun.
	defaultStopGrace = 5 * time.Minute
	// defaultStartTimeout is how long an agent may take to listen.
	defaultStartTimeout = 30 * time.Second
)

// Options configure a Runtime.
type Options struct {
	// Dir is the directory with the directories of the workspaces. It is created with mode 0700 if it is missing, and has to be on a local
	// file system. Its absolute path may have at most 84 bytes, because the path of a unix socket in it must fit into 107.
	Dir string
	// AgentPath is the agent's executable.
	AgentPath string
	// PulumiPath is the pulumi CLI: a path, or a name to find in PATH.
	PulumiPath string
	// AgentArgs are more arguments for the agent, for example its limits.
	AgentArgs []string
	// Environ are names of environment variables of the controller that the agents, and so the programs, get too. They get
	// nothing else of its environment but PATH, LANG, TZ and USER.
	Environ []string
	// IdleTimeout is how long an agent waits for work before it ends by itself, unless its Workspace has another value; defaultIdleTimeout
	// when zero.
	IdleTimeout time.Duration
	// MaxAgents is the number of running agents up to which IdleTimeout holds: an agent that is started while so many run ends
	// crowdedIdleTimeout after its work. 0 means no limit.
	MaxAgents int
	// RestartDelay is the delay before an agent that crashed once is started again. It doubles with each further crash in a row;
	// defaultRestartDelay when zero.
	RestartDelay time.Duration
	// stopGrace is how long an agent may take to end after SIGTERM before it is killed; defaultStopGrace when zero.
	stopGrace time.Duration
	// startTimeout is how long an agent may take until it listens; defaultStartTimeout when zero.
	startTimeout time.Duration
	// Exists reports whether there is a Workspace with this name and UID. Start removes the directories of other Workspaces. If it is nil,
	// Start keeps all of them.
	Exists func(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error)
	// Moved reports whether there still is a Workspace of this name that now belongs to the controller of another shard. Its directory stays,
	// because its agent may have an operation. It is nil when no other controller has Workspaces.
	Moved func(ctx context.Context, key types.NamespacedName) (bool, error)
	// Log receives a line when something happens to an agent.
	Log logr.Logger
}

// complete sets the defaults and makes the paths absolute. It fails for options that cannot work.
func (o Options) complete() (Options, error) {
	o.IdleTimeout = cmp.Or(o.IdleTimeout, defaultIdleTimeout)
	o.RestartDelay = cmp.Or(o.RestartDelay, defaultRestartDelay)
	o.stopGrace = cmp.Or(o.stopGrace, defaultStopGrace)
	o.startTimeout = cmp.Or(o.startTimeout, defaultStartTimeout)
	if o.Dir == "" {
		return o, errors.New("no directory for the workspaces is set")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return o, fmt.Errorf("find the absolute path of %s: %w", o.Dir, err)
	}
	if o.AgentPath, err = executable(o.AgentPath); err != nil {
		return o, fmt.Errorf("find the agent: %w", err)
	}
	if o.PulumiPath, err = executable(o.PulumiPath); err != nil {
		return o, fmt.Errorf("find the pulumi CLI: %w", err)
	}
	socket := directory{path: filepath.Join(o.Dir, directoryName(types.NamespacedName{}))}.socket()
	if excess := len(socket) - maxSocketPath; excess > 0 {
		return o, fmt.Errorf("the directory for the workspaces, %s, is %d bytes too long: a unix socket in it must have a path of at most %d bytes",
			o.Dir, excess, maxSocketPath)
	}
	return o, checkKernel()
}

// executable returns the absolute path of a program that is named by path or found in PATH.
func executable(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// checkKernel returns an error if the kernel has no process file descriptors.
func checkKernel() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("the process runtime needs process file descriptors (Linux 5.3 or later): %w", err)
	}
	return unix.Close(fd)
}

// errStopped is the error of all calls once the Runtime has ended.
var errStopped = errors.New("the process runtime has ended")

// Runtime runs agents as child processes. Add it to the manager: Start delivers events and keeps logs bounded and, when it ends, ends the
// agents without work.
type Runtime struct {
	options Options
	// ctx ends all workers.
	ctx    context.Context
	cancel context.CancelFunc
	// slots bound how many agents start at the same time.
	slots  chan struct{}
	events *notify.Notifier
	// redactor hides the values that were passed on to the agents, in case one of them is in a log.
	redactor *redact.Redactor
	// sharedLock is the open Options.Dir, with a shared lock that shows whether other controllers use it.
	sharedLock *os.File
	// groups are the agents by namespace.
	groups agentclient.Groups

	// agents is how many agents run.
	agents atomic.Int64

	mu          sync.Mutex
	supervisors map[types.NamespacedName]*supervisor
}

var (
	_ agentruntime.Runtime = &Runtime{}
	_ manager.Runnable     = &Runtime{}
)

// New returns a Runtime. It fails when something is missing, or when the path of the directory is too long.
func New(options Options) (*Runtime, error) {
	options, err := options.complete()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for the workspaces: %w", err)
	}
	user, err := os.Open(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory for the workspaces: %w", err)
	}
	if err := flock(user, unix.LOCK_SH); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the directory for the workspaces: %w", err), user.Close())
	}
	r := &Runtime{
		options:     options,
		slots:       make(chan struct{}, 2*goruntime.NumCPU()),
		events:      notify.New(),
		redactor:    redact.New(),
		sharedLock:  user,
		supervisors: map[types.NamespacedName]*supervisor{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for _, name := range options.Environ {
		r.redactor.Add(os.Getenv(name))
	}
	return r, nil
}

// Ensure makes sure that the Workspace has an agent, or had one that worked and can be started on demand, and returns its status. It
// ignores idle: an agent itself notices that it is idle. A Workspace that has the name of an earlier one gets a new directory after the
// agent of the earlier one has ended.
func (r *Runtime) Ensure(ctx context.Context, workspace *autov1alpha1.Workspace, _ bool) (agentruntime.Status, error) {
	if r.ctx.Err() != nil {
		return agentruntime.Status{}, errStopped
	}
	s := r.supervisor(client.ObjectKeyFromObject(workspace))
	defer s.mu.Unlock()
	s.idleTimeout = workspace.Spec.IdleTimeout
	return s.ensure(ctx, workspace.UID), nil
}

// Connect returns a client for the agent. It waits for an agent that is being started for at most startWait. For an agent that ended because
// it had no work, the error is ErrResting; for an agent that crashed, and for a Workspace for which Ensure was never called, ErrNoAgent.
func (r *Runtime) Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*agentclient.Client, error) {
	if r.ctx.Err() != nil {
		return nil, errStopped
	}
	s := r.supervisor(client.ObjectKeyFromObject(workspace))
	defer s.mu.Unlock()
	s.idleTimeout = workspace.Spec.IdleTimeout
	return s.connect(ctx, workspace.UID, false)
}

// Wake returns a client for the agent. If the agent ended because it had no work, Wake starts it and waits for that for at most startWait.
func (r *Runtime) Wake(ctx context.Context, workspace *autov1alpha1.Workspace) (*agentclient.Client, error) {
	if r.ctx.Err() != nil {
		return nil, errStopped
	}
	s := r.supervisor(client.ObjectKeyFromObject(workspace))
	defer s.mu.Unlock()
	s.idleTimeout = workspace.Spec.IdleTimeout
	return s.connect(ctx, workspace.UID, true)
}

// Delete ends the agent and the processes that it left, and removes the directory, both in the background. Until that is done, Delete
// returns ErrEnding, and an event follows. It does nothing for a Workspace that only moved to another controller: the agent ends when it
// has nothing to do, and Start of a later controller removes the directory once the Workspace is gone.
func (r *Runtime) Delete(ctx context.Context, key types.NamespacedName) error {
	if r.ctx.Err() != nil {
		return errStopped
	}
	if r.options.Moved != nil {
		if moved, err := r.options.Moved(ctx, key); err != nil || moved {
			return err
		}
	}
	s := r.supervisor(key)
	defer s.mu.Unlock()
	return s.discard()
}

// Events reports the workspaces whose agent appeared, changed or ended.
func (r *Runtime) Events() <-chan event.GenericEvent {
	return r.events.Events()
}

// Agents returns how many agents run.
func (r *Runtime) Agents() int {
	return int(r.agents.Load())
}

// Ignores lists the fields that the Workspace sets and that mean nothing for a process.
func (r *Runtime) Ignores(workspace *autov1alpha1.Workspace) []string {
	spec := workspace.Spec
	var fields []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"image", spec.Image != ""},
		{"imagePullPolicy", spec.ImagePullPolicy != ""},
		{"podTemplate", spec.PodTemplate != nil},
		{"resources", len(spec.Resources.Limits)+len(spec.Resources.Requests)+len(spec.Resources.Claims) > 0},
		{"serviceAccountName", workspace.GetServiceAccountName() != autov1alpha1.DefaultServiceAccountName},
		{"serviceTemplate", spec.ServiceTemplate != nil},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
}

// supervisor returns the supervisor of the workspace with its lock held.
func (r *Runtime) supervisor(key types.NamespacedName) *supervisor {
	for {
		r.mu.Lock()
		s, found := r.supervisors[key]
		if !found {
			s = newSupervisor(r, key)
			r.supervisors[key] = s
		}
		r.mu.Unlock()
		s.mu.Lock()
		if !s.removed {
			return s
		}
		s.mu.Unlock()
	}
}

// remove removes a supervisor that has nothing to supervise any longer. Its lock is held.
func (r *Runtime) remove(s *supervisor) {
	s.removed = true
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.supervisors, s.key)
}

// directory returns the directory of the workspace.
func (r *Runtime) directory(key types.NamespacedName) directory {
	return directory{path: filepath.Join(r.options.Dir, directoryName(key))}
}
