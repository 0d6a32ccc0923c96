package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stack-controller/stack-controller/internal/procfs"
	"github.com/stack-controller/stack-controller/tests/load/faults/campaign"
)

// processIDFaults need a PID namespace of the test.
var processIDFaults = []campaign.Fault{{
	Kind: "process id of a killed agent given to a thread", Short: true, Holds: []string{theAgents, theController},
	Inject: hitting(giveIDToThread),
}}

var processFaults = []campaign.Fault{
	{Kind: "agent killed", Short: true, Inject: hitting(killAgent)},
	{Kind: "pulumi killed", Short: true, Inject: hitting(killPulumi)},
}

// hunt is how long a fault looks for a process to kill.
const hunt = 3 * time.Second

// workspaceDir returns the directory in which the process runtime keeps the files of the app's agent.
func (s *fixture) workspaceDir(a *campaign.App) string {
	sum := sha256.Sum256([]byte(a.Key().String()))
	return filepath.Join(s.system.Dir, "data", "workspaces", hex.EncodeToString(sum[:])[:12])
}

// agent returns the recorded process of the app's agent, or the zero value when none is recorded. The record outlives the agent.
func (s *fixture) agent(a *campaign.App) procfs.Identity {
	content, err := os.ReadFile(filepath.Join(s.workspaceDir(a), "workspace.json"))
	if err != nil {
		return procfs.Identity{}
	}
	var record struct{ Agent procfs.Identity }
	_ = json.Unmarshal(content, &record) // the record may be removed at this moment
	return record.Agent
}

// running returns the process if it still runs, and the zero value otherwise.
func running(process procfs.Identity) procfs.Identity {
	if runs, err := process.Running(); err != nil || !runs {
		return procfs.Identity{}
	}
	return process
}

// pulumiProcess returns the pulumi process that the app's agent runs, or the zero value when there is none.
func (s *fixture) pulumiProcess(a *campaign.App) procfs.Identity {
	agent := running(s.agent(a))
	if agent.PID == 0 {
		return agent
	}
	for _, pid := range childrenNamed(agent.PID, "pulumi") {
		process, _ := procfs.Identify(pid) // the zero value when it has ended
		return process
	}
	return procfs.Identity{}
}

// killAgent kills an agent, preferably one that is running an operation.
func killAgent(ctx context.Context, on *target) (campaign.Heal, error) {
	err := on.kill(ctx, func(a *campaign.App) procfs.Identity {
		if on.pulumiProcess(a).PID == 0 {
			return procfs.Identity{}
		}
		return running(on.agent(a))
	})
	if err == nil && on.Missed {
		err = on.kill(ctx, func(a *campaign.App) procfs.Identity { return running(on.agent(a)) })
	}
	return nil, err
}

func killPulumi(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.kill(ctx, on.pulumiProcess)
}

// kill kills the first process that find returns for an app, if it returns one in time.
func (t *target) kill(ctx context.Context, find func(*campaign.App) procfs.Identity) error {
	return t.Hunt(ctx, hunt, func(a *campaign.App) (bool, error) {
		process := find(a)
		if process.PID <= 1 {
			return false, nil
		}
		a.Killed()
		return true, ignoreEnded(process.Signal(syscall.SIGKILL))
	})
}

const (
	// bystanderVariable makes this executable a program with threads that does nothing.
	bystanderVariable = "STACK_CONTROLLER_TEST_BYSTANDER"
	// maxBystanders is how many bystanders are kept. When there are more, the first one is ended: by then, its thread is not needed any
	// more.
	maxBystanders = 4
	// bystanderStart is how long a bystander may take to start its threads.
	bystanderStart = 50 * time.Millisecond
)

func beBystander() {
	if os.Getenv(bystanderVariable) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin) // which ends with the test
		os.Exit(0)
	}
}

// giveIDToThread kills an agent, preferably one that is running an operation, and gives its process id, which is recorded, to a thread of
// another process.
func giveIDToThread(ctx context.Context, on *target) (campaign.Heal, error) {
	victim, agent := on.findAgent(ctx)
	if on.Missed = true; victim == nil {
		return nil, nil
	}
	victim.Killed()
	before := on.main.started()
	heal := func(ctx context.Context) error { return on.main.awaitStart(ctx, before) }
	// The controller is killed first, because it would start another agent and record that.
	if err := errors.Join(on.main.signal(syscall.SIGKILL), ignoreEnded(agent.Signal(syscall.SIGKILL))); err != nil {
		return heal, err
	}
	return heal, on.main.beforeStart(func() error { return on.occupy(ctx, agent.PID) })
}

// findAgent waits for an agent that runs pulumi. When there is none in time, it returns any other agent.
func (t *target) findAgent(ctx context.Context) (found *campaign.App, agent procfs.Identity) {
	_ = t.Hunt(ctx, hunt, func(a *campaign.App) (bool, error) {
		process := running(t.agent(a))
		if process.PID == 0 {
			return false, nil
		}
		found, agent = a, process
		return t.pulumiProcess(a).PID != 0, nil
	}) // the function returns no error
	return found, agent
}

// occupy gives the process id to a thread of a bystander. The fault misses when another process gets the id first.
func (t *target) occupy(ctx context.Context, id int) error {
	for deadline := time.Now().Add(hunt); time.Now().Before(deadline); {
		if syscall.Kill(id, 0) == nil {
			campaign.Wait(ctx, campaign.PollInterval/10) // the agent has not been waited for yet, or another process has the id
			continue
		}
		// The next ids go to the process and its first threads.
		if err := setLastID(id - 2 - t.Random.IntN(3)); err != nil {
			return fmt.Errorf("choose the next process id: %w", err)
		}
		bystander := exec.Command("/proc/self/exe")
		bystander.Env = append(os.Environ(), bystanderVariable+"=1")
		if _, err := bystander.StdinPipe(); err != nil {
			return err
		}
		if err := bystander.Start(); err != nil {
			return err
		}
		campaign.Wait(ctx, bystanderStart)
		_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", bystander.Process.Pid, id))
		if t.Missed = err != nil || id == bystander.Process.Pid; !t.Missed {
			t.keep(bystander)
			return nil
		}
		end(bystander)
	}
	return nil
}

// keep keeps the bystander running as long as its thread may matter.
func (s *fixture) keep(bystander *exec.Cmd) {
	if s.bystanders = append(s.bystanders, bystander); len(s.bystanders) > maxBystanders {
		end(s.bystanders[0])
		s.bystanders = s.bystanders[1:]
	}
}

func (s *fixture) endBystanders() {
	for _, bystander := range s.bystanders {
		end(bystander)
	}
	s.bystanders = nil
}

func end(bystander *exec.Cmd) {
	_ = bystander.Process.Kill()
	_ = bystander.Wait() // it was killed
}

func ignoreEnded(err error) error {
	if errors.Is(err, procfs.ErrNotRunning) {
		return nil
	}
	return err
}

var clusterFaults = []campaign.Fault{
	{Kind: "API server frozen for 1 s", Shortest: time.Second, Longest: time.Second, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server frozen for 30 s", Shortest: 30 * time.Second, Longest: 30 * time.Second, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server frozen for 300 s", Shortest: outage, Longest: outage, Rare: true, Inject: hitting(freezeServer("kube-apiserver"))},
	{Kind: "API server away for 300 s", Rare: true, Inject: hitting(stopAPIServer)},
	{Kind: "API server restarted", Inject: hitting(restartAPIServer)},
	{Kind: "connections to the API server cut", Short: true, Inject: hitting(cutConnections)},
	{Kind: "no way to the API server", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(noWay)},
	{Kind: "etcd restarted", Inject: hitting(restartEtcd)},
}

func freezeServer(name string) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		if err := signalServer(on.system.ControlPlane, name, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		return func(context.Context) error { return signalServer(on.system.ControlPlane, name, syscall.SIGCONT) }, nil
	}
}

// outage is longer than every lease, every lock and every timeout of a request.
const outage = 300 * time.Second

func stopAPIServer(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartAPIServer(ctx, outage)
}

func restartAPIServer(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartAPIServer(ctx, time.Duration(on.Random.IntN(1000))*time.Millisecond)
}

func cutConnections(_ context.Context, on *target) (campaign.Heal, error) {
	on.api.cut(false)
	return nil, nil
}

func noWay(_ context.Context, on *target) (campaign.Heal, error) {
	on.api.cut(true)
	return func(context.Context) error {
		on.api.cut(false)
		return nil
	}, nil
}

func restartEtcd(ctx context.Context, on *target) (campaign.Heal, error) {
	cp := on.system.ControlPlane
	ready := func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(cp.Dir, "etcd", "client:0"))
		if err != nil {
			return err
		}
		return connection.Close()
	}
	return nil, restartServer(ctx, cp, "etcd", ready, nil, nil)
}

var requestFaults = []campaign.Fault{
	{Kind: "writes refused as conflicts", Shortest: time.Second, Longest: 6 * time.Second, Inject: hitting(spoilWrites(writesRefused))},
	{
		Kind: "answers to writes lost", Short: true, Shortest: time.Second, Longest: 6 * time.Second,
		Inject: hitting(spoilWrites(writesUnanswered)),
	},
}

// spoilWrites spoils each write of the controller, each second one, or each third one.
func spoilWrites(how int32) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		before := on.gate.hits.Load()
		on.gate.spoil(how, 1+on.Random.Int32N(3))
		return func(context.Context) error {
			on.gate.mode.Store(writesDone)
			on.Missed = on.gate.hits.Load() == before
			return nil
		}, nil
	}
}

var sourceFaults = []campaign.Fault{
	{Kind: "source-controller frozen", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(freezeServer("source-controller"))},
	{Kind: "source-controller restarted", Short: true, Inject: hitting(restartSource)},
	{Kind: "artifacts truncated", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedTruncated))},
	{Kind: "artifacts wrong", Short: true, Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedWrong))},
	{Kind: "artifacts unavailable", Shortest: time.Second, Longest: 5 * time.Second, Inject: hitting(serve(servedNotAtAll))},
}

func restartSource(ctx context.Context, on *target) (campaign.Heal, error) {
	return nil, on.restartSourceController(ctx, nil)
}

func serve(how int32) injection {
	return func(_ context.Context, on *target) (campaign.Heal, error) {
		before := on.mirror.hits.Load()
		on.mirror.mode.Store(how)
		return func(context.Context) error {
			on.mirror.mode.Store(servedWell)
			on.Missed = on.mirror.hits.Load() == before
			return nil
		}, nil
	}
}

var backendFaults = []campaign.Fault{
	{Kind: "backend locked by somebody else", Shortest: time.Second, Longest: 6 * time.Second, Inject: hitting(lockBackend)},
	{Kind: "backend empty", Short: true, Shortest: 3 * time.Second, Longest: 6 * time.Second,
		Holds: []string{theController, theBackend}, Inject: hitting(emptyBackend)},
	{Kind: "backend away", Short: true, Shortest: time.Second, Longest: 4 * time.Second, Inject: hitting(moveBackend)},
}

// lockBackend writes the lock of a process on an unknown machine.
func lockBackend(_ context.Context, on *target) (campaign.Heal, error) {
	locks := filepath.Join(on.backend(), ".pulumi", "locks", "organization", on.Any().Name, "dev")
	lock := filepath.Join(locks, "5f0cbd17-2b8a-4d4e-9a54-6f4a4c4f6a10.json")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	content := `{"pid":4242,"username":"somebody","hostname":"elsewhere","timestamp":"` + time.Now().Format(time.RFC3339) + `"}`
	if err := os.WriteFile(lock, []byte(content), 0o600); err != nil {
		return nil, err
	}
	return func(context.Context) error { return os.Remove(lock) }, nil
}

// moveBackend moves the state away, like a network file system that does not respond. A file in its place keeps pulumi from creating an
// empty state and deploying everything once more.
func moveBackend(_ context.Context, on *target) (campaign.Heal, error) {
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, err
	}
	return func(context.Context) error {
		return errors.Join(os.Remove(on.backend()), os.Rename(away, on.backend()))
	}, os.WriteFile(on.backend(), nil, 0o600)
}

// emptyBackend replaces the state by an empty directory, like a volume that is not mounted. To pulumi, that is a backend without stacks.
// The fault happens between two operations: the state that a running operation writes into the empty directory would be lost, and nobody
// could detect that.
func emptyBackend(ctx context.Context, on *target) (campaign.Heal, error) {
	process, _ := on.main.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(5 * hunt); time.Now().Before(deadline); campaign.Wait(ctx, campaign.PollInterval) {
		if on.Missed = len(on.processes()) > 0; !on.Missed {
			break
		}
	}
	if on.Missed {
		return nil, process.Signal(syscall.SIGCONT)
	}
	away := on.backend() + ".away"
	if err := os.Rename(on.backend(), away); err != nil {
		return nil, errors.Join(err, process.Signal(syscall.SIGCONT))
	}
	return func(context.Context) error {
		empty := on.backend() + ".empty"
		return errors.Join(os.Rename(on.backend(), empty), os.Rename(away, on.backend()), os.RemoveAll(empty))
	}, errors.Join(os.Mkdir(on.backend(), 0o700), process.Signal(syscall.SIGCONT))
}
