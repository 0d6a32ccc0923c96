package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agent/redact"
	"github.com/stack-controller/stack-controller/internal/notify"
	"github.com/stack-controller/stack-controller/internal/runtime"
)

// errStopped is what all calls get once the Runtime has ended.
var errStopped = errors.New("the process runtime has ended")

// Runtime runs agents as child processes. Add it to the manager: while Start runs, events are delivered, logs are bounded
// and, at its end, agents without work are told to end.
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
	// user is the root directory, with a shared lock that tells how many controllers use it.
	user *os.File

	mu          sync.Mutex
	supervisors map[types.NamespacedName]*supervisor
}

var (
	_ runtime.Runtime  = &Runtime{}
	_ manager.Runnable = &Runtime{}
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
	ctx, cancel := context.WithCancel(context.Background())
	return &Runtime{
		options:     options,
		ctx:         ctx,
		cancel:      cancel,
		slots:       make(chan struct{}, 2*goruntime.NumCPU()),
		events:      notify.New(),
		redactor:    redact.New(options.passedOn()...),
		user:        user,
		supervisors: map[types.NamespacedName]*supervisor{},
	}, nil
}

// Ensure makes sure that the Workspace has an agent, or had one that worked and can be started on demand, and says how it
// stands. A Workspace that took the name of another one gets a new directory, after the other one's agent ended.
func (r *Runtime) Ensure(ctx context.Context, workspace *autov1alpha1.Workspace) (runtime.Status, error) {
	if r.ctx.Err() != nil {
		return runtime.Status{}, errStopped
	}
	s := r.supervisor(keyOf(workspace))
	defer s.mu.Unlock()
	return s.ensure(ctx, workspace.UID), nil
}

// Connect returns a client for the agent. An agent that rests is started, which Connect waits for up to two seconds; for
// an agent that crashed, and for a Workspace that Ensure has not been called for yet, the error is ErrNoAgent.
func (r *Runtime) Connect(ctx context.Context, workspace *autov1alpha1.Workspace) (*client.Client, error) {
	if r.ctx.Err() != nil {
		return nil, errStopped
	}
	s := r.supervisor(keyOf(workspace))
	defer s.mu.Unlock()
	return s.connect(ctx, workspace.UID)
}

// Delete ends the agent, with all processes it left, and removes the directory. That happens in the background: until
// it is done Delete returns ErrEnding, and an event follows.
func (r *Runtime) Delete(_ context.Context, key types.NamespacedName) error {
	if r.ctx.Err() != nil {
		return errStopped
	}
	s := r.supervisor(key)
	defer s.mu.Unlock()
	return s.discard()
}

// Events reports the workspaces whose agent appeared, changed or ended.
func (r *Runtime) Events() <-chan event.GenericEvent {
	return r.events.Events()
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
		if !s.forgotten {
			return s
		}
		s.mu.Unlock()
	}
}

// forget drops a supervisor that has nothing to look after. Its lock is held.
func (r *Runtime) forget(s *supervisor) {
	s.forgotten = true
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.supervisors, s.key)
}

// notify reports a change of the workspace's agent. It never waits.
func (r *Runtime) notify(key types.NamespacedName) {
	r.events.Add(key)
}

// directory is where everything of the workspace is.
func (r *Runtime) directory(key types.NamespacedName) directory {
	return directory{path: filepath.Join(r.options.Dir, directoryName(key))}
}

func keyOf(workspace *autov1alpha1.Workspace) types.NamespacedName {
	return types.NamespacedName{Namespace: workspace.Namespace, Name: workspace.Name}
}
